"""The site: `make docs` writes docs/_build/html/index.html."""

import re
import shutil
from pathlib import Path

import prednet_jax

project = "prednet_jax"
author = "the prednet_jax authors"
release = prednet_jax.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
html_theme = "sphinx_book_theme"
html_title = "prednet_jax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
# A block without a language is a command or its output.
highlight_language = "none"
html_theme_options = {"show_toc_level": 2, "use_download_button": False}
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath", "colon_fence"]
# Notebooks run anew, in a folder of their own; an error in one is an error of the site.
# Tables and figures are made by `make tables`, not by notebooks.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_type_aliases = {"NoiseSpec": "NoiseSpec"}
napoleon_numpy_docstring = False
# Attributes once, as the docstring has them, not again as members.
napoleon_use_ivar = True
# `x` in a docstring is code.
default_role = "code"


def _bars(app, what, name, obj, options, lines):
    """Bars and stars in docstrings, |x| and *args, are no markup."""
    for i, line in enumerate(lines):
        parts = re.split(r"(``.*?``|`.*?`)", line)
        parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
        lines[i] = "".join(parts)


def _copy_the_study(app):
    """Copies study/README.md and study/pages into docs/study, which git ignores."""
    study, shown = Path(app.srcdir).parent / "study", Path(app.srcdir) / "study"
    shutil.rmtree(shown, ignore_errors=True)
    shutil.copytree(study / "pages", shown / "pages")
    shutil.copy(study / "README.md", shown)


def _links(app, page, source):
    """Turns links between docs/ and study/, which GitHub follows, into the site's."""
    if page.startswith("study/"):
        source[0] = re.sub(r"\]\(((?:\.\./)+)docs/", r"](\1", source[0])
    else:
        source[0] = re.sub(r"\]\(((?:\.\./)*)\.\./study/", r"](\1study/", source[0])


def setup(app):
    """Called by Sphinx."""
    app.connect("builder-inited", _copy_the_study)
    app.connect("source-read", _links)
    app.connect("autodoc-process-docstring", _bars)
