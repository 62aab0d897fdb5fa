"""Show the results of a benchmark, as tables for the terminal and as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..show.html import in_words, operators, plots, work_bars
from ..show.page import Section, lead, listing, page, text
from ..show.page import table as html_table
from ..show.plots import bars
from ..show.tables import Row, table
from ..show.terminal import operator_table
from ..wording import count, duration, rate, size
from .run import OURS, median_of

_KINDS = {OURS: "busy"}
"""CSS class of the bars of dali-run in charts. Bars of other libraries have another class."""
_LIMITS = {
    "page_cache_to_memory": "reading the data set from the page cache",
    "memory_copy": "copying memory",
    "upload_pinned": "upload to the GPU from page-locked memory",
    "device_copy": "copying on the GPU",
}
_COLUMNS = ("setting", "engine", "median", "min", "max", "against", "first batch", "memory")
_WITH_BASELINE, _WITH_GPU = "of baseline", "GPU memory"
"""Names of table columns that are shown only if some row has a value there."""


def bench_view(report: Mapping[str, Any]) -> RenderableType:
    """Return the tables of a benchmark for the terminal: every setting; then the operators and the bottleneck of the
    fastest setting of dali-run."""
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
        bottleneck = best["report"]["bottleneck"]
        parts += [Text(), Text(f"{OURS}, {best['setting']}", "bold"), operator_table(best["report"]), Text(),
                  Text(bottleneck["sentence"], "bold"), Text(f"To go faster: {bottleneck['advice']}")]  # fmt: skip
    return Group(*parts)


def bench_html(report: Mapping[str, Any]) -> str:
    """Return an HTML page about a benchmark, which needs no other files."""
    measured = [r for r in report["results"] if median_of(r) is not None]
    fastest = max((r["samples_per_second"]["max"] for r in measured), default=0.0) or 1.0
    spreads = [(r["samples_per_second"]["min"] / fastest, r["samples_per_second"]["max"] / fastest) for r in measured]
    speeds = [
        (f"{r['engine']} {r['setting']}", [((median_of(r) or 0.0) / fastest, _KINDS.get(r["engine"], "blocked"))],
         [rate(median_of(r)), f"{rate(r['samples_per_second']['min'])} to {rate(r['samples_per_second']['max'])}"])
        for r in measured
    ]  # fmt: skip
    drawn = bars(("engine and setting", "median", "range"), speeds, "Bars: medians; lines: from min to max.", spreads)
    problems = [(r["engine"], r["setting"], _problem(r)) for r in report["results"] if _problem(r)]
    limits = _limits(report)
    sections = [
        Section("Samples per second", [drawn, html_table(*_table(report), 2, "All that was measured")]),
        Section("Not measured", [html_table(("engine", "setting", "why"), problems, 3, "What was not measured")]
                if problems else []),
        Section("Limits of the machine", [html_table(("limit", "speed"), limits, 1, "Speeds that no program can pass")]
                if limits else []),
    ]  # fmt: skip
    head = [f"<p>{text(_machine(report))}</p>"]
    best = _best(report)
    if best is not None:
        bottleneck = best["report"]["bottleneck"]
        head.append(lead(bottleneck["sentence"], bottleneck["advice"]))
        sections += [
            Section(f"Time per operator: {best['setting']}",
                    [work_bars(best["report"]["operators"]), operators(best["report"]["operators"])]),
            Section(f"Over time: {best['setting']}", plots(best["report"])),
        ]  # fmt: skip
    m = report["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in m["versions"].items())
    facts = [(k, v) for k, v in (("measured", m.get("time")), ("system", m.get("system")), ("Python", m.get("python")),
                                 ("packages", versions)) if v]  # fmt: skip
    sections.append(
        Section(
            "This benchmark",
            [
                "<h3>Command</h3>",
                listing(" ".join(report["command"]), "Command"),
                html_table(("what", "value"), facts, 2, "Where and when it ran"),
            ],
        )
    )
    title = f"Benchmark of {', '.join(report['specs'])}"
    return page(title, "dali-run bench", head, sections, f"dali-run {m['versions'].get(OURS, '')} {m.get('time', '')}")


def _machine(report: Mapping[str, Any]) -> str:
    m = report["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in m["versions"].items() if k == OURS)
    peers = {f"{r['engine']} {r['version']}" for r in report["results"] if r.get("version")}
    programs = ", ".join([versions, *sorted(peers)])
    return (
        f"{in_words(m)}; {programs}; "
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
        own_median = ours[r["setting"]]
        against = f"{own_median / median:.2f}x" if r["engine"] != OURS and own_median and median else ""
        memory = (r["memory"] or {}).get("peak_host_bytes")
        rows.append([r["setting"], r["engine"], *(rate(speeds[k]) for k in ("median", "min", "max")), against,
                     duration(r["first_batch_seconds"]), size(memory) if memory else "-"])  # fmt: skip
    return rows


def _table(report: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the rows of the table of results. Columns for a baseline and for GPU memory are included
    only if there are values."""
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
    """Return the GPU memory in bytes that a result reports; None if it is not known."""
    return (row.get("memory") or {}).get("gpu_pool_bytes")


def _limits(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    limits = report["limits_gb_per_second"] or {}
    return [(text, f"{limits[k]:.1f} GB/s") for k, text in _LIMITS.items() if k in limits]


def _problem(row: Mapping[str, Any]) -> str:
    return str(row.get("refused") or row.get("error") or "")


def _best(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the result of dali-run with the highest speed; None if there is none."""
    results: Sequence[Mapping[str, Any]] = [r for r in report["results"] if r["engine"] == OURS and median_of(r)]
    return max(results, key=lambda r: median_of(r) or 0.0, default=None)
