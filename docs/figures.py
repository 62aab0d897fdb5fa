"""Tables and the chart of rates in README.md and docs/performance.md, filled from benchmarks/results/gate.

A page marks a table with `<!-- figures: NAME -->` and `<!-- end of figures -->`; `docs/generate.py` writes the lines
between. All figures of a table come from one run of benchmarks/gate.py on one machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docs.rooms_svg import svg

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "gate"
WORK = {
    "val": "ImageNet JPEGs from files to normalised 224 x 224 tensors, images/s",
    "val-2gib": "ImageNet JPEGs to tensors with `memory: {gpu: 2GiB}`, images/s",
    "val-3000": "ImageNet JPEGs to tensors, read by a program that takes 3,000 images/s",
    "train": "ImageNet JPEGs: random crop, mirror, normalise, images/s",
    "mix": "web images of mixed sizes: JPEG of all kinds, PNG, WebP, images/s",
    "png": "PNG to tensors, images/s",
    "webp": "WebP to tensors, images/s",
    "wav": "WAV to log-mel features by DALI's own program, clips/s",
    "thumbnails": "JPEGs of 32 x 32 in a TFRecord, decoded and mirrored, images/s",
    "run-jpeg": "`dali-run run`: JPEG to 256-pixel JPEG in tar shards on disk, images/s",
    "request-jpeg": "one JPEG to a tensor, milliseconds (median)",
    "request-webp": "one WebP to a tensor, milliseconds (median)",
}
"""Measurements of the rows of the gate."""


def results(kind: str) -> dict[str, Any]:
    """Return the newest results of one kind of machine."""
    return dict(json.loads((RESULTS / f"{kind}.json").read_text()))


def beside_dali(kind: str) -> str:
    """Return a table of rates and DALI's rates, with the ratio of processor time per image."""
    lines = ["| job | dali-run | DALI | processor time, DALI's to dali-run's |", "|---|---:|---:|---:|"]
    for row, work in WORK.items():
        measured = results(kind)["rows"].get(row, {})
        if "dali_run" in measured:
            ours, dali = measured["dali_run"], measured.get("nvidia.dali")
            peer = (f"{dali['rate']:,.0f}", f"{dali['cpu_ms'] / ours['cpu_ms']:.1f}x") if dali else ("cannot write", "")
            lines.append(f"| {work} | {ours['rate']:,.0f} | {peer[0]} | {peer[1]} |")
    return "\n".join(lines)


def with_memory(kind: str) -> str:
    """Return a table of rates, or milliseconds, and peak GPU memory."""
    lines = ["| job | dali-run | GPU memory |", "|---|---:|---:|"]
    for row, work in WORK.items():
        if ours := results(kind)["rows"].get(row, {}).get("dali_run"):
            value = f"{ours['p50_ms']:.1f}" if "p50_ms" in ours else f"{ours['rate']:,.0f}"
            lines.append(f"| {work} | {value} | {ours['gpu_gb']:.1f} GB |")
    return "\n".join(lines)


def machine(kind: str) -> str:
    """Return day, commit and machine of a run as a sentence."""
    found = results(kind)
    hardware = f"{found['gpu']}, {found['cores']} cores" if found["gpu"] else f"{found['cores']} CPU cores"
    return f"**{hardware}.** {found['date'][:10]}, commit {found['versions']['commit']}."


def fast() -> str:
    """The README's sentence on speed: the best and the worst ratio to DALI on a CPU, the rate and memory of a GPU."""
    cpu, gpu = results("cpu-2cores")["rows"], results("nvidia-h100-16cores")["rows"]
    ratios = [cpu[row]["nvidia.dali"]["cpu_ms"] / cpu[row]["dali_run"]["cpu_ms"] for row in CHART]
    val, small = gpu["val"]["dali_run"], gpu["val-2gib"]["dali_run"]
    return (f"- **Fast.** {min(ratios):.1f} to {max(ratios):.1f} times DALI's images per second of processor time. "
            f"On one H100 {val['rate']:,.0f} ImageNet\n  images/s with {val['gpu_gb']:.1f} GB of GPU memory, "
            f"{small['rate']:,.0f} with {small['gpu_gb']:.1f} GB. Single requests are slower than DALI's.")  # fmt: skip


TABLES: dict[str, Callable[[], str]] = {
    "fast": fast,
    "two CPU cores": lambda: beside_dali("cpu-2cores"),
    "one H100": lambda: with_memory("nvidia-h100-16cores"),
    "machine of the CPU": lambda: machine("cpu-2cores"),
    "machine of the GPU": lambda: machine("nvidia-h100-16cores"),
}


def filled(page: str) -> str:
    """Return the page with its tables filled. Raises KeyError for a name that is not in TABLES."""

    def table(mark: re.Match[str]) -> str:
        return f"{mark[1]}\n{TABLES[mark[2]]()}\n{mark[3]}"

    return re.sub(r"(<!-- figures: ([^\n]*) -->)\n.*?(<!-- end of figures -->)", table, page, flags=re.S)


WIDTH, LEFT, BAR = 800, 250, 17
CHART = {
    "val": "ImageNet to tensors",
    "train": "random crop, mirror",
    "mix": "mixed web images",
    "thumbnails": "32 x 32 thumbnails",
}
"""Rows of the gate in the chart."""
TITLE = "Images per second of processor time, NVIDIA DALI 2.4 = 1, two CPU cores"


def chart(kind: str = "cpu-2cores") -> str:
    """Return an SVG chart of images per second of processor time, relative to DALI."""
    rows = results(kind)["rows"]
    parts = [f'<text class="head" x="12" y="22">{TITLE}</text>']
    largest = max(rows[row]["nvidia.dali"]["cpu_ms"] / rows[row]["dali_run"]["cpu_ms"] for row in CHART)
    scale = (WIDTH - LEFT - 120) / largest
    y = 38
    for row, name in CHART.items():
        ours, dali = rows[row]["dali_run"], rows[row]["nvidia.dali"]
        parts.append(f'<text class="folder" x="12" y="{y + 22}">{name}</text>')
        for side, ratio, kind_of_bar in (("dali-run", dali["cpu_ms"] / ours["cpu_ms"], "step"), ("DALI", 1.0, "file")):
            width = ratio * scale
            parts.append(f'<rect class="{kind_of_bar}" x="{LEFT}" y="{y}" width="{width:.0f}" height="{BAR}"/>')
            parts.append(f'<text class="head" x="{LEFT + width + 8:.0f}" y="{y + 13}">{side} {ratio:.1f}</text>')
            y += BAR + 2
        y += 12
    return svg("Images per second of processor time, dali-run and DALI", WIDTH, y, parts)
