"""The driver on a clock of its own, with simulated workers: many of them, slow ones, lost ones."""

from __future__ import annotations

import heapq
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from dali_run.ops.errors import JobError
from dali_run.pipelines.fleet import driver as fleet
from dali_run.pipelines.fleet.cost_model import forecast
from dali_run.pipelines.job.run import FAILED
from dali_run.readers.order import Order

ROOT = Path(__file__).parents[3]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/jobs/scale_model.py; the driver has its own clock again afterwards."""
    spec = importlib.util.spec_from_file_location("scale_model", ROOT / "benchmarks" / "jobs" / "scale_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "scale_model", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(fleet, "time", fleet.time)
    return module


def test_all_samples_are_done_once_though_nodes_are_lost_and_come_back(model: Any) -> None:
    lost = model.driven(2_000_000, 1000, 8, 4, 1000.0, 0.3, 0.03)
    assert lost["code"] == 0, lost["text"]
    assert lost["nodes_lost"] >= 3
    calm = model.driven(2_000_000, 1000, 8, 4, 1000.0, 0.3, 0.0)
    assert calm["code"] == 0
    assert calm["nodes_lost"] == 0
    assert calm["linear"] > lost["linear"]


def test_a_hundred_nodes_of_unequal_speed_are_near_linear(model: Any) -> None:
    found = model.driven(100_000_000, 10_000, 100, 2, 3000.0, 0.2, 0.0)
    assert found["linear"] > 0.9
    assert found["parts"] == 3200


def test_large_parts_of_gpus_are_not_given_ahead(model: Any) -> None:
    """The first ones are most of a worker's share: one that had two of them would end last, alone. The first worker
    that comes is alone for a while, and gets no more for that."""
    found = model.driven(100_000_000, 10_000, 1, 4, 200_000.0, 0.3, 0.0, "gpu")
    assert found["parts"] == 16
    assert found["linear"] > 0.9


def test_a_part_that_kills_its_workers_is_left_alone_and_the_rest_is_done(model: Any) -> None:
    class Poisoned(model.Cluster):  # type: ignore[misc, name-defined]
        def on_ended(self, what: Any) -> list[Any]:
            worker, i, *_ = what
            if i != 5 or not worker.alive:
                return list(super().on_ended(what))
            worker.alive = False
            node = int(worker.node.split()[1])
            self.workers[node].remove(worker)
            self.at(1, "again", node)
            return [(worker, {"gone": "was ended by SIGSEGV"})]

        def on_again(self, node: int) -> list[Any]:
            worker = model.Simulated(self.count, node, self.rate)
            self.workers[node].append(worker)
            self.at(1, "opened", worker)
            return []

    clock = model.Clock()
    fleet.time = clock  # type: ignore[attr-defined]
    whole = model.JobOutput(100_000, 1000)
    cluster = Poisoned(clock, 2, 2, 1000.0, whole, spread=0.0, hours_to_loss=0.0, away=1.0, seed=1)
    notes: list[str] = []
    run = fleet.Driver(whole, cluster, model.RejectLimit(), "cpu", lambda _: None, notes.append)
    code, text = run.run()
    assert code == FAILED
    assert "1 part of 64 failed 3 times, the rest is done. Part 5: " in text
    assert "SIGSEGV" in text
    assert len(notes) == 3
    assert [p.number for p in run.parts if not p.done] == [5]


@pytest.mark.parametrize("broken", [1, 2])
def test_a_gpu_that_is_gone_costs_no_other(model: Any, broken: int) -> None:
    """Its worker starts, finds nothing, and says so before any other has opened the job; the next one, too."""

    class Without(model.Cluster):  # type: ignore[misc, name-defined]
        starts = 0

        def on_opened(self, worker: Any) -> list[Any]:
            if int(worker.node.split()[1]) >= broken:
                return list(super().on_opened(worker))
            self.starts += 1
            self.at(0.5, "left", worker)
            return [(worker, {"problem": "no GPU is left", "kind": "device"})]

        def on_left(self, worker: Any) -> list[Any]:
            node = int(worker.node.split()[1])
            self.workers[node].remove(worker)
            if self.starts < 2 * broken:  # it is started once more
                again = model.Simulated(self.count, node, self.rate)
                self.workers[node].append(again)
                self.at(1, "opened", again)
            return [(worker, {"gone": "ended"})]

        def room(self) -> int:
            return sum(map(len, self.workers.values()))

    clock = model.Clock()
    fleet.time = clock  # type: ignore[attr-defined]
    whole = model.JobOutput(100_000, 1000)
    group = Without(clock, 2, 1, 1000.0, whole, spread=0.0, hours_to_loss=0.0, away=1.0, seed=1)
    for number, (at, count, kind, what) in enumerate(group.events):
        group.events[number] = (at if what.node == "node 0" else at + 60, count, kind, what)  # the sound one is slow
    heapq.heapify(group.events)
    notes: list[str] = []
    run = fleet.Driver(whole, group, model.RejectLimit(), "gpu", lambda _: None, notes.append)
    if broken == 1:
        assert run.run() == (0, "")
        assert sum("no GPU is left; the others go on without it" in n for n in notes) == 2
    else:
        with pytest.raises(JobError, match="no GPU is left"):
            run.run()


def test_a_billion_records_in_stored_order_take_no_memory() -> None:
    job = Order(10**9, first=7).job()
    assert job.shuffled is None
    assert job.samples(10**9 - 3, 5, None).index.tolist() == [10**9 + 4, 10**9 + 5, 10**9 + 6]  # type: ignore[arg-type]


def test_the_forecast_of_many_machines() -> None:
    one = forecast(10_000_000, 1000.0, 1000, 1, "cpu", written_bytes=100.0, read_bytes=1000.0)
    assert one.seconds == pytest.approx(10_000, rel=0.01)
    many = forecast(10_000_000, 1000.0, 1000, 64, "cpu", written_bytes=100.0, read_bytes=1000.0)
    assert 0.8 < many.efficiency < one.efficiency
    assert one.seconds / 64 < many.seconds < one.seconds / 50
    assert many.read_per_second == pytest.approx(64e6, rel=0.1)
    few = forecast(5000, 1000.0, 1000, 64, "cpu")
    assert few.idle_workers == 59
    assert few.read_per_second is None
