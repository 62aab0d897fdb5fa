"""Reports to make HTML pages from, and a parser of pages that is strict about their structure."""

from __future__ import annotations

import io
from html.parser import HTMLParser
from typing import Any

from PIL import Image

VOID = {"meta", "img", "br", "link", "input"}


def jpeg(color: str = "teal", size: tuple[int, int] = (120, 80)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, color).save(out, "JPEG")
    return out.getvalue()


def operator(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "op": name, "runs_on": "cpu", "stage": "00:read", "calls": 2, "samples": 1200,
            "bytes_in": 0, "bytes_out": 3 << 20, "cpu_seconds": 0.5, "gpu_seconds": 0.0, "p50_ms": 1.25, "p95_ms": 2.5,
            "samples_per_second": 2400.0, **changes}  # fmt: skip


def stage(name: str, kind: str, *operators: str, **changes: float) -> dict[str, Any]:
    return {"id": name, "kind": kind, "operators": list(operators), "busy_seconds": 0.1,
            "waiting_for_input_seconds": 0.0, "blocked_on_output_seconds": 0.0, **changes}  # fmt: skip


def summary() -> dict[str, Any]:
    """Return the part of a report that a terminal shows."""
    return {
        "name": "job", "device": "gpu", "threads": 4, "seconds": 2.0, "samples_per_second": 600.0,
        "samples": {"read": 1200, "written": 1199, "rejected": 1},
        "operators": [
            operator("Reader"),
            operator("color", stage="01:cpu", cpu_seconds=4.0),
            operator("resize", stage="02:gpu", runs_on="gpu", cpu_seconds=0.0, gpu_seconds=1.5),
        ],
        "stages": [
            stage("00:read", "whole", "Reader", busy_seconds=0.5, blocked_on_output_seconds=1.0),
            stage("01:cpu", "chunk", "color"),
            stage("02:gpu", "device", "resize"),
            stage("write", "sink", busy_seconds=0.2),
        ],
        "rejected": {"truncated": 1},
        "decoders": {"cuda": 1100, "engines": 99},
        "fallbacks": {"out of GPU memory: batch halved": 2},
        "bottleneck": {"what": "gpu", "share": 0.75, "sentence": "The GPU holds the job back.", "advice": "More GPUs."},
    }  # fmt: skip


def report(**changes: Any) -> dict[str, Any]:
    """Return a report with everything that a page can show, with ``changes``."""
    rows = 41
    seconds = [k * 0.05 for k in range(rows)]
    return {
        **summary(),
        "uploads": {"registered": 5 << 20},
        "memory": {"peak_host_bytes": 3 << 30, "host_budget_bytes": 2 << 30, "host_peak_bytes": 1 << 30},
        "started": "2026-05-04T03:02:01+00:00",
        "machine": {"time": "2026-05-04T03:02:03+00:00", "cpu": "A processor", "usable_cores": 4, "cores": 8,
                    "gpus": ["A GPU"], "system": "Linux 6", "python": "3.11.7", "versions": {"dali-run": "0.1.0"}},
        "over_time": {
            "seconds": seconds, "samples": [k * k for k in range(rows)], "rejected": [0] * 20 + [1] * 21,
            "queues": {"00:read": {"depth": 4, "fill": [k % 5 for k in range(rows)]},
                       "01:cpu": {"depth": 2, "fill": [1] * rows}},
            "operators": {"Reader": [k * 0.01 for k in range(rows)], "color": [k * 0.1 for k in range(rows)],
                          "resize": [k * 0.03 for k in range(rows)]},
            "memory": {"process": [1 << 30] * rows, "host": [k << 20 for k in range(rows)], "gpu": [2 << 30] * rows},
            "gpu_busy_seconds": [k * 0.04 for k in range(rows)],
        },
        **changes,
    }  # fmt: skip


class Page(HTMLParser):
    """Parser of an HTML page. Raises AssertionError if tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> was never opened"
        assert self._open[-1] == tag, f"</{tag}> where {self._open} is open"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style" and data.strip():
            self.texts.append(data.strip())

    def named(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of all elements with this tag."""
        return [attributes for name, attributes in self.tags if name == tag]
