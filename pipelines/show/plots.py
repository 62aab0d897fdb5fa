"""Drawings for pages: bars in tables, and small plots over time, each with its numbers."""

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
"""Largest number of lines in a plot."""
_FEW_LINES = 2
"""Largest number of lines in a plot whose ranges are written above it. For more lines, ranges are only in the table."""
_MOST_POINTS = 60
_MOST_NUMBERS = 24
"""Largest number of rows in the table of numbers below a plot."""


def bars(
    columns: Sequence[str], rows: Sequence[tuple[str, Sequence[tuple[float, str]], Sequence[str]]], caption: str,
    spreads: Sequence[tuple[float, float]] = (),
) -> str:  # fmt: skip
    """Return an HTML table with a bar in every row. A row is (name, shares, further cells of text). The shares (0..1,
    each with its class: busy, waits, blocked) are drawn next to each other. ``columns`` are the headings of the first
    cell and the texts; ``spreads`` (lowest and highest value) are drawn over the bars."""
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
    """Return an HTML figure of ``lines`` over ``seconds``, with the range of each line as text and its numbers in a
    table. ``name`` is a prefix that makes HTML ids unique; ``shown`` formats a value; ``top`` is the value at the upper
    edge. ``total``: the lines only grow, so that the last value is written instead of the mean."""
    highest = top if top is not None else max((max(values, default=0.0) for _, values in lines), default=0.0)
    end = seconds[-1] if seconds else 0.0
    paths, swatches, texts = [], [], []
    for k, (label, values) in enumerate(lines[:MOST_LINES], 1):
        points = " ".join(
            f"{_WIDTH * at / (end or 1.0):.1f},{_HEIGHT - (_HEIGHT - 2) * min(value / (highest or 1.0), 1.0):.1f}"
            for at, value in zip(seconds, values, strict=True)
        )
        paths.append(f'<path class="s{k}" d="M{points}"/>')
        if len(lines) > 1:
            swatches.append('<span><svg class="swatch" viewBox="0 0 32 8" aria-hidden="true">'
                            f'<path class="s{k}" d="M0,4 32,4"/></svg> {text(label)}</span> ')  # fmt: skip
        summary = f"mean {shown(sum(values) / max(len(values), 1))}"
        if total:
            summary = f"{shown(values[-1] if values else 0.0)} in the end"
        elif len(lines) <= _FEW_LINES:
            summary += f", {shown(min(values, default=0.0))} to {shown(max(values, default=0.0))}"
        texts.append(f"{label}: {summary}" if len(lines) > 1 else summary)
    step = max(1, -(-len(seconds) // _MOST_NUMBERS))
    rows = [[duration(at), *(shown(values[i]) for _, values in lines)] for i, at in enumerate(seconds)][::step]
    numbers = table(["after", *(label for label, _ in lines)], rows, 0, f"{title}, over time")
    svg = (f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-labelledby="{name}-t '
           f'{name}-d"><title id="{name}-t">{text(title)}</title><desc id="{name}-d">{text("; ".join(texts))}</desc>'
           f"{''.join(paths)}</svg>")  # fmt: skip
    return (
        f'<figure class="plot"><figcaption><strong>{text(title)}</strong> <span class="soft">'
        f"{text('; '.join(texts))}</span></figcaption>\n"
        f'<div class="ends"><span>{text(shown(highest))}</span></div>{svg}'
        f'<div class="ends"><span>0 s</span><span>{text(duration(end))}</span></div>'
        + (f"<p>{''.join(swatches)}</p>" if swatches else "")
        + f"<details><summary>Numbers</summary>{numbers}</details></figure>"
    )


def rates(seconds: Sequence[float], counts: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the growth of a running total over time, as (borders of equal time spans, counts per second before each
    border). ``counts`` is the total at the times ``seconds``. Finer data gives more spans."""
    at, total = np.asarray(seconds, np.float64), np.asarray(counts, np.float64)
    if len(at) < 2 or at[-1] <= at[0]:
        return [], []
    spans = int(np.clip(len(np.unique(total)) // 2, 1, _MOST_POINTS))
    borders: list[float] = np.linspace(at[0], at[-1], spans + 1).tolist()
    return borders, growth(seconds, counts, borders)


def growth(seconds: Sequence[float], counts: Sequence[float], borders: Sequence[float]) -> list[float]:
    """Return the growth of the running total ``counts``, in counts per second, in the time span before each of
    ``borders`` (in seconds). The first value repeats the second."""
    grown: Floats = np.diff(np.interp(borders, seconds, counts)) / np.diff(borders)
    return [float(grown[0]), *grown.tolist()]


def thinned(seconds: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return (seconds, values) of a line with at most as many points as a plot can display: means over equal time
    spans."""
    n = len(seconds)
    parts = np.array_split(np.arange(n), min(n, _MOST_POINTS)) if n else []
    return ([float(seconds[p[-1]]) for p in parts], [float(np.mean(np.asarray(values, np.float64)[p])) for p in parts])


def over_time(course: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return ``course``, the field ``over_time`` of a report. Return None if fields for plots are missing, as in
    reports of other versions."""
    required = {"seconds", "samples", "queues", "operators", "memory"}
    return course if course and required <= set(course) and len(course["seconds"]) > 1 else None
