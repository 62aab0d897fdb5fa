"""Sphinx: the site of the documentation (`make site`).

The source folder is the root of the project, so that links between docs/ and the READMEs of folders are the same on
the site and in a file browser. Sphinx and MyST, because both are kept well and check references by themselves; MkDocs
1.6 is from 2024, and its Material theme is in maintenance.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from myst_parser.parsers.sphinx_ import MystParser

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
html_show_copyright = False
myst_heading_anchors = 4
myst_links_external_new_tab = False
nitpicky = True
highlight_language = "none"
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
html_static_path: list[str] = []


class _Notebook(MystParser):
    """Notebooks as pages: their texts, their code, and the outputs that are stored in them."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: Any) -> None:
        """Called by Sphinx with the notebook's JSON."""
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
    """Links to folders, and to pages that the site does not hold, become plain text where a checkout has them; others
    stay, and fail a strict build."""
    from docutils import nodes
    from sphinx import addnodes

    here = (ROOT / app.env.docname).parent
    for node in list(doctree.findall(addnodes.pending_xref)):
        target = node.get("reftarget", "")
        folder = next((p for p in (here / target, ROOT / target) if target and p.is_dir()), None)
        page = node.get("reftype") == "doc" or node.get("refdomain") == "doc"
        name = target.lstrip("/")
        there = any((at / (name + suffix)).is_file() for at in (here, ROOT) for suffix in ("", ".md", ".ipynb"))
        if folder is not None or (page and there and name not in app.env.found_docs):
            node.replace_self(nodes.inline("", node.astext()))


def _with_the_rest(app: Any, docname: str, source: list[str]) -> None:
    """Pages that the contents of the first page do not name are listed after the others."""
    if docname != root_doc:
        return
    named = {line.strip() for line in source[0].splitlines()}
    found = [d.removeprefix("docs/") if d.startswith("docs/") else f"../{d}" for d in sorted(app.env.found_docs)]
    rest = [d for d in found if d not in named and d != "index"]
    if rest:
        source[0] += "\n".join(["", "```{toctree}", ":hidden:", ":caption: More", "", *rest, "```", ""])


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(_Notebook)
    app.connect("source-read", _with_the_rest)
    app.connect("doctree-read", _as_text)
