"""A report as one HTML file that needs nothing else: tables, and bars as inline SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ..wording import count, duration, rate, size

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1d2330; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.lead { background: #fff4d6; border-left: 4px solid #e0a100; padding: .6rem 1rem; margin: 1.2rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { text-align: left; font-weight: 600; color: #6a7180; border-bottom: 1px solid #d5d9e2; }
td, th { padding: .25rem .6rem .25rem 0; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } text { font: 13px system-ui, sans-serif; fill: #1d2330; }
.key span { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 1rem; border-radius: 2px; }
"""
_BUSY, _WAITING, _BLOCKED, _FREE, _INK = "#2f7ed8", "#b8c4d6", "#e0703c", "#eef1f6", "#1d2330"
_NAMES, _WIDTH, _ROW = 260, 900, 26
"""Of the drawings: where bars begin, how wide it all is, how high a row is."""
_LETTER, _LONGEST = 7.2, 64
"""Width of a letter, about; letters of a name that are shown."""


def html_report(report: Mapping[str, Any]) -> str:
    """The page of a report.json."""
    samples = report["samples"]
    title = str(report.get("name") or "job")
    facts = [f"{count(samples.get('read', 0), 'sample')} read in {duration(report['seconds'])}",
             rate(report["samples_per_second"]), f"on {report['device']}", count(report["threads"], "thread"),
             f"{samples.get('written', 0):,} written", f"{samples.get('rejected', 0):,} rejected",
             *([f"{samples['kept']:,} kept their bytes"] if "kept" in samples else [])]  # fmt: skip
    found = report["bottleneck"]
    parts = [
        f"<h1>{escape(title)}</h1><p>{escape(', '.join(facts))}</p>",
        f'<p class="lead"><b>{escape(found["sentence"])}</b><br>To go faster: {escape(found["advice"])}</p>',
        "<h2>Time per operator</h2>",
        work_bars(report["operators"]),
        "<h2>Stage utilisation</h2>",
        _stages(report),
        "<h2>Operators</h2>",
        _operators(report["operators"]),
        *_memory(report.get("memory") or {}),
        *_counts("Rejected samples", "reason", report.get("rejected", {})),
        *_decoders(report),
        *_counts("Fallbacks", "what happened", report.get("fallbacks", {})),
        *_counts("Bytes of containers to the GPU", "how", report.get("uploads", {})),
    ]
    return page(title, parts)


def page(title: str, parts: Sequence[str]) -> str:
    """A whole page of ``parts``, which are HTML."""
    head = f'<meta charset="utf-8"><title>{escape(title)}: report of dali-run</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _busy(operator: Mapping[str, Any]) -> float:
    return float(operator["gpu_seconds"] or operator["cpu_seconds"])


def work_bars(operators: Sequence[Mapping[str, Any]]) -> str:
    """A bar for each operator: its busy seconds."""
    most = max((_busy(o) for o in operators), default=0.0) or 1.0
    rows = [(f"{o['name']} ({o['runs_on']})", [(_busy(o) / most, _BUSY)], duration(_busy(o))) for o in operators]
    return bars(rows)


def _stages(report: Mapping[str, Any]) -> str:
    """A bar for each stage: how its time was spent."""
    seconds = report["seconds"] or 1.0
    by_name = {o["name"]: _busy(o) for o in report["operators"]}
    rows = []
    for s in report["stages"]:
        busy = s["busy_seconds"]
        if s["kind"] == "chunk":  # the work is in the threads, not in the stage's own one
            busy = sum(by_name.get(n, 0.0) for n in s["operators"]) / report["threads"]
        spent = ((busy, _BUSY), (s["waiting_for_input_seconds"], _WAITING), (s["blocked_on_output_seconds"], _BLOCKED))
        rows.append((s["id"], [(x / seconds, color) for x, color in spent], f"{busy / seconds:.0%} busy"))
    key = "".join(f'<span style="background:{c}"></span>{name}' for name, c in
                  (("busy", _BUSY), ("waits for input", _WAITING), ("blocked by output", _BLOCKED)))  # fmt: skip
    return f'<p class="key">{key}</p>' + bars(rows)


def bars(
    rows: Sequence[tuple[str, Sequence[tuple[float, str]], str]], spreads: Sequence[tuple[float, float]] = ()
) -> str:
    """Named rows of shares (0..1, cut there) drawn one after the other, with a text after each; ``spreads``: from where
    to where (0..1) each row was seen, as a line."""
    longest = max((min(len(name), _LONGEST) for name, _, _ in rows), default=0)
    begin = max(_NAMES, round(_LETTER * longest) + 12)
    room = _WIDTH - begin - 110
    drawn = []
    for i, (name, shares, text) in enumerate(rows):
        top = i * _ROW
        shown = name if len(name) <= _LONGEST else f"{name[: _LONGEST // 2]}…{name[1 - _LONGEST // 2 :]}"
        drawn.append(f'<text x="{begin - 8}" y="{top + 17}" text-anchor="end">{escape(shown)}</text>')
        drawn.append(f'<rect x="{begin}" y="{top + 4}" width="{room}" height="{_ROW - 8}" fill="{_FREE}"/>')
        at = 0.0
        for share, color in shares:
            width = min(max(share, 0.0), 1.0 - at)
            x = begin + at * room
            drawn.append(f'<rect x="{x:.1f}" y="{top + 4}" width="{width * room:.1f}" height="{_ROW - 8}" '
                         f'fill="{color}"/>')  # fmt: skip
            at += width
        for low, high in spreads[i : i + 1]:
            ends = f'x1="{begin + low * room:.1f}" x2="{begin + high * room:.1f}"'
            drawn.append(f'<line {ends} y1="{top + 13}" y2="{top + 13}" stroke="{_INK}" stroke-width="2"/>')
        drawn.append(f'<text x="{begin + room + 8}" y="{top + 17}">{escape(text)}</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {max(1, len(rows)) * _ROW}" role="img">{"".join(drawn)}</svg>'


def _operators(operators: Sequence[Mapping[str, Any]]) -> str:
    columns = ("operator", "on", "calls", "samples", "busy", "p50 ms", "p95 ms", "speed", "in", "out")
    rows = [
        (o["name"], o["runs_on"], f"{o['calls']:,}", f"{o['samples']:,}", duration(_busy(o)), f"{o['p50_ms']:.2f}",
         f"{o['p95_ms']:.2f}", rate(o["samples_per_second"]), size(o["bytes_in"]), size(o["bytes_out"]))
        for o in operators
    ]  # fmt: skip
    return table(columns, rows, text=2)


def _memory(memory: Mapping[str, float]) -> list[str]:
    """The most memory that was held, beside its budget where there is one."""
    names = (
        ("host_peak_bytes", "batches and work on the host", "host_budget_bytes"),
        ("gpu_peak_bytes", "batches and work on the GPU", "gpu_budget_bytes"),
        ("peak_host_bytes", "the whole process", ""),
        ("gpu_pool_bytes", "taken from the GPU, spare blocks included", ""),
    )
    rows = [(what, size(memory[k]), size(memory[of]) if of in memory else "-") for k, what, of in names if k in memory]
    return ["<h2>Memory</h2>", table(("of", "at most", "budget"), rows, text=1)] if rows else []


def _decoders(report: Mapping[str, Any]) -> list[str]:
    if not report.get("decoders"):
        return []
    times = report.get("decoder_times", {})
    rows = [
        (decoder, f"{n:,}", *(f"{times.get(decoder, {}).get(k, 0.0):.3f}" for k in ("busy_seconds", "waited_seconds")))
        for decoder, n in report["decoders"].items()
    ]
    return ["<h2>Images by decoder</h2>", table(("decoder", "images", "CPU s", "batches waited s"), rows, text=1)]


def _counts(title: str, what: str, counts: Mapping[str, int]) -> list[str]:
    if not counts:
        return []
    return [f"<h2>{title}</h2>", table((what, "samples"), [(k, f"{v:,}") for k, v in counts.items()], text=1)]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], text: int) -> str:
    """A table; the first ``text`` columns are text, the others numbers."""

    def row(cells: Sequence[str], tag: str) -> str:
        inner = "".join(f"<{tag}{'' if i < text else ' class=n'}>{escape(str(c))}</{tag}>" for i, c in enumerate(cells))
        return f"<tr>{inner}</tr>"

    return f"<table>{row(columns, 'th')}{''.join(row(r, 'td') for r in rows)}</table>"
