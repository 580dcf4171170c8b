"""Settings of the documentation: ``sphinx-build -W --keep-going -b html docs docs/_build/html``.

Pages are Markdown that reads well on GitHub, too. Nothing is fetched when a page is looked at: no
fonts, no scripts, and formulas are plain text, so that no MathJax is needed.
"""

from __future__ import annotations

import re
from typing import Any

import gflowout

project = "gflowout"
author = "the gflowout authors"
project_copyright = "the gflowout authors, Apache-2.0"
version = release = gflowout.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
templates_path: list[str] = []

html_theme = "furo"
html_title = f"gflowout {release}"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#08519c", "color-brand-content": "#08519c"},
    "dark_css_variables": {"color-brand-primary": "#9ecae1", "color-brand-content": "#9ecae1"},
}

# Headings are targets, as on GitHub: [records](../guides/scale.md#records).
myst_heading_anchors = 4
myst_enable_extensions: list[str] = []

napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
# Values of defaults and full paths of types make signatures that nobody reads.
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88


def setup(app: Any) -> None:
    """One adjustment that no option makes."""
    app.connect("autodoc-skip-member", _skip)


def _skip(app: Any, kind: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """What scikit-learn adds to every estimator is explained in its own documentation."""
    return True if re.fullmatch("set_.*_request", name) else None
