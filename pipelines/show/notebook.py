"""Views for notebooks: a graph as SVG, a batch as a grid of images, waveforms, spectrograms, or numbers.

Each view is one piece of HTML without scripts or requests, in colors for light and dark notebooks.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ops.batch import Batch
from ...ops.codecs.formats import FORMATS, recognise
from ...ops.errors import SampleError
from ..wording import count, size
from .pictures import as_picture

MOST_SAMPLES = 16
"""Largest number of samples of a batch to display."""
MOST_FRAMES = 4
"""Largest number of frames of a sequence to display."""
_SIDE = 160
_SHOWN_BYTES = 256 << 10
_MIMES = {f.name: f.mime for f in FORMATS if f.mime}
"""MIME types of the image formats that browsers can display, by the format's name."""

# -- batches ----------------------------------------------------------------------------------------------------------


def batch_html(batch: Batch, title: str) -> str:
    """Return HTML for a batch in host memory: a line of facts, and a grid with a cell per sample."""
    cells = [
        _cell(np.asarray(batch.sample(i)), batch.layout, _key(batch, i)) for i in range(min(len(batch), MOST_SAMPLES))
    ]
    more = f"<p>... and {len(batch) - MOST_SAMPLES} more</p>" if len(batch) > MOST_SAMPLES else ""
    shapes = {tuple(s) for s in batch.shapes.tolist()}
    shape = _shape(shapes.pop()) if len(shapes) == 1 else f"{len(shapes)} shapes"
    facts = [count(len(batch), "sample"), str(batch.dtype), shape, *([batch.layout] if batch.layout else [])]
    grid = f'<div style="display:flex;flex-wrap:wrap;gap:8px">{"".join(cells)}</div>' if cells else ""
    return f"<div><p><b>{escape(title)}</b> {escape(', '.join(facts))}</p>{grid}{more}</div>"


def _key(batch: Batch, i: int) -> str:
    origin = batch.samples.origin(i)
    return origin.key if origin.source else ""


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "one number"


def _cell(sample: NDArray[Any], layout: str, key: str) -> str:
    caption = f'<figcaption style="font-size:11px;opacity:.7">{escape(key)} {_shape(sample.shape)}</figcaption>'
    return f'<figure style="margin:0;max-width:{_SIDE * 2}px">{_content(sample, layout, key)}{caption}</figure>'


def _content(sample: NDArray[Any], layout: str, key: str) -> str:
    if layout in ("FHWC", "FCHW") and sample.ndim == 4:
        steps = np.linspace(0, len(sample) - 1, min(len(sample), MOST_FRAMES)).round().astype(int)
        return "".join(_content(sample[i], layout[1:], f"{key} frame {i}") for i in steps.tolist())
    picture = as_picture(sample, layout)
    if picture is not None:
        picture.thumbnail((_SIDE * 2, _SIDE))
        out = io.BytesIO()
        picture.save(out, "png")
        return _image("image/png", out.getvalue(), key or "sample")
    if sample.ndim == 1 and sample.dtype == np.uint8 and sample.size:
        return _bytes(sample.tobytes(), key)
    text = np.array2string(sample, threshold=24, edgeitems=2, precision=4)
    return f'<pre style="margin:0;font-size:11px;background:none">{escape(text)}</pre>'


def _bytes(content: bytes, key: str) -> str:
    """Return HTML for bytes: an image, if browsers can display its format; otherwise the first bytes as text."""
    try:
        kind = recognise(memoryview(content))
    except SampleError:
        kind = ""
    if kind in _MIMES and len(content) <= _SHOWN_BYTES:
        return _image(_MIMES[kind], content, key or "sample")
    head = content[:16].hex(" ")
    return f'<pre style="margin:0;font-size:11px;background:none">{escape(kind)} {size(len(content))}: {head}</pre>'


def _image(mime: str, content: bytes, name: str) -> str:
    data = base64.b64encode(content).decode()
    style = f"max-width:{_SIDE * 2}px;max-height:{_SIDE}px"
    return f'<img alt="{escape(name)}" style="{style}" src="data:{mime};base64,{data}">'


# -- graphs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Box:
    """A box in the drawing of a graph. It is an operator or, if ``op`` is empty, an output of the graph."""

    name: str
    op: str
    stage: str
    inputs: tuple[int, ...]
    """Indices, in the list of all boxes, of the boxes whose outputs this box reads."""
    arguments: Mapping[str, int]
    """For each per-sample argument, by name, the index of the box whose output is its value."""
    numbers: tuple[int | None, ...] = ()
    """For each entry of ``inputs``, which output of that box is read; None if it has only one."""
    argument_numbers: Mapping[str, int | None] = field(default_factory=dict)
    """For each entry of ``arguments``, which output of that box is read; None if it has only one."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Constant arguments of the operator that differ from their defaults, as text."""


_FILLS = {"cpu": "#3b82f6", "mixed": "#14b8a6", "gpu": "#22c55e", "": "#94a3b8"}
_LETTER, _HIGH, _ROW, _GAP = 7.0, 34, 66, 22


def graph_svg(boxes: Sequence[Box]) -> str:
    """Return the drawing of a graph as SVG, with each box below its inputs. Dashed lines are per-sample arguments."""
    if not boxes:
        return '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"></svg>'
    ranks: list[int] = []
    for box in boxes:
        before = [*box.inputs, *box.arguments.values()]
        ranks.append(1 + max((ranks[i] for i in before), default=-1))
    for i, box in enumerate(boxes):  # a box without inputs goes directly above the first one that reads it
        after = [r for b, r in zip(boxes, ranks, strict=True) if i in b.inputs or i in b.arguments.values()]
        if not box.inputs and not box.arguments and after:
            ranks[i] = min(after) - 1
    rows = [[i for i, r in enumerate(ranks) if r == rank] for rank in range(max(ranks) + 1)]
    widths = [max(len(b.name), len(b.op)) * _LETTER + 20 for b in boxes]
    spans = [sum(widths[i] for i in row) + _GAP * (len(row) - 1) for row in rows]
    whole = max(spans) + 20
    center = [0.0] * len(boxes)
    for row, span in zip(rows, spans, strict=True):
        row.sort(key=lambda i: _mean([center[k] for k in (*boxes[i].inputs, *boxes[i].arguments.values())]))
        x = (whole - span) / 2
        for i in row:
            center[i] = x + widths[i] / 2
            x += widths[i] + _GAP
    parts = []
    for i, box in enumerate(boxes):
        lines = [(k, "") for k in dict.fromkeys(box.inputs)] + [(k, name) for name, k in box.arguments.items()]
        parts += [
            _line(center[k], ranks[k] * _ROW + 10 + _HIGH, center[i], ranks[i] * _ROW + 10, name) for k, name in lines
        ]
    parts += [_drawn(box, center[i], ranks[i] * _ROW + 10, widths[i]) for i, box in enumerate(boxes)]
    high = len(rows) * _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="graph of {len(boxes)} boxes" '
        f'width="{whole:.0f}" height="{high}" viewBox="0 0 {whole:.0f} {high}" '
        'style="max-width:100%;height:auto;color:inherit" font-family="system-ui, sans-serif" font-size="12" '
        f'fill="currentColor">{"".join(parts)}</svg>'
    )


def _drawn(box: Box, center: float, y: int, width: float) -> str:
    color = _FILLS.get(box.stage, _FILLS[""])
    settings = "".join(f"\n{escape(name)}={escape(value)}" for name, value in box.settings.items())
    title = f"<title>{escape(box.name)}: {escape(box.op or 'output')} {escape(box.stage)}{settings}</title>"
    rounding = 5 if box.op else _HIGH // 2
    rect = (f'<rect x="{center - width / 2:.0f}" y="{y}" width="{width:.0f}" height="{_HIGH}" rx="{rounding}" '
            f'fill="{color}" fill-opacity=".18" stroke="{color}"/>')  # fmt: skip
    second = ""
    if box.op not in ("", box.name):
        second = f'<tspan x="{center:.0f}" dy="13" opacity=".65">{escape(box.op)}</tspan>'
    place = f'x="{center:.0f}" y="{y + (15 if second else 21)}" text-anchor="middle"'
    text = f"<text {place}>{escape(box.name)}{second}</text>"
    return f"<g>{title}{rect}{text}</g>"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _line(x0: float, y0: float, x1: float, y1: float, argument: str) -> str:
    middle = (y0 + y1) / 2
    dashed = ' stroke-dasharray="4 3"' if argument else ""
    name = f"<title>{escape(argument)}</title>" if argument else ""
    return (f'<path d="M{x0:.0f} {y0:.0f}C{x0:.0f} {middle:.0f} {x1:.0f} {middle:.0f} {x1:.0f} {y1:.0f}" fill="none" '
            f'stroke="currentColor" stroke-opacity=".5"{dashed}>{name}</path>')  # fmt: skip


def outline(boxes: Iterable[Box]) -> str:
    """Return the graph as lines of text, one per box: ``resize = resize(images[0], size=[224, 224]; mode=flag)``."""
    listed = list(boxes)
    lines = []
    for box in listed:
        numbers = box.numbers or (None,) * len(box.inputs)
        inputs = [_end(listed[i].name, number) for i, number in zip(box.inputs, numbers, strict=True)]
        settings = [f"{name}={value}" for name, value in box.settings.items()]
        arguments = [f"{name}={_end(listed[k].name, box.argument_numbers.get(name))}" for name, k in
                     box.arguments.items()]  # fmt: skip
        all_arguments = "; ".join(", ".join(x) for x in ([*inputs, *settings], arguments) if x)
        lines.append(f"{box.name} = {box.op}({all_arguments})" if box.op else f"{box.name} <- {', '.join(inputs)}")
    return "\n".join(lines)


def _end(name: str, number: int | None) -> str:
    return name if number is None else f"{name}[{number}]"
