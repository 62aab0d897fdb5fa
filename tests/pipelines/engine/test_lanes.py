"""Lanes that runs of one job have in common: opened once, never lost, and no run is ended by another's end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.pipelines.engine.device.null_lane import NullLane
from dali_run.pipelines.engine.inputs import Sources
from dali_run.pipelines.engine.lanes import LanePool
from dali_run.pipelines.engine.threads.channel import Closed
from dali_run.pipelines.job.part import OpenJob
from dali_run.pipelines.job.run import CLEAN, INTERRUPTED, Progress, identity, prepare, run_job
from tests.kit.engine.short_of_memory import SPEC, picture

LONG = 60.0
TOTAL = 40


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    (tmp_path / "in" / "a").mkdir(parents=True)
    for i in range(TOTAL):
        (tmp_path / "in" / "a" / f"{i:02d}.jpg").write_bytes(picture(rng, 30, 40))
    file = tmp_path / "spec.yaml"
    text = SPEC.replace("IN", str(tmp_path / "in")).replace("OUT", str(tmp_path / "out"))
    file.write_text(text.replace("device: cpu", "device: 'null'").replace("batch_size: 8", "batch_size: 4"))
    return file


def shards(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in (".tfrecord", ".idx")}


def test_parts_that_overlap_go_on_with_the_same_lanes(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second part is written while the first still waits with its last batches; the third comes after a part that
    was ended early, with batches on the device."""
    assert run_job(spec, {"write.path": str(spec.parent / "whole")}).exit_code == CLEAN
    opened: list[NullLane] = []
    init, close = NullLane.__init__, NullLane.close
    closed: list[NullLane] = []
    monkeypatch.setattr(NullLane, "__init__", lambda self, index=0: (init(self, index), opened.append(self))[0])
    monkeypatch.setattr(NullLane, "close", lambda self: (close(self), closed.append(self))[0])
    prepared = prepare(spec, {"write.path": str(spec.parent / "parts")})
    told, second_done, third = threading.Event(), threading.Event(), threading.Event()
    codes: dict[int, int] = {}
    with Sources(prepared.plan, prepared.spec.pipeline.batch_size) as sources:
        job = OpenJob(prepared, sources, identity(prepared, sources))

        def run(part: int, span: range, progress: Any) -> None:
            codes[part] = job.run((part, 3), span, progress, {}).job.exit_code

        def slow(state: Progress) -> None:
            if state.done:
                told.set()
                assert second_done.wait(LONG)

        def ended(state: Progress) -> None:
            if state.done and not third.is_set():
                third.set()
                raise KeyboardInterrupt

        first = threading.Thread(target=run, args=(0, range(20), slow), daemon=True)
        first.start()
        assert told.wait(LONG)
        run(1, range(20, 30), lambda _: None)
        second_done.set()
        first.join(LONG)
        run(2, range(30, TOTAL), ended)
        run(2, range(30, TOTAL), lambda _: None)
        assert not closed
        job.close()
    assert codes == {0: CLEAN, 1: CLEAN, 2: CLEAN}
    assert third.is_set()
    assert len(opened) == prepared.spec.pipeline.prefetch_gpu + 2
    assert set(map(id, closed)) == set(map(id, opened))
    assert shards(spec.parent / "parts") == shards(spec.parent / "whole")
    assert INTERRUPTED not in codes.values()


def test_the_end_of_a_run_wakes_only_those_who_wait_for_it() -> None:
    pool, plan = LanePool(), object()
    (one,), (other,) = pool.of(plan, 0, 1), pool.of(plan, 0, 1)
    lanes = [NullLane(), NullLane()]
    for lane in lanes:
        one.put(lane)
    assert one.fill == other.fill == 2
    assert [one.get(), other.get()] == lanes
    got: list[Any] = []

    def take(which: Any) -> None:
        try:
            got.append(which.get())
        except Closed:
            got.append(Closed)

    threads = [threading.Thread(target=take, args=(w,), daemon=True) for w in (one, other)]
    threads[0].start()
    one.stop()
    threads[0].join(LONG)
    assert got == [Closed]
    threads[1].start()
    ready: list[Any] = []
    one.give_back(ready.append)  # that which its batch had
    threads[1].join(LONG)
    assert ready == got[1:] == lanes[:1]
