"""The view of a job at work says what its status says, and fits one screen."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, RenderableType

from dali_run.pipelines.show.live import live_view, live_views


def lines(view: RenderableType, width: int = 60) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(view)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def status(**changes: Any) -> dict[str, Any]:
    return {
        "state": "running", "name": "job", "output": "/out", "part": None, "device": "gpu", "threads": 4,
        "total": 1000, "done": 250, "rejected": 3, "seconds": 5.0, "samples_per_second": 75.0,
        "recent_samples_per_second": [0.0, 40.0, 80.0],
        "operators": [{"name": "Reader", "runs_on": "cpu", "busy": 0.5},
                      {"name": "resize", "runs_on": "gpu", "busy": 1.5}],
        "queues": [{"name": "00:read", "depth": 4, "fill": 1}],
        "bottleneck": {"what": "gpu", "share": 0.9, "sentence": "Bottleneck: the GPU.", "advice": "More GPUs."},
        "memory": {"process": 3 << 30, "host": 1 << 30, "host_limit": 8 << 30, "gpu": 2 << 30, "gpu_limit": 70 << 30},
        "gpu_busy": 0.9, **changes,
    }  # fmt: skip


def test_all_is_said() -> None:
    shown = lines(live_view(status()))
    assert shown[0] == "job on gpu, 4 threads"
    assert shown[1] == f"{'━' * 6}{'─' * 18} 25%  250 of 1,000 samples"
    assert shown[2] == "75.0/s now, 50.0/s on average, 10.00 s left, 3 rejected"
    assert shown[3] == "▁▅█ up to 80.0/s"
    assert next(x.split() for x in shown if x.startswith("resize"))[1:3] == ["gpu", "75%"]
    assert next(x for x in shown if x.startswith("00:read")).startswith("00:read   1 of 4  ━━━━──")
    memory = "Memory: batches 1.0 GiB of 8.0 GiB, process 3.0 GiB, GPU 2.0 GiB of 70.0 GiB, GPU 90% busy"
    assert memory in " ".join(shown)
    assert shown[-1] == "Bottleneck: the GPU."


@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_fits_one_screen(width: int) -> None:
    many = [{"name": f"operator_{i}", "runs_on": "cpu", "busy": i / 10} for i in range(40)]
    shown = lines(live_view(status(operators=many)), width)
    assert len(shown) <= 21
    assert max(map(len, shown)) <= width
    assert any(x.startswith("operator_39") for x in shown)
    assert any(" more " in x for x in shown)


def test_other_states_are_named() -> None:
    early = {k: v for k, v in status(state="preparing").items() if k not in ("done", "rejected", "seconds")}
    assert lines(live_view(early)) == ["job on gpu, 4 threads; is preparing"]
    assert lines(live_view(status(state="lost")))[0].startswith("job on gpu, 4 threads; is lost")
    over = lines(live_view(status(state="finished", message="wrote 1000 samples", done=1000)))
    assert over[0] == "job on gpu, 4 threads; finished: wrote 1000 samples"
    assert over[2] == "200/s on average, 3 rejected"
    assert "Bottleneck: the GPU." not in over
    assert lines(live_view(status(done=0, seconds=0.0, samples_per_second=0.0)))[2] == (
        "0.0/s now, - on average, 3 rejected")  # fmt: skip


def test_parts_are_lines_and_finished_ones_are_counted() -> None:
    parts = [status(part=[0, 4]), status(part=[1, 4], samples_per_second=25.0),
             status(part=[2, 4], state="finished", message="done"), status(part=[3, 4], state="lost")]  # fmt: skip
    shown = lines(live_views(parts), 100)
    assert shown[1].split()[:7] == ["job,", "part", "0", "of", "4", "running", "25%"]
    assert [x.split()[5] for x in shown[1:4]] == ["running", "running", "lost"]
    assert shown[4:] == ["together 100/s", "1 of 4 parts finished"]


def worker(k: int, **changes: Any) -> dict[str, Any]:
    return {"name": f"GPU {k}", "node": "here", "part": k, "parts": 3, "done": 100 * k, "rejected": 0,
            "samples_per_second": 10.0 * k, **changes}  # fmt: skip


def several(workers: list[dict[str, Any]], nodes: int = 1) -> dict[str, Any]:
    """The status of a job by several workers."""
    of_one = ("operators", "queues", "bottleneck", "memory", "gpu_busy", "threads")
    return {**{k: v for k, v in status().items() if k not in of_one},
            "workers": workers, "nodes": nodes, "parts": [2, 9]}  # fmt: skip


def test_several_workers_have_a_line_each() -> None:
    shown = lines(live_view(several([worker(1), worker(2, rejected=4), worker(3, part=None)])), 100)
    assert shown[0] == "job on gpu, 3 workers"
    assert shown[1].endswith("25%  250 of 1,000 samples")
    rows = {x.split("  ")[0]: x.split() for x in shown if x.startswith("GPU")}
    assert list(rows) == ["GPU 1", "GPU 2", "GPU 3"]
    assert rows["GPU 2"][2:5] == ["here", "2", "20.0/s"]
    assert rows["GPU 2"][-2:] == ["200", "4"]
    assert rows["GPU 3"][3] == "waits"
    assert shown[-1] == "2 of 9 parts finished"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_many_workers_fit_one_screen_the_slowest_are_shown(width: int) -> None:
    shown = lines(live_view(several([worker(k) for k in range(40)], nodes=5)), width)
    assert len(shown) <= 21
    assert max(map(len, shown)) <= width
    assert any(x.startswith("GPU 0 ") for x in shown)
    assert not any(x.startswith("GPU 39") for x in shown)
    assert any(" more " in x for x in shown)


def test_before_the_first_worker_has_opened_the_job() -> None:
    early = {"state": "running", "name": "job", "output": "/out", "device": "cpu", "part": None, "total": 0}
    assert lines(live_view(early)) == ["job on cpu, no worker yet"]
