"""Results of a benchmark, as tables for the terminal and as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..show.html import bars, page, work_bars
from ..show.html import table as html_table
from ..show.tables import Row, table
from ..show.terminal import operator_table
from ..wording import count, duration, rate, size
from .run import OURS, median_of

_COLORS = {OURS: "#2f7ed8"}
_PEER_COLOR = "#e0703c"
_LIMITS = {
    "page_cache_to_memory": "reading the data set from the page cache",
    "memory_copy": "copying memory",
    "upload_pinned": "upload to the GPU from page-locked memory",
    "device_copy": "copying on the GPU",
}
_COLUMNS = ("setting", "engine", "median", "min", "max", "against", "first batch", "memory")
_WITH_BASELINE, _WITH_GPU = "of baseline", "GPU memory"
"""Columns that are there where there is something to show in them."""


def bench_view(report: Mapping[str, Any]) -> RenderableType:
    """Every setting, then the operators and the bottleneck of the fastest of ours."""
    columns, plain = _table(report)
    rows: list[Row] = [[Text(c, "bold") if c == OURS else c for c in row] for row in plain]
    parts: list[RenderableType] = [Text(_machine(report)), Text(), table(
        columns, rows, numbers=columns[2:],
        dispensable=("memory", _WITH_GPU, "first batch", "min", "max", "against"))]  # fmt: skip
    parts += [Text(f"{r['engine']}, {r['setting']}: {_problem(r)}", "yellow") for r in report["results"] if _problem(r)]
    for name, speed in _limits(report):
        parts.append(Text(f"Limit of the machine: {name}: {speed}"))
    best = _best(report)
    if best is not None:
        found = best["report"]["bottleneck"]
        parts += [Text(), Text(f"{OURS}, {best['setting']}", "bold"), operator_table(best["report"]), Text(),
                  Text(found["sentence"], "bold"), Text(f"To go faster: {found['advice']}")]  # fmt: skip
    return Group(*parts)


def bench_html(report: Mapping[str, Any]) -> str:
    """The page of a benchmark; it needs nothing else."""
    measured = [r for r in report["results"] if median_of(r) is not None]
    most = max((r["samples_per_second"]["max"] for r in measured), default=0.0) or 1.0
    spreads = [(r["samples_per_second"]["min"] / most, r["samples_per_second"]["max"] / most) for r in measured]
    speeds = [
        (f"{r['engine']} {r['setting']}", [((median_of(r) or 0.0) / most, _COLORS.get(r["engine"], _PEER_COLOR))],
         rate(median_of(r)))
        for r in measured
    ]  # fmt: skip
    parts = [f"<h1>Benchmark of {escape(', '.join(report['specs']))}</h1><p>{escape(_machine(report))}</p>",
             "<h2>Samples per second</h2>", bars(speeds, spreads), "<p>Bars: medians; lines: from min to max.</p>",
             html_table(*_table(report), text=2)]  # fmt: skip
    problems = [(r["engine"], r["setting"], _problem(r)) for r in report["results"] if _problem(r)]
    if problems:
        parts += ["<h2>Not measured</h2>", html_table(("engine", "setting", "why"), problems, text=3)]
    if limits := _limits(report):
        parts += ["<h2>Limits of the machine</h2>", html_table(("", "speed"), limits, text=1)]
    best = _best(report)
    if best is not None:
        found = best["report"]["bottleneck"]
        parts += [f"<h2>Time per operator: {escape(best['setting'])}</h2>", work_bars(best["report"]["operators"]),
                  f'<p class="lead"><b>{escape(found["sentence"])}</b><br>To go faster: '
                  f"{escape(found['advice'])}</p>"]  # fmt: skip
    parts.append(f"<p>Command: <code>{escape(' '.join(report['command']))}</code></p>")
    return page("benchmark", parts)


def _machine(report: Mapping[str, Any]) -> str:
    m = report["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in m["versions"].items() if k == OURS)
    peers = {f"{r['engine']} {r['version']}" for r in report["results"] if r.get("version")}
    gpus = "".join(f", {name}" for name in m["gpus"])
    programs = ", ".join([versions, *sorted(peers)])
    return (
        f"{m['cpu']}, {m['usable_cores']} of {count(m['cores'], 'core')}{gpus}; {programs}; "
        f"{count(report['repeats'], 'repeat')} of {report['seconds']:g} s after "
        f"{report['warm_up_batches']} batches of warm-up"
    )


def _rows(report: Mapping[str, Any]) -> list[list[str]]:
    ours = {r["setting"]: median_of(r) for r in report["results"] if r["engine"] == OURS}
    rows = []
    for r in report["results"]:
        speeds, median = r.get("samples_per_second"), median_of(r)
        if speeds is None or median is None:
            rows.append([r["setting"], r["engine"], "refused" if "refused" in r else "failed", *[""] * 5])
            continue
        mine = ours[r["setting"]]
        against = f"{mine / median:.2f}x" if r["engine"] != OURS and mine and median else ""
        memory = (r["memory"] or {}).get("peak_host_bytes")
        rows.append([r["setting"], r["engine"], *(rate(speeds[k]) for k in ("median", "min", "max")), against,
                     duration(r["first_batch_seconds"]), size(memory) if memory else "-"])  # fmt: skip
    return rows


def _table(report: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, with those of the baseline and of a GPU where there are any."""
    columns, rows = list(_COLUMNS), _rows(report)
    if any(_gpu_memory(r) for r in report["results"]):
        columns.append(_WITH_GPU)
        for row, r in zip(rows, report["results"], strict=True):
            row.append(size(held) if (held := _gpu_memory(r)) else "")
    if "baseline" in report:
        columns.append(_WITH_BASELINE)
        before = report["baseline"]["samples_per_second"]
        for row, r in zip(rows, report["results"], strict=True):
            was, now = before.get(r["setting"]), median_of(r)
            row.append(f"{now / was:.1%}" if r["engine"] == OURS and was and now is not None else "")
    return columns, rows


def _gpu_memory(row: Mapping[str, Any]) -> float | None:
    """The GPU memory of an engine, where it is known."""
    return (row.get("memory") or {}).get("gpu_pool_bytes")


def _limits(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = report["limits_gb_per_second"] or {}
    return [(text, f"{found[k]:.1f} GB/s") for k, text in _LIMITS.items() if k in found]


def _problem(row: Mapping[str, Any]) -> str:
    return str(row.get("refused") or row.get("error") or "")


def _best(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The fastest setting of ours."""
    mine: Sequence[Mapping[str, Any]] = [r for r in report["results"] if r["engine"] == OURS and median_of(r)]
    return max(mine, key=lambda r: median_of(r) or 0.0, default=None)
