"""Reports name the part that held a run back."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dali_run.ops.arrays.transpose import Transpose
from dali_run.ops.compiled.times import times
from dali_run.pipelines.engine.stats import Work
from dali_run.pipelines.engine.threads.channel import Channel
from dali_run.pipelines.engine.threads.clock import Clock
from dali_run.pipelines.job.report import Load, _percent, _waits, _workers, bottleneck
from dali_run.pipelines.job.run import run_job
from dali_run.writers.shards.output import Output

CPU = Load("cpu", 0.7, "The CPU workers hold the job back.", "More threads.")


def loads(*shares: float) -> list[Load]:
    return [Load(f"load{i}", share, f"load{i} holds the job back.", "") for i, share in enumerate(shares)]


def test_the_busiest_is_named() -> None:
    assert bottleneck([*loads(0.2, 0.69), CPU], 2) is CPU


def test_nothing_is_blamed_that_was_idle_for_most_of_the_time() -> None:
    short = bottleneck(loads(0.1, 0.45), 1)
    assert (short.name, short.share) == ("load1", 0.45)
    assert short.sentence == (
        "No stage was busy more than half the time; the busiest was load1 (45%). 1 batch is too few for the stages "
        "to work at the same time."
    )
    long = bottleneck(loads(0.1, 0.45), 100)
    assert "holds the job back" not in long.sentence
    assert "wait for each other" in long.sentence


def test_nothing_is_busy_for_more_than_all_of_the_time() -> None:
    assert (_percent(0.456), _percent(1.02)) == ("46%", "100%")


@pytest.mark.parametrize(("threads", "cores", "work", "words", "advice"), [
    (2, 16, Work(10, 9, 0.5), "1.8 of 16 cores used, mostly in decode (75%)", "num_threads=16"),
    (16, 16, Work(10, 9, 0.5), "14.4 of 16 cores used", "A machine with more cores"),
    (16, 16, Work(10, 0.8, 1), "wait for Python's lock", "--on processes:N"),
    (16, 4, Work(10, 2, 7), "wait for cores", "As many threads as cores (--set pipeline.num_threads=4)"),
    (2, 4, Work(10, 2, 7), "wait for cores", "End other programs"),
])  # fmt: skip
def test_busy_workers_are_told_from_workers_that_wait(
    threads: int, cores: int, work: Work, words: str, advice: str
) -> None:
    stats: Any = SimpleNamespace(worked={"01:cpu": work})
    operators = [{"name": "decode", "cpu_seconds": 7.5 * threads}, {"name": "flip", "cpu_seconds": 2.5 * threads}]
    found = _workers(stats, operators, threads, cores, 10.0)
    assert found.share == 1.0
    assert words in found.sentence
    assert advice in found.advice
    assert ("More threads" in found.advice) is (threads < cores and work.processor > 7)


def test_memory_is_named_if_nothing_was_busy_meanwhile() -> None:
    assert bottleneck(loads(0.1, 0.4), 100, 0.8).name == "memory"
    assert bottleneck([*loads(0.1), CPU], 100, 0.8) is CPU


def test_a_workers_clock_tells_work_from_waiting() -> None:
    clock = Clock()
    began = clock.begin()
    time.sleep(0.05)
    passed, processor, no_core = clock.end(began)
    assert processor < passed / 2
    assert no_core == 0  # asked the kernel for now and then
    began, n = clock.begin(), 0
    while time.perf_counter() - began[0] < 0.3:
        n += 1
    passed, processor, no_core = clock.end(began)
    assert 0 < processor <= passed
    assert no_core >= 0


@pytest.mark.parametrize(
    ("full", "idle", "waited", "blocked"), [(5.0, 0.1, 0.0, 0.1), (5.0, 6.0, 1.0, 5.0), (0.0, 2.0, 2.0, 0.0)]
)
def test_workers_are_blocked_only_while_they_have_no_work(
    full: float, idle: float, waited: float, blocked: float
) -> None:
    queue, step = Channel[int]("01:cpu", 4), SimpleNamespace(kind="chunk")
    queue.waited_full = full
    engine: Any = SimpleNamespace(
        boxes={"01:cpu": (None, queue)},
        delivery=queue,
        stats=SimpleNamespace(idled={"01:cpu": idle}),
        plan=SimpleNamespace(steps=[None, step]),
        name_of=lambda _: "01:cpu",
    )
    assert _waits(engine, 1) == {"waiting_for_input_seconds": waited, "blocked_on_output_seconds": blocked}


@pytest.mark.parametrize("where", ["operator", "writer", "another thread"])
def test_compiling_is_a_row_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """It counts neither as writing nor as an operator's work. (Nothing waits here: 1,000 seconds are claimed.)"""
    (tmp_path / "in" / "a").mkdir(parents=True)
    for i in range(4):
        (tmp_path / "in" / "a" / f"{i}.bin").write_bytes(bytes(100))
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"""
version: 1
pipeline: {{batch_size: 2, num_threads: 1, device: cpu}}
graph:
  - {{op: readers.file, file_root: {tmp_path / "in"}, file_filters: ['*'], out: [x, y]}}
  - {{op: reinterpret, in: x, shape: [50, 2], out: x}}
  - {{op: transpose, in: x, perm: [1, 0], out: x}}
outputs: {{x: x}}
write: {{writer: tfrecord, path: {tmp_path / "out"}, fields: {{x: {{encode: raw}}}}}}
""")
    owner: Any = Transpose if where == "operator" else Output
    name = "cpu" if where == "operator" else "add"
    work = getattr(owner, name)

    def compiling(*args: Any, **options: Any) -> Any:
        if where == "another thread":
            thread = threading.Thread(target=times.waited, args=(1000.0,))
            thread.start()
            thread.join()
        else:
            times.waited(1000.0)
        return work(*args, **options)

    monkeypatch.setattr(owner, name, compiling)
    monkeypatch.setattr(times, "seconds", times.seconds)
    report = run_job(spec).report
    assert report["loads"]["compiling"] > 10
    assert report["bottleneck"]["what"] == "compiling"
    assert "compiling CPU kernels" in report["bottleneck"]["sentence"]
    writing = next(s for s in report["stages"] if s["kind"] == "sink")["busy_seconds"]
    (turned,) = (o for o in report["operators"] if o["op"] == "transpose")
    assert (writing < -1000) == (where == "writer")
    assert (turned["p95_ms"] < -900_000) == (where == "operator")
    assert (turned["cpu_seconds"] < -1000) == (where == "operator")
