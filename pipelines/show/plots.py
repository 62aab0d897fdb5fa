"""Drawings for pages: bars, which are tables, and small plots over time, each with its numbers beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..wording import duration
from .page import scrolling, table, text

Floats = NDArray[np.float64]

_WIDTH, _HEIGHT = 600, 120
MOST_LINES = 5
"""Lines in one plot."""
_FEW_LINES = 2
"""Lines whose ranges are told above a plot; they are in its table, too."""
_MOST_POINTS = 60
_MOST_NUMBERS = 24
"""Rows of a plot's table."""


def bars(
    columns: Sequence[str], rows: Sequence[tuple[str, Sequence[tuple[float, str]], Sequence[str]]], caption: str,
    spreads: Sequence[tuple[float, float]] = (),
) -> str:  # fmt: skip
    """A table with a bar in every row: name, shares (0..1, each with its class: busy, waits, blocked) one after the
    other, and what else is to be said in text. ``columns`` name the first cell and the texts; ``spreads`` are drawn
    over the bars: from where to where each was seen."""
    drawn = []
    for i, (name, shares, texts) in enumerate(rows):
        at, inner = 0.0, ""
        for share, kind in shares:
            width = min(max(share, 0.0), 1.0 - at)
            inner += f'<i class="{kind}" style="width:{width:.2%}"></i>'
            at += width
        for low, high in spreads[i : i + 1]:
            inner += f'<b style="left:{low:.2%};width:{max(high - low, 0.002):.2%}"></b>'
        cells = "".join(f'<td class="n">{text(t)}</td>' for t in texts)
        drawn.append(f'<tr><th scope="row">{text(name)}</th><td class="b"><span class="bar" aria-hidden="true">{inner}'
                     f"</span></td>{cells}</tr>")  # fmt: skip
    first, *others = columns
    head = f'<th scope="col">{text(first)}</th><td></td>'
    head += "".join(f'<th scope="col" class="n">{text(c)}</th>' for c in others)
    return scrolling(f"<table><caption>{text(caption)}</caption><thead><tr>{head}</tr></thead>\n<tbody>"
                     + "\n".join(drawn) + "</tbody></table>", caption)  # fmt: skip


def plot(
    name: str, title: str, seconds: Sequence[float], lines: Sequence[tuple[str, Sequence[float]]],
    shown: Callable[[float], str], top: float | None = None, total: bool = False,
) -> str:  # fmt: skip
    """A figure of ``lines`` over ``seconds``, with its range in words and its numbers in a table. ``name`` tells its
    parts apart from those of other plots; ``shown`` writes a value; ``top`` is the value at the upper edge. A ``total``
    only grows: its last value is what counts."""
    highest = top if top is not None else max((max(values, default=0.0) for _, values in lines), default=0.0)
    end = seconds[-1] if seconds else 0.0
    paths, swatches, said = [], [], []
    for k, (label, values) in enumerate(lines[:MOST_LINES], 1):
        points = " ".join(
            f"{_WIDTH * at / (end or 1.0):.1f},{_HEIGHT - (_HEIGHT - 2) * min(value / (highest or 1.0), 1.0):.1f}"
            for at, value in zip(seconds, values, strict=True)
        )
        paths.append(f'<path class="s{k}" d="M{points}"/>')
        if len(lines) > 1:
            swatches.append('<span><svg class="swatch" viewBox="0 0 32 8" aria-hidden="true">'
                            f'<path class="s{k}" d="M0,4 32,4"/></svg> {text(label)}</span> ')  # fmt: skip
        found = f"mean {shown(sum(values) / max(len(values), 1))}"
        if total:
            found = f"{shown(values[-1] if values else 0.0)} in the end"
        elif len(lines) <= _FEW_LINES:
            found += f", {shown(min(values, default=0.0))} to {shown(max(values, default=0.0))}"
        said.append(f"{label}: {found}" if len(lines) > 1 else found)
    step = max(1, -(-len(seconds) // _MOST_NUMBERS))
    rows = [[duration(at), *(shown(values[i]) for _, values in lines)] for i, at in enumerate(seconds)][::step]
    numbers = table(["after", *(label for label, _ in lines)], rows, 0, f"{title}, over time")
    svg = (f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-labelledby="{name}-t '
           f'{name}-d"><title id="{name}-t">{text(title)}</title><desc id="{name}-d">{text("; ".join(said))}</desc>'
           f"{''.join(paths)}</svg>")  # fmt: skip
    return (
        f'<figure class="plot"><figcaption><strong>{text(title)}</strong> <span class="soft">'
        f"{text('; '.join(said))}</span></figcaption>\n"
        f'<div class="ends"><span>{text(shown(highest))}</span></div>{svg}'
        f'<div class="ends"><span>0 s</span><span>{text(duration(end))}</span></div>'
        + (f"<p>{''.join(swatches)}</p>" if swatches else "")
        + f"<details><summary>Numbers</summary>{numbers}</details></figure>"
    )


def rates(seconds: Sequence[float], counts: Sequence[float]) -> tuple[list[float], list[float]]:
    """How fast ``counts``, which add up, grew: the borders of equal spans of time, and counts per second before each.
    There are as many spans as the rows can tell apart."""
    at, total = np.asarray(seconds, np.float64), np.asarray(counts, np.float64)
    if len(at) < 2 or at[-1] <= at[0]:
        return [], []
    spans = int(np.clip(len(np.unique(total)) // 2, 1, _MOST_POINTS))
    borders: list[float] = np.linspace(at[0], at[-1], spans + 1).tolist()
    return borders, growth(seconds, counts, borders)


def growth(seconds: Sequence[float], counts: Sequence[float], borders: Sequence[float]) -> list[float]:
    """Counts per second before each of ``borders``; before the first one as after it."""
    grown: Floats = np.diff(np.interp(borders, seconds, counts)) / np.diff(borders)
    return [float(grown[0]), *grown.tolist()]


def thinned(seconds: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most so many points as a plot can show: means of equal spans."""
    n = len(seconds)
    parts = np.array_split(np.arange(n), min(n, _MOST_POINTS)) if n else []
    return ([float(seconds[p[-1]]) for p in parts], [float(np.mean(np.asarray(values, np.float64)[p])) for p in parts])


def over_time(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """``over_time`` of a report where it is complete enough to draw: reports may be of other versions."""
    wanted = {"seconds", "samples", "queues", "operators", "memory"}
    return found if found and wanted <= set(found) and len(found["seconds"]) > 1 else None
