"""Generator of docs/architecture.svg: folders in the order that `make lint` checks, and the path of a batch.

Drawn from pyproject.toml's import contracts and the folders themselves, so that it cannot be out of date unnoticed
(`make docs`, and tests/test_docs.py).
"""

from __future__ import annotations

import re
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("pipelines", "readers", "writers", "ops")
WIDTH, LEFT, ROW, GAP = 960, 120, 34, 8
FLOW = [
    ("readers", "index, order, bytes of records"), ("batch merger", "samples of the next batch"),
    ("host executor", "decode and transform in chunks"), ("device executor", "launch on a lane, complete in order"),
    ("writers", "frame, publish, journal"),
]  # fmt: skip


def layers(folder: str) -> list[list[str]]:
    """Return the layers of ``folder``, top first, each with the names of its folders and modules that exist."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (rules,) = [c["layers"] for c in contracts if c["name"] == f"rooms of {folder}"]
    floors = [[re.sub(r"[()\s]", "", room) for room in re.split(r"[:|]", floor)] for floor in rules]
    there = [[r for r in floor if exists(folder, r)] for floor in floors]
    return [floor for floor in there if floor]


def exists(folder: str, room: str) -> bool:
    """Return whether ``folder`` has a folder or module of this name."""
    path = ROOT / folder / room
    return path.is_dir() or path.with_suffix(".py").exists()


def box(x: float, y: float, width: float, height: float, text: str, kind: str) -> str:
    middle = f'x="{x + width / 2:g}" y="{y + height / 2 + 4:g}"'
    return (f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"/>'
            f'<text {middle}>{escape(text)}</text>')  # fmt: skip


def draw() -> str:
    """Return the drawing as SVG."""
    parts, y = [], 30
    parts.append('<text class="head" x="12" y="20">Imports go down only. Blue: a folder; grey: a file.</text>')
    for folder in ("cli", *FOLDERS):
        floors = [[]] if folder == "cli" else layers(folder)
        top = y
        for floor in floors:
            names = floor or ["one file a command"]
            for k in range(0, len(names), 7):
                row = names[k : k + 7]
                width = (WIDTH - LEFT - 12 - GAP * (len(row) - 1)) / len(row)
                for i, name in enumerate(row):
                    kind = "file" if (ROOT / folder / name).with_suffix(".py").exists() else "room"
                    parts.append(box(LEFT + i * (width + GAP), y, width, ROW - 8, name, kind))
                y += ROW - 2
        parts.append(f'<text class="folder" x="12" y="{top + 18}">{folder}</text>')
        y += 10
        parts.append(f'<line x1="12" y1="{y - 8}" x2="{WIDTH - 12}" y2="{y - 8}"/>')
    y += 20
    parts.append(f'<text class="head" x="12" y="{y}">The path of a batch; queues between the threads</text>')
    y += 12
    width = (WIDTH - 24 - 24 * (len(FLOW) - 1)) / len(FLOW)
    for i, (name, what) in enumerate(FLOW):
        x = 12 + i * (width + 24)
        parts.append(box(x, y, width, 30, name, "step"))
        parts.append(f'<text class="small" x="{x + width / 2:g}" y="{y + 46}">{escape(what)}</text>')
        if i:
            parts.append(f'<path class="arrow" d="M{x - 22:g} {y + 15} h16 m-5 -4 l5 4 l-5 4"/>')
    y += 64
    return svg("Folders of dali-run and the path of a batch through them", WIDTH, y, parts)


def svg(label: str, width: float, height: float, parts: list[str]) -> str:
    """Return a drawing as SVG, in colors for light and for dark pages."""
    style = """text{font:13px system-ui,sans-serif;text-anchor:middle;fill:#1c2733}
.head,.folder{text-anchor:start;font-weight:600}.small{font-size:11px;fill:#4d5b69}
rect{stroke:#7c8ea1}.room{fill:#dcebf7}.file{fill:#f4f6f8}.step{fill:#dff0dd}
line{stroke:#c3ccd6}.arrow{stroke:#4d5b69;fill:none;stroke-width:1.5}svg{background:#fff}
@media(prefers-color-scheme:dark){text{fill:#e2e8ef}.small{fill:#a9b6c4}rect{stroke:#6f8194}.room{fill:#173650}
.file{fill:#262c34}.step{fill:#22512d}line{stroke:#424d59}.arrow{stroke:#a9b6c4}svg{background:#15181c}}"""
    body = "\n".join(parts)
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
    return f'{begin}aria-label="{escape(label)}">\n<style>{style}</style>\n{body}\n</svg>\n'
