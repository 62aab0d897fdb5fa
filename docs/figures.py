"""Tables and the chart of rates in README.md and docs/performance.md, filled from benchmarks/results.

A page marks a table with `<!-- figures: NAME -->` and `<!-- end of figures -->`; `docs/generate.py` writes the lines
between. All figures of a table come from one file with the results of one machine. benchmarks/gate.py writes the files
in the folder `gate`; the others hold only the rates that a table shows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from docs.rooms_svg import svg

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
CPU, GPU = "gate/cpu-2cores", "gate/nvidia-h100-16cores"
"""Results of the gate that README.md shows."""
WORK = {
    "val": "ImageNet JPEGs from files to normalized 224 x 224 tensors, images/s",
    "val-2gib": "ImageNet JPEGs to tensors with `memory: {gpu: 2GiB}`, images/s",
    "val-3000": "ImageNet JPEGs to tensors, read by a program that takes 3,000 images/s",
    "train": "ImageNet JPEGs: random crop, mirror, normalize, images/s",
    "mix": "web images of mixed sizes: JPEG of all kinds, PNG, WebP, images/s",
    "tfrecord": "ImageNet JPEGs from TFRecord, with checksums, to tensors, images/s",
    "progressive": "progressive JPEGs to tensors, images/s",
    "photos": "JPEGs of 12 megapixels to tensors, images/s",
    "png": "PNG to tensors, images/s",
    "webp": "WebP to tensors, images/s",
    "wav": "WAV to log-mel features by DALI's own program, clips/s",
    "video": "H.264 video of 720p, shuffled sequences of 16 frames, frames/s",
    "augmentation": "RandAugment of images on the GPU, images/s",
    "thumbnails": "JPEGs of 32 x 32 in a TFRecord, decoded and mirrored, images/s",
    "run-jpeg": "`dali-run run`: JPEG to 256-pixel JPEG in tar shards on disk, images/s",
    "request-jpeg": "one JPEG to a tensor, milliseconds (median)",
    "request-webp": "one WebP to a tensor, milliseconds (median)",
}
"""Measurements of the rows of the gate."""


def results(kind: str) -> dict[str, Any]:
    """Return the results in a file of the folder `RESULTS`, by its name without the suffix."""
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


PEERS = {"nvidia.dali": "DALI", "torchvision": "torchvision with nvJPEG", "torch.utils.data": "DataLoader, 16 workers"}
"""Names of other packages in the results, and in tables."""


def rates(kind: str, first: str = "job", peers: Mapping[str, str] = PEERS, ratio: bool = False) -> str:
    """Return a table of rates that are plain numbers, with the rates of ``peers``; empty cells if there are none."""
    rows = results(kind)["rows"]
    shown = [p for p in peers if any(p in row for row in rows.values())]
    heads = ["dali-run", *(peers[p] for p in shown), *(["ratio to DALI"] if ratio else [])]
    lines = [f"| {first} | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for name, row in rows.items():
        cells = [f"{row[p]:,}" if p in row else "" for p in ("dali_run", *shown)]
        times = row["dali_run"] / row.get("nvidia.dali", 1)
        cells += [f"{times:.2f}x" if times < 1 else f"{times:.1f}x"] if ratio else []
        lines.append(f"| {WORK.get(name, name)} | {' | '.join(cells)} |")
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
    """Return the README's sentences on speed: ratios to DALI on a CPU, rate and memory of a GPU, time of a request."""
    cpu, gpu = results(CPU)["rows"], results(GPU)["rows"]
    ratios = [cpu[row]["nvidia.dali"]["cpu_ms"] / cpu[row]["dali_run"]["cpu_ms"] for row in CHART]
    val, small = gpu["val"]["dali_run"], gpu["val-2gib"]["dali_run"]
    requests = results("h100_training_and_requests")["rows"]
    one = next(row for name, row in requests.items() if name.startswith("one JPEG"))
    return (f"- **Fast.** On CPUs {min(ratios):.1f} to {max(ratios):.1f} times DALI's images per second of processor "
            f"time. On one H100 {val['rate']:,.0f}\n  ImageNet images/s with {val['gpu_gb']:.1f} GB of GPU memory, "
            f"{small['rate']:,.0f} with {small['gpu_gb']:.1f} GB. Slower than DALI: one JPEG per request,\n"
            f"  {one['dali_run']} ms instead of {one['nvidia.dali']}. On your data: "
            "`dali-run bench spec.yaml`.")  # fmt: skip


EVERY = {"h200_every": "ratio", "cpu_every": "busy_ratio"}
"""Results of benchmarks/operators/every.py, and the compared column: rates on a GPU, processor time on a CPU."""


def calls(kind: str) -> dict[str, float]:
    """Return dali-run's rate (or rate per processor time) relative to DALI's, by call, if both finished it."""
    column = EVERY[kind]
    return {row["case"]: row[column] for row in results(kind)["rows"] if column in row}


def spread(kind: str) -> str:
    """Return a table with the number of calls for each range of ratios."""
    found = list(calls(kind).values())
    bounds = (5, 2, 1, 0)
    counts = [sum(low <= x < high for x in found) for low, high in zip(bounds, (math.inf, *bounds), strict=False)]
    mean = f"{math.exp(math.fsum(map(math.log, found)) / len(found)):.1f}"
    return ("| calls | 5 and more | 2 to 5 | 1 to 2 | below 1 | geometric mean |\n|---:|---:|---:|---:|---:|---:|\n"
            f"| {len(found)} | {' | '.join(map(str, counts))} | {mean} |")  # fmt: skip


def below_one(kind: str) -> str:
    """Return a table of the calls with a ratio below 1, the lowest first."""
    rows = [
        f"| `{name}` | {ratio:.2f} |" for name, ratio in sorted(calls(kind).items(), key=lambda x: x[1]) if ratio < 1
    ]
    return "\n".join(["| call | ratio |", "|---|---:|", *rows])


def by_operator() -> str:
    """Return a table of operators, or of modules such as `math`, with the geometric means of their calls' ratios."""
    groups: dict[str, dict[str, list[float]]] = {}
    for kind in EVERY:
        for case, ratio in calls(kind).items():
            name = case.partition(":")[0]
            head = name.partition(".")[0]
            name = f"{head}.*" if head in ("math", "random", "reductions", "transforms", "noise") else name
            groups.setdefault(name, {}).setdefault(kind, []).append(ratio)
    lines = ["| operator | calls | on a GPU | on two cores |", "|---|---:|---:|---:|"]
    for name, found in sorted(groups.items()):
        means = [
            f"{math.exp(math.fsum(map(math.log, found[k])) / len(found[k])):.2f}" if k in found else "" for k in EVERY
        ]
        lines.append(f"| `{name}` | {max(map(len, found.values()))} | {' | '.join(means)} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    "fast": fast,
    "two CPU cores": lambda: beside_dali(CPU),
    "one H100": lambda: with_memory(GPU),
    "machine of the CPU": lambda: machine(CPU),
    "machine of the GPU": lambda: machine(GPU),
    "with DALI on an H200": lambda: rates("h200_with_dali", ratio=True),
    "machine with DALI on an H200": lambda: machine("h200_with_dali"),
    "training": lambda: rates("h100_training_and_requests", "loader"),
    "machine of the training": lambda: machine("h100_training_and_requests"),
    "sixteen cores": lambda: rates("h100_cores", "threads"),
    "machine of sixteen cores": lambda: machine("h100_cores"),
    "operators on a GPU": lambda: spread("h200_every"),
    "operators below DALI on a GPU": lambda: below_one("h200_every"),
    "operators on two cores": lambda: spread("cpu_every"),
    "operators below DALI on two cores": lambda: below_one("cpu_every"),
    "every operator": by_operator,
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


def chart(kind: str = CPU) -> str:
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
