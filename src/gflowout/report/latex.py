r"""The tables of a report as LaTeX, for papers: ``booktabs``, the best in bold, none too wide.

Everything that is text is escaped, so that names with ``_``, ``%`` or ``β`` compile.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

import jinja2

from gflowout.report.build import Report
from gflowout.report.html import environment, read_toml
from gflowout.studies.framework.content import Table

WIDE = 6
"""Tables of so many columns of numbers are set smaller."""
_SIGNS = str.maketrans(read_toml("latex.toml"))


def document(report: Report) -> str:
    """All tables, study by study, for a document that loads ``booktabs`` and ``adjustbox``."""
    lines = [r"% Tables written by gflowout report; they need \usepackage{booktabs,adjustbox}."]
    if report.warning:
        lines.append(f"% {_one_line(report.warning)}")
    for part in report.parts:
        contents = [block for block in part.section.blocks if isinstance(block, Table)]
        if contents:
            lines.append(f"% {_one_line(part.title)}")
        name = re.sub(r"[^A-Za-z0-9]+", "-", part.name).strip("-")
        lines += [table(block, f"tab:{name}-{place}") for place, block in enumerate(contents, 1)]
    return "\n\n".join(lines) + "\n"


@cache
def _template() -> jinja2.Template:
    marks = {  # braces and percent signs are LaTeX's own
        "block_start_string": "<%", "block_end_string": "%>",
        "variable_start_string": "<<", "variable_end_string": ">>",
        "comment_start_string": "<#", "comment_end_string": "#>",
    }  # fmt: skip
    return environment({"tex": escape}, **marks).get_template("table.tex.jinja")


def table(content: Table, label: str = "") -> str:
    """A table as a float, with a label to refer to it unless that is empty."""
    stop = "" if content.title.endswith((".", "?", "!")) or not content.title else "."
    caption = f"{content.title}{stop} {content.full_caption}"
    return _template().render(table=content, caption=caption, label=label, WIDE=WIDE)


def escape(text: str) -> str:
    r"""Text that LaTeX shows unchanged.

    Letters with accents stay; other characters beyond printable ASCII become commands, or a
    question mark where there is no command.

    Examples:
        >>> print(escape("50 % of a_b, GFlowOut, β = 0"))
        50 \% of a\_b, GFlowOut, $\beta$ = 0
    """
    return "".join(
        sign if " " <= sign <= "~" or unicodedata.name(sign, "").startswith("LATIN ") else "?"
        for sign in _one_line(text).translate(_SIGNS)
    )


def _one_line(text: str) -> str:
    return " ".join(str(text).split())
