"""A Ray cluster that is gone: nothing waits for ever without a word. Ray itself is stood in for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dali_run.ops.errors import JobError
from dali_run.pipelines.fleet import on_ray
from dali_run.pipelines.fleet.job_message import JobMessage


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(on_ray, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def actors(monkeypatch: pytest.MonkeyPatch, nodes: Any, notes: list[str], *, alone: bool) -> on_ray.Actors:
    monkeypatch.setitem(__import__("sys").modules, "ray", SimpleNamespace(nodes=nodes))
    made = on_ray.Actors(JobMessage("spec.yaml", "", {}, "cpu", None, str(Path.cwd())), "ray", None, 2, notes.append)
    made._own_cluster, made._gpu, made._cores = alone, False, 2
    return made


def node(alive: bool) -> list[dict[str, Any]]:
    return [{"Alive": alive, "Resources": {"CPU": 4}}]


def test_a_node_of_our_own_that_is_gone_ends_the_job(monkeypatch: pytest.MonkeyPatch, clock: Any) -> None:
    state, notes = [True], list[str]()
    group = actors(monkeypatch, lambda: node(state[0]), notes, alone=True)
    assert group.room() == 2
    state[0] = False
    clock.now += on_ray._NODES_SECONDS
    group.room()
    clock.now += on_ray._GONE
    with pytest.raises(JobError, match=r"node that this job started on this machine is gone.*same command again"):
        group.room()


def test_a_cluster_of_others_is_waited_for_with_a_word_now_and_then(
    monkeypatch: pytest.MonkeyPatch, clock: Any
) -> None:  # fmt: skip
    notes: list[str] = []
    group = actors(monkeypatch, lambda: node(alive=False), notes, alone=False)
    for _ in range(4):
        group.room()
        clock.now += on_ray._REMIND
    assert len(notes) == 4
    assert "no node of the cluster has held a worker of 2 cores; waiting" in notes[0]
    assert "for 15 min 00 s; waiting for one" in notes[3]


def test_a_cluster_that_does_not_answer_ends_the_job(monkeypatch: pytest.MonkeyPatch, clock: Any) -> None:
    def gone() -> Any:
        raise ConnectionError("Failed to connect to GCS\nmore")

    group = actors(monkeypatch, gone, [], alone=False)
    with pytest.raises(JobError, match=r"the Ray cluster does not answer \(Failed to connect to GCS\)"):
        group.room()
