"""docs/operators/: a page for each family of operators, and an index with small pictures, from their declarations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dali_run.ops.base import operators
from dali_run.pipelines.tools.reference import describe_operators, without_effect

FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "codecs": ("Decoders and encoders", ("ops.codecs",)),
    "images": ("Resize, crop, flip", ("ops.images",)),
    "color": ("Color", ("ops.color",)),
    "geometry": ("Warps and coordinates", ("ops.geometry",)),
    "filters": ("Filters, noise, distortions", ("ops.filters", "ops.distortions")),
    "augment": ("Augmentation policies", ("ops.augment", "ops.libraries")),
    "boxes": ("Boxes, masks, regions", ("ops.boxes", "ops.regions")),
    "audio": ("Audio", ("ops.audio",)),
    "video": ("Video and sequences", ("ops.video", "ops.sequences")),
    "arrays": ("Arrays and statistics", ("ops.arrays", "ops.statistics")),
    "random": ("Random numbers", ("ops.draws",)),
    "curate": ("Scores, conditions, formulas", ("ops.scores", "ops.formulas")),
    "python": ("Python functions and fed data", ("ops.python_function", "readers.external_source")),
    "readers": ("Readers", ("readers",)),
    "writers": ("Writers", ("writers",)),
}
"""Title of each page, and the folders whose operators it describes, by file name. The first page that fits counts."""

_INDEX = """# Operators

<!-- written by make docs from the operators' declarations -->
Names, arguments and defaults are DALI's. In a terminal, `dali-run ops resize` describes one operator. An argument that
may differ by sample takes the output of a CPU operator: `mirror: $flag`. The formats of `write:` are `writers.*`.
"""


def operators_pages(pictures: Mapping[str, str], captions: Mapping[str, str]) -> dict[str, str]:
    """Return the pages by file name. ``pictures`` are images in Markdown by operator name; ``captions`` also name the
    steps that made them."""
    found: dict[str, list[dict[str, Any]]] = {page: [] for page in FAMILIES}
    for described in describe_operators(installed=False):
        found[family_of(described["name"])].append(described)
    index = [_INDEX]
    for page, (title, _) in FAMILIES.items():
        index += [f"## [{title}]({page}.md)", "", *_listing(found[page], f"{page}.md", pictures), ""]
    pages = {f"{page}.md": _page(title, found[page], captions) for page, (title, _) in FAMILIES.items()}
    return {"index.md": "\n".join(index).rstrip() + "\n", **pages}


def family_of(name: str) -> str:
    """Return the page of an operator. Raises LookupError for a folder that no page has."""
    module = "writers" if name.startswith("writers.") else operators()[name].__module__.removeprefix("dali_run.")
    for page, (_, folders) in FAMILIES.items():
        if any(f"{module}.".startswith(f"{folder}.") for folder in folders):
            return page
    raise LookupError(f"{name} is in {module}, which no page of docs/operators_page.py has: add it to FAMILIES")


def _listing(described: list[dict[str, Any]], page: str, pictures: Mapping[str, str]) -> list[str]:
    shown = any(o["name"] in pictures for o in described)
    rows = ["| operator | on | |" + (" |" if shown else ""), "|---|---|---|" + ("---|" if shown else "")]
    for o in described:
        row = f"| [`{o['name']}`]({page}#{_anchor(o['name'])}) | {' '.join(o['stages'])} | {_cell(o['summary'])} |"
        rows.append(row + (f" {pictures.get(o['name'], '')} |" if shown else ""))
    return rows


def _page(title: str, described: list[dict[str, Any]], captions: Mapping[str, str]) -> str:
    head = [
        f"# {title}",
        "",
        "<!-- written by make docs from the operators' declarations -->",
        "[All operators](index.md)",
        "",
    ]
    return "\n".join([*head, *(_section(o, captions.get(o["name"], "")) for o in described)])


def _section(o: Mapping[str, Any], picture: str) -> str:
    parts = [f"## {o['name']}", "", o["doc"], "", "; ".join(f"{k}: {v}" for k, v in o["facts"].items()) + ".", ""]
    shown = [a for a in o["arguments"] if not a["without_effect"]]
    if shown:
        parts += ["| argument | type | default | meaning |", "|---|---|---|---|"]
        parts += [f"| `{a['name']}` | {_cell(a['type'])} | {_cell(a['default'])} | {_cell(a['help'])} |" for a in shown]
        parts.append("")
    if idle := without_effect(o, "`"):
        parts += [f"Accepted, without effect: {idle}.", ""]
    if o["example"]:
        parts += ["```yaml", o["example"], "```", ""]
    if picture:
        parts += [picture, ""]
    return "\n".join(parts)


def _anchor(name: str) -> str:
    """Return GitHub's anchor of a heading."""
    return name.lower().replace(".", "").replace(" ", "-")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
