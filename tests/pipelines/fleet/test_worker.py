"""Parts of a worker follow each other without a gap, and are told of in their order."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dali_run.pipelines.fleet import worker
from dali_run.pipelines.fleet.driver import Driver
from dali_run.pipelines.fleet.job_message import WorkerResources
from dali_run.pipelines.fleet.job_output import Part
from dali_run.pipelines.fleet.messages import MessageSocket
from dali_run.pipelines.fleet.worker import NEARLY_DONE_BATCHES, WorkerLoop
from dali_run.pipelines.job.part import PartResult
from dali_run.pipelines.job.run import CLEAN, FAILED, INTERRUPTED, JobResult, Progress
from dali_run.writers.shards.rejects import RejectLimit

BATCH, TOTAL = 2, 100
LONG = 60.0
"""Seconds in which whatever is waited for has come, on any machine."""
Work = Callable[[Callable[[int], None]], int]


class Job:
    """Runs parts as `OpenJob` does; ``works`` are their contents, which are given a way to tell what is done."""

    def __init__(self, device: str, works: dict[int, Work]) -> None:
        self.prepared = SimpleNamespace(
            target=SimpleNamespace(device=device),
            spec=SimpleNamespace(pipeline=SimpleNamespace(batch_size=BATCH)),
        )
        self.works = works
        self.begun = {part: threading.Event() for part in works}
        self.ended = {part: threading.Event() for part in works}

    def run(self, part: tuple[int, int], span: range, progress: Callable[[Progress], None], command: Any) -> Any:
        def tell(done: int) -> None:
            progress(Progress(done, TOTAL, 0, 0.0))

        self.begun[part[0]].set()
        try:
            code = self.works[part[0]](tell)
        except KeyboardInterrupt:
            code = INTERRUPTED
        finally:
            self.ended[part[0]].set()
        return PartResult(JobResult(code, "", {}, "out"), written=0, rejected=0)


def served(job: Job) -> list[dict[str, Any]]:
    """The messages of a worker that is given all parts at once."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            worker = WorkerLoop(MessageSocket(theirs), WorkerResources("one", 1, 1.0))
            for part in job.works:
                worker._orders.put({"part": [part, len(job.works)], "range": [0, TOTAL]})
            worker._orders.put(None)
            worker._serve(job)  # type: ignore[arg-type]
        return [m for m in MessageSocket(ours).receive() if "at" not in m]


@pytest.mark.parametrize("device", ["gpu", "null"])
def test_a_part_begins_while_the_last_one_ends_and_is_told_of_after_it(device: str) -> None:
    few = NEARLY_DONE_BATCHES * BATCH

    def first(tell: Callable[[int], None]) -> int:
        tell(0)
        tell(TOTAL - few - 1)
        alone = not job.begun[1].wait(0.05)
        tell(TOTAL - few)
        assert alone
        assert job.ended[1].wait(LONG)  # all of it
        return CLEAN

    job = Job(device, {0: first, 1: lambda tell: CLEAN})
    told = served(job)
    assert [m["ended"] for m in told if "ended" in m] == [0, 1]
    assert [m["code"] for m in told if "ended" in m] == [CLEAN, CLEAN]
    assert {"soon": 0} in told


def test_on_the_cpu_parts_follow_each_other() -> None:
    def first(tell: Callable[[int], None]) -> int:
        tell(TOTAL)
        assert not job.begun[1].wait(0.05)
        return CLEAN

    job = Job("cpu", {0: first, 1: lambda tell: CLEAN})
    assert [m.get("code") for m in served(job)] == [CLEAN, CLEAN]


def test_a_part_is_nearly_done_where_little_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many batches that is: the next one takes some tenths of a second to open and to read."""
    monkeypatch.setattr(worker, "NEARLY_DONE_SECONDS", 1e9)

    def first(tell: Callable[[int], None]) -> int:
        tell(1)
        assert job.begun[1].wait(LONG)
        return CLEAN

    job = Job("gpu", {0: first, 1: lambda tell: CLEAN})
    assert [m["ended"] for m in served(job) if "ended" in m] == [0, 1]


def test_where_a_part_fails_the_next_one_stops() -> None:
    def first(tell: Callable[[int], None]) -> int:
        tell(TOTAL)
        assert job.begun[1].wait(LONG)
        return FAILED

    def second(tell: Callable[[int], None]) -> int:
        assert job.ended[0].wait(LONG)
        while True:
            tell(1)  # until that is refused

    job = Job("gpu", {0: first, 1: second, 2: lambda tell: CLEAN})
    told = served(job)
    assert [(m["ended"], m["code"]) for m in told if "ended" in m] == [(0, FAILED), (1, INTERRUPTED)]
    assert not job.begun[2].is_set()


def test_a_worker_that_is_nearly_done_gets_the_next_part() -> None:
    """The driver gives it early, and goes on to count the words about the first one."""
    worker = SimpleNamespace(name="one", node="here")
    given: list[int] = []

    def ended(part: int) -> dict[str, Any]:
        return {"ended": part, "code": CLEAN, "text": "", "written": 10, "rejected": 0, "report": {}}

    script: list[tuple[list[dict[str, Any]], list[int]]] = [  # what is heard, and the parts that are given by then
        ([{"opened": [0, 30], "who": {}, "process": {}}], []),
        ([{"at": 0, "left": 4, "rejected": 0}, {"soon": 0}], [0]),
        ([{"soon": 0}, {"at": 1, "left": 9, "rejected": 0}], [0, 1]),
        ([ended(0), {"soon": 0}], [0, 1]),
        ([{"soon": 1}], [0, 1]),
        ([ended(1)], [0, 1, 2]),
        ([ended(2)], [0, 1, 2]),
    ]

    class WorkerGroup:
        def room(self) -> int:
            return 1

        def fill(self, wanted: int) -> None: ...

        def give(self, worker: Any, order: dict[str, Any]) -> None:
            given.append(order["part"][0])

        def stop(self) -> None: ...

        def poll(self, seconds: float) -> list[tuple[Any, dict[str, Any]]]:
            heard, before = script.pop(0)
            assert given == before
            return [(worker, m) for m in heard]

    class JobOutput:
        config = SimpleNamespace(where="nowhere")

        def check(self) -> None: ...

        def parts(self, span: range, who: Any, workers: int, device: str) -> list[Part]:
            return [Part(i, 10 * i, 10 * i + 10, 10) for i in range(3)]

    driver = Driver(JobOutput(), WorkerGroup(), RejectLimit(), "gpu", lambda _: None, lambda _: None)  # type: ignore[arg-type]
    assert driver.run() == (0, "")
    assert driver.read == 30
    assert not script
