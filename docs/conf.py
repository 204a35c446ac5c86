"""Settings of Sphinx for ``make docs``: Markdown pages, the furo theme, API pages from docstrings."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # public_names.py

project = "grace-torchrec"
author = "the authors of grace-torchrec"
copyright = author  # Sphinx reads this name
release = version = version_of("grace-torchrec")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "public_names",
]
exclude_patterns = ["figures/*.py"]
nitpicky = True
# Types of other libraries have no page here, and neither have our inner ones.
nitpick_ignore_regex = [("py:.*", r".*")]

# -- Markdown: what a git host shows too; anchors of headings for links between pages
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # README-like pages may skip a level

# -- API: signatures as written, types in the text of the docstrings
autodoc_default_options = {"members": True, "undoc-members": False}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_use_rtype = False
napoleon_use_ivar = True  # attributes stand in the text of their class

# -- HTML
html_theme = "furo"
html_title = "grace-torchrec"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_copy_source = False
html_show_sourcelink = False

# -- `make docs LINKS=1`
linkcheck_timeout = 20
linkcheck_anchors = False  # hosts of code show lines by script
