"""Configuration of the documentation site, which `make docs` builds."""

import logging as standard_logging
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]

import generate_options  # noqa: E402
from sphinx.util import logging  # noqa: E402

import fairseq_headgates  # noqa: E402

logger = logging.getLogger(__name__)
standard_logging.getLogger("markdown_it").setLevel(standard_logging.WARNING)  # fairseq has opened the root logger

project = "fairseq-headgates"
author = "The fairseq-headgates authors"
version = release = fairseq_headgates.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"fairseq-headgates {release}"

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

smartquotes = False  # `--option` stays as it is
default_role = "code"  # docstrings write code between single backticks
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_default_options = {"undoc-members": True}  # not left out, but reported by require_docstring
# Types of other projects: the build reads nothing from the network, so there is no index to look them up in.
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|fairseq|os|collections|argparse)\..*|Tensor|nn\.Module|Any|Mapping|Iterator|Callable|inf"),
    (r"py:class", r"fairseq_headgates\.attention\.cuts\.Pruned"),  # of an argument for `headgates prune` alone
]


ROOT_PAGES = {"security": "SECURITY.md", "changelog": "CHANGELOG.md"}


def read_root_page(app, docname, source) -> None:
    """Replace a page by the file at the root of the repository, with its links relative to this folder."""
    if docname in ROOT_PAGES:
        text = (DOCS.parent / ROOT_PAGES[docname]).read_text(encoding="utf-8")
        source[0] = re.sub(r"\]\((?!https?:|#)(docs/)?", lambda match: "](" if match[1] else "](../", text)


def plain_returns(app, what, name, obj, options, lines) -> None:
    """Mark sections `Returns:` and `Yields:` as having no type: they are text, which may have a colon."""
    for i, line in enumerate(lines[:-1]):
        if line.strip() in ("Returns:", "Yields:"):
            text = lines[i + 1].lstrip()
            lines[i + 1] = lines[i + 1].removesuffix(text) + ":" + text


def require_docstring(app, what, name, obj, options, lines) -> None:
    """Report a documented object without a docstring; with -W the build fails."""
    if not any(line.strip() for line in lines):
        logger.warning("%s %s has no docstring", what, name, type="docstring", subtype="missing")


def setup(app) -> None:
    """Write the reference of options before the sources are read."""
    app.connect("builder-inited", lambda app: generate_options.write(DOCS / "reference"))
    app.connect("source-read", read_root_page)
    app.connect("autodoc-process-docstring", plain_returns, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", require_docstring)
