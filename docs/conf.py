"""Settings of Sphinx for the site of the documentation (`make site`).

The source folder is the root of the project, so that links between docs/ and the READMEs of folders are the same on
the site and in a file browser. Sphinx and MyST, because both are kept well and check references by themselves; MkDocs
1.6 is from 2024, and its Material theme is in maintenance.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from myst_parser.parsers.sphinx_ import MystParser

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.contents import CONTENTS, toctrees

ROOT = Path(__file__).parents[1]

project = "dali-run"
author = "the maintainers of dali-run"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "docs/notebooks/*.ipynb",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "*/README.md",
]
exclude_patterns = ["build", ".venv", "dali_run", "data", "out", "**/node_modules", ".pytest_cache"]
html_theme = "furo"
html_title = "dali-run"
smartquotes = False
html_show_copyright = False
myst_heading_anchors = 4
myst_links_external_new_tab = False
nitpicky = True
highlight_language = "none"
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
html_static_path = ["static"]
html_css_files = ["site.css"]


class _Notebook(MystParser):
    """Parser of notebooks: a page has their texts, their code, and the outputs that are stored in them."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: Any) -> None:
        """Fill ``document`` from the notebook's JSON. Sphinx calls this."""
        super().parse("\n\n".join(map(_cell, json.loads(inputstring)["cells"])), document)


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    parts = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "text/html" in data:
            parts.append(f"````{{raw}} html\n<div>{''.join(data['text/html'])}</div>\n````")
        else:
            parts.append(f"```text\n{''.join(data.get('text/plain') or output['text'])}\n```")
    return "\n\n".join(parts)


def _as_text(app: Any, doctree: Any) -> None:
    """Replace links to folders, and to pages that are not part of the site, by plain text if a checkout has the target.
    Other broken links stay, and fail a strict build."""
    from docutils import nodes
    from sphinx import addnodes

    here = (ROOT / app.env.docname).parent
    for node in list(doctree.findall(addnodes.pending_xref)):
        target = node.get("reftarget", "")
        page = node.get("reftype") == "doc" or node.get("refdomain") == "doc"
        if page and _is_page(app, here, target):  # also if a folder has its name, as performance.md and performance/
            continue
        folder = any(p.is_dir() for p in (here / target, ROOT / target) if target)
        name = target.lstrip("/")
        there = any((at / (name + suffix)).is_file() for at in (here, ROOT) for suffix in ("", ".md", ".ipynb"))
        if folder or (page and there):
            node.replace_self(nodes.inline("", node.astext()))


def _is_page(app: Any, here: Path, target: str) -> bool:
    """Return whether the site has the page that is ``target``, as seen from the folder ``here`` or from the root."""
    inside = ((at / target.lstrip("/")).resolve() for at in (here, ROOT))
    names = {str(p.relative_to(ROOT)) for p in inside if p.is_relative_to(ROOT)}
    return bool(app.env.found_docs & (names | {n.removesuffix(".md").removesuffix(".ipynb") for n in names}))


def _with_contents(app: Any, docname: str, source: list[str]) -> None:
    """Append the tables of contents to the first page. They are not in its file, which GitHub shows as it is."""
    if docname != root_doc:
        return
    named = {page for pages in CONTENTS.values() for page in pages}
    found = [d.removeprefix("docs/") if d.startswith("docs/") else f"../{d}" for d in sorted(app.env.found_docs)]
    source[0] += toctrees([d for d in found if d not in named and d != "index"])


def _with_a_root(app: Any, error: Exception | None) -> None:
    """Write the site's index.html, which leads to the first page."""
    if error is None:
        page = f"{root_doc}.html"
        text = f'<!doctype html>\n<meta charset="utf-8">\n<meta http-equiv="refresh" content="0; url={page}">\n'
        link = f'<title>{html_title}</title>\n<p><a href="{page}">{html_title}</a></p>\n'
        (Path(app.outdir) / "index.html").write_text(text + link)


def setup(app: Any) -> None:
    """Register parsers and handlers. Sphinx calls this."""
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(_Notebook)
    app.connect("source-read", _with_contents)
    app.connect("doctree-read", _as_text)
    app.connect("build-finished", _with_a_root)
