r"""The tables of a report as LaTeX, for papers: ``booktabs``, the best in bold, none too wide.

Everything that is text is escaped, so that names with ``_``, ``%`` or ``β`` compile.
"""

from __future__ import annotations

import re
import unicodedata

from gflowout.report import tables
from gflowout.report.build import Part, Report
from gflowout.studies.framework.content import OURS, Column, Table

WIDE = 6
"""Tables of more columns are set smaller."""

_SIGNS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "[": "{[}",  # or it would be an option of the line break before it
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "·": r"$\cdot$",
    "°": r"$^\circ$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "→": r"$\rightarrow$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≠": r"$\neq$",
    "≈": r"$\approx$",
    "∞": r"$\infty$",
    "√": r"$\surd$",
    "²": r"$^2$",
    "³": r"$^3$",
    "\N{MINUS SIGN}": r"$-$",
    "\N{EN DASH}": "--",
    "\N{EM DASH}": "---",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}",
    "\N{NO-BREAK SPACE}": "~",
}
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (?:FINAL )?(\w+)$")
_AS_LATIN = {"ALPHA": "A", "BETA": "B", "EPSILON": "E", "ZETA": "Z", "ETA": "H", "IOTA": "I",
             "KAPPA": "K", "MU": "M", "NU": "N", "OMICRON": "O", "RHO": "P", "TAU": "T",
             "CHI": "X"}  # fmt: skip


def document(report: Report) -> str:
    """All tables, study by study, for a document that loads ``booktabs`` and ``adjustbox``.

    Args:
        report: From :func:`gflowout.report.build.build`.
    """
    made = [r"% Tables written by gflowout report; they need \usepackage{booktabs,adjustbox}."]
    if report.warning:
        made.append(f"% {report.warning}")
    for part in report.parts:
        found = [block for block in part.section.blocks if isinstance(block, Table)]
        if found:
            made.append(f"% {_one_line(part.title)}")
        made += [table(block, _label(part, place)) for place, block in enumerate(found)]
    return "\n\n".join(made) + "\n"


def table(content: Table, label: str = "") -> str:
    """A table as a float.

    Args:
        content: The table.
        label: To refer to it; empty for none.
    """
    marked = tables.best(content)
    wide = len(content.columns) + 1
    lines: list[str] = []
    groups = tables.groups(content)
    for source, rows in groups:
        if len(groups) > 1 or source != OURS:
            rule = [r"\midrule"] if lines else []
            head = rf"\multicolumn{{{wide}}}{{l}}{{\emph{{{escape(tables.heading(source))}}}}} \\"
            lines += [*rule, head]
        for index, row in rows:
            cells = []
            for place, (cell, column) in enumerate(zip(row.cells, content.columns, strict=True)):
                mean, error = tables.figure(cell, column)
                text = escape(mean)
                text = rf"\textbf{{{text}}}" if (index, place) in marked else text
                cells.append(text + (rf" {{\scriptsize$\pm$ {error}}}" if error else ""))
            lines.append(" & ".join([escape(row.title), *cells]) + r" \\")
    parts = [_ended(content.title), content.caption, tables.note([content])]
    caption = " ".join(escape(part) for part in parts if part)
    heads = " & ".join([escape(content.head), *(_head(column) for column in content.columns)])
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
            heads + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{adjustbox}",
            r"\end{table}",
        ]
    )


def escape(text: str) -> str:
    r"""Text that LaTeX sets as it is.

    Letters with accents stay; other signs beyond ASCII become commands where there are some, and a
    question mark where not.

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


def _ended(text: str) -> str:
    return text if not text or text[-1] in ".?!" else f"{text}."


def _head(column: Column) -> str:
    unit = " (%)" if column.percent and "%" not in column.title else ""
    return escape(f"{column.title}{unit} {tables.ARROWS[column.better]}".strip())


def _label(part: Part, place: int) -> str:
    return "tab:" + re.sub(r"[^A-Za-z0-9]+", "-", part.name).strip("-") + f"-{place + 1}"
