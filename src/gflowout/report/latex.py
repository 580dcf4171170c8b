r"""The tables of a report as LaTeX, for papers: ``booktabs``, the best in bold, none too wide.

Everything that is text is escaped, so that names with ``_``, ``%`` or ``β`` compile.
"""

from __future__ import annotations

import re
import unicodedata

from gflowout.report.build import Report
from gflowout.studies.framework.content import Figure, Table

WIDE = 6
"""Tables of more columns are set smaller."""

_SIGNS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%",
    "#": r"\#", "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "[": "{[}",  # or it would be an option of the line break before it
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''", "±": r"$\pm$",
    "\N{MULTIPLICATION SIGN}": r"$\times$", "·": r"$\cdot$", "°": r"$^\circ$", "↑": r"$\uparrow$",
    "↓": r"$\downarrow$", "→": r"$\rightarrow$", "≤": r"$\leq$", "≥": r"$\geq$", "≠": r"$\neq$",
    "≈": r"$\approx$", "∞": r"$\infty$", "√": r"$\surd$", "²": r"$^2$", "³": r"$^3$",
    "\N{MINUS SIGN}": r"$-$", "\N{EN DASH}": "--", "\N{EM DASH}": "---",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'", "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}",
    "\N{NO-BREAK SPACE}": "~",
}  # fmt: skip
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (?:FINAL )?(\w+)$")
_AS_LATIN = {"ALPHA": "A", "BETA": "B", "EPSILON": "E", "ZETA": "Z", "ETA": "H", "IOTA": "I",
             "KAPPA": "K", "MU": "M", "NU": "N", "OMICRON": "O", "RHO": "P", "TAU": "T",
             "CHI": "X"}  # fmt: skip


def document(report: Report) -> str:
    """All tables, study by study, for a document that loads ``booktabs`` and ``adjustbox``."""
    lines = [r"% Tables written by gflowout report; they need \usepackage{booktabs,adjustbox}."]
    if report.warning:
        lines.append(f"% {report.warning}")
    for part in report.parts:
        contents = [block for block in part.section.blocks if isinstance(block, Table)]
        if contents:
            lines.append(f"% {_one_line(part.title)}")
        name = re.sub(r"[^A-Za-z0-9]+", "-", part.name).strip("-")
        lines += [table(block, f"tab:{name}-{place}") for place, block in enumerate(contents, 1)]
    return "\n\n".join(lines) + "\n"


def table(content: Table, label: str = "") -> str:
    """A table as a float, with a label to refer to it unless that is empty."""
    wide = len(content.columns) + 1
    lines: list[str] = []
    for group in content.groups:
        if group.heading:
            head = rf"\multicolumn{{{wide}}}{{l}}{{\emph{{{escape(group.heading)}}}}} \\"
            lines += [r"\midrule", head] if lines else [head]
        for line in group.lines:
            cells = [escape(line.title), *map(_figure, line.figures)]
            lines.append(" & ".join(cells) + r" \\")
    stop = "" if content.title.endswith((".", "?", "!")) or not content.title else "."
    caption = escape(f"{content.title}{stop} {content.full_caption}")
    heads = [content.head, *(column.heading() for column in content.columns)]
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"\centering",
            *([r"\footnotesize", r"\setlength{\tabcolsep}{3pt}"] if wide > WIDE else []),
            rf"\caption{{{caption}}}",
            *([rf"\label{{{label}}}"] if label else []),
            r"\begin{adjustbox}{max width=\textwidth}",
            rf"\begin{{tabular}}{{l{'r' * len(content.columns)}}}",
            r"\toprule",
            " & ".join(map(escape, heads)) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{adjustbox}",
            r"\end{table}",
        ]
    )


def _figure(figure: Figure) -> str:
    text = rf"\textbf{{{escape(figure.mean)}}}" if figure.best else escape(figure.mean)
    return text + (rf" {{\scriptsize$\pm$ {figure.error}}}" if figure.error else "")


def escape(text: str) -> str:
    r"""Text that LaTeX shows unchanged.

    Letters with accents stay; other characters beyond ASCII become commands, or a question mark
    where there is no command.

    Examples:
        >>> print(escape("50 % of a_b, GFlowOut, β = 0"))
        50 \% of a\_b, GFlowOut, $\beta$ = 0
    """
    return "".join(_sign(sign) for sign in _one_line(text))


def _sign(sign: str) -> str:
    if sign in _SIGNS:
        return _SIGNS[sign]
    if sign.isascii():
        return sign
    name = unicodedata.name(sign, "")
    greek = _GREEK.match(name)
    if greek:
        size, letter = greek.groups()
        letter = {"LAMDA": "LAMBDA"}.get(letter, letter)
        if size == "CAPITAL":
            return _AS_LATIN.get(letter) or rf"$\{letter.title()}$"
        return "o" if letter == "OMICRON" else rf"$\{letter.lower()}$"
    return sign if name.startswith("LATIN ") else "?"


def _one_line(text: str) -> str:
    return " ".join(str(text).split())
