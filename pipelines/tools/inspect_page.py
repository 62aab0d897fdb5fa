"""HTML pages of `inspect`: every intermediate of a spec with its images, or the records of a data set."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from ...version import __version__
from ..show.html import Reject, rejects_table
from ..show.page import Section, facts, listing, page, picture, table, text
from ..show.terminal import value_in_words
from ..wording import count
from .thumbnails import thumbnail, thumbnails

_MOST_BYTES = 64 << 20
"""Largest size in bytes of an image file that the page displays."""
_NOT_PICTURES = (".npy", ".wav", ".flac", ".ogg")


def spec_page(result: Mapping[str, Any], command: Sequence[str]) -> str:
    """Return the HTML page for a result of `inspect_spec`, with the images that it wrote."""
    folder = Path(result["folder"])
    files = [name for row in result["intermediates"] for name in row["files"] if not name.endswith(_NOT_PICTURES)]
    files = [name for name in files if (folder / name).stat().st_size <= _MOST_BYTES]
    small = dict(zip(files, thumbnails([(folder / name).read_bytes() for name in files]), strict=True))
    rows, strips = [], []
    for r in result["intermediates"]:
        shapes = ", ".join(" x ".join(map(str, s)) or "scalar" for s in r["shapes"])
        numbers = ["-" if r[k] is None else f"{r[k]:.4g}" for k in ("min", "max", "mean")]
        rows.append([r["name"], shapes, r["dtype"], r["layout"] or "-", *numbers])
        shown = [picture(jpeg, f"{r['name']}, {name}") for name in r["files"] if (jpeg := small.get(name))]
        if shown:
            strips.append(f'<h3>{text(r["name"])}</h3><p class="soft">{text(shapes)} {text(r["dtype"])}</p>'
                          f'<div class="strip">{"".join(shown)}</div>')  # fmt: skip
    rejects = [Reject(r["key"], r["operator"], r["code"], r["message"], None) for r in result["rejects"]]
    columns = ("operator", "shapes", "dtype", "layout", "min", "max", "mean")
    sections = [
        Section("Intermediates", [table(columns, rows, 4, "Outputs of every operator")]),
        Section("Images", strips),
        Section("Rejected samples", [rejects_table(rejects)] if rejects else []),
        _made_by(command),
    ]
    head = [
        facts([("samples", f"{len(result['samples'])}"), ("operators", f"{len(rows)}"), ("written to", str(folder))])
    ]
    return page(str(result["name"] or "spec"), "dali-run inspect", head, sections, f"dali-run {__version__}")


def data_page(result: Mapping[str, Any], images: Sequence[tuple[int, str, Image.Image]], command: Sequence[str]) -> str:
    """Return the HTML page for a result of `inspect_data`, with ``images``: number of the record, name of the field,
    image."""
    rows, figures = [], []
    for number, s in enumerate(result["samples"]):
        rows += [[s["key"], name, value_in_words(f)] for name, f in s["fields"].items()]
        rows += [[s["key"], "", s["problem"]]] if s["problem"] else []
        shown = "".join(_titled(image, name, s["key"]) for k, name, image in images if k == number)
        if shown:
            figures.append(f'<figure><div class="pair">{shown}</div><figcaption>{text(s["key"])}</figcaption></figure>')
    sections = [
        Section("Samples", [table(("key", "field", "holds"), rows, 3, "The first samples, field by field")]),
        Section("Images", [f'<div class="pictures">{"".join(figures)}</div>'] if figures else []),
        _made_by(command),
    ]
    records = "unknown" if result["records"] is None else count(result["records"], "record")
    head = [facts([("kind", result["kind"]), ("records", records), ("shown", f"{len(result['samples'])}")])]
    return page(result["target"], "dali-run inspect", head, sections, f"dali-run {__version__}")


def _titled(image: Image.Image, name: str, key: str) -> str:
    return f"<div>{picture(thumbnail(image), f'{name} of {key}')}{text(name)}</div>"


def _made_by(command: Sequence[str]) -> Section:
    return Section("This page", ["<h3>Command</h3>", listing(shlex.join(command), "Command")])
