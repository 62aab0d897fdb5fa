"""Shares of a machine: which cores a GPU's worker is bound to, how parts are cut, what each may take."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dali_run.pipelines.engine.engine import Engine
from dali_run.pipelines.engine.inputs import Sources
from dali_run.pipelines.fleet import machine
from dali_run.pipelines.fleet.job_message import JobMessage, WorkerResources
from dali_run.pipelines.fleet.job_output import parts_for, tapered
from dali_run.pipelines.fleet.machine import cores_of, cpu_list, cpus_near, share_cpu, share_gpus, visible
from dali_run.pipelines.fleet.on_ray import Actors
from dali_run.pipelines.fleet.worker import fitted
from dali_run.pipelines.job.part import OpenJob
from dali_run.pipelines.job.run import Prepared, identity, prepare

LEFT, RIGHT = frozenset(range(4)), frozenset(range(4, 8))


def test_lists_of_cores_as_linux_writes_them() -> None:
    assert cpu_list("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert cpu_list("\n") == []
    with pytest.raises(ValueError):
        cpu_list("a-b")


def test_cores_near_a_device(tmp_path: Path) -> None:
    device = tmp_path / "0000:4e:00.0"
    device.mkdir()
    (device / "local_cpulist").write_text("4-7\n")
    assert cpus_near("0000:4e:00.0", tmp_path) == RIGHT
    assert cpus_near("0000:00:00.0", tmp_path) == cpus_near("", tmp_path) == frozenset()


@pytest.mark.parametrize(
    ("near", "usable", "expected"),
    [
        ([LEFT, LEFT, RIGHT, RIGHT], range(8), [(0, 1), (2, 3), (4, 5), (6, 7)]),
        ([LEFT, RIGHT], [0, 1, 5], [(0, 1), (5,)]),  # a container with some of the cores
        ([LEFT, LEFT, LEFT, LEFT, LEFT, RIGHT], range(8), None),  # five workers on four cores: each has one at least
        ([LEFT, LEFT], range(8), [(), ()]),  # one NUMA node: the system knows better
        ([LEFT, frozenset()], range(8), [(), ()]),
        ([LEFT, RIGHT], range(4), [(), ()]),  # none of the usable cores is near the second
    ],
)
def test_those_on_the_same_side_share_its_cores(
    near: list[frozenset[int]], usable: list[int], expected: list[tuple[int, ...]] | None
) -> None:
    found = cores_of(near, list(usable))
    if expected is not None:
        assert found == expected
    assert all(set(cores) <= set(side) for cores, side in zip(found, near, strict=True))
    assert len({bool(cores) for cores in found}) == 1


def test_a_worker_sees_one_of_the_gpus_that_its_driver_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible(1) == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-0815")
    assert visible(1) == "GPU-0815"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-GPU-08/1/0,MIG-15")
    assert [visible(k) for k in range(2)] == ["MIG-GPU-08/1/0", "MIG-15"]
    for told in ("", "7"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", told)
        assert visible(1) == "1"


def test_workers_of_one_gpu_share_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "pci_address", lambda gpu: "")
    resources = share_gpus([0, 1], 3)
    assert [(s.name, s.visible, s.gpu_share) for s in resources] == [
        ("GPU 0 (0)", visible(0), 0.5), ("GPU 1", visible(1), 1.0), ("GPU 0 (2)", visible(0), 0.5)
    ]  # fmt: skip
    for given, shares in (({}, (0.4, None)), ({"pipeline.memory": "{gpu: 8GiB}"}, (4 << 30, 8 << 30))):
        prepared = prepare(job_file(tmp_path), given, device="cpu")
        assert tuple(fitted(prepared, s).spec.pipeline.memory.gpu for s in resources[:2]) == shares


def job_file(folder: Path) -> Path:
    file = folder / "spec.yaml"
    file.write_text(
        "version: 1\nname: a\ngraph: [{op: readers.file, file_root: /x, out: [x, l]}]\noutputs: {x: x}\n"
        "write: {writer: tfrecord, path: /y}\n"
    )
    return file


def test_seats_share_threads_and_memory(tmp_path: Path) -> None:
    file = job_file(tmp_path)
    prepared = prepare(file, device="cpu")
    resources = replace(share_cpu(4)[0], threads=3)

    def settled(p: Prepared) -> tuple[object, object]:
        settings = fitted(p, resources).spec.pipeline
        return settings.num_threads, settings.memory.host

    assert settled(prepared) == (3, 0.125)
    given = {"pipeline.num_threads": 5, "pipeline.memory": "{host: 4GiB}"}
    assert settled(prepare(file, given, device="cpu")) == (5, 1 << 30)
    assert WorkerResources.of(resources.to_dict()) == resources


def test_parts_are_whole_shards_enough_for_all_and_not_too_long() -> None:
    assert parts_for(1000, 10, 2, "cpu") == 32
    assert parts_for(1000, 10, 2, "gpu") == 8  # which a GPU may do in no time, but for what each part costs
    assert parts_for(1000, 100, 2, "cpu") == 10  # there are only ten shards
    assert parts_for(1_000_000_000, 10_000, 2, "cpu") == 2000
    assert parts_for(1_000_000_000, 10_000, 2, "gpu") == 50
    assert parts_for(0, 10, 2, "cpu") == 1


@pytest.mark.parametrize(("device", "largest"), [("cpu", 1.5), ("gpu", 3)])
@pytest.mark.parametrize(("units", "n"), [(0, 1), (7, 3), (100, 100), (1000, 100), (8000, 1000), (100_000, 99)])
def test_borders_of_parts_hold_everything_and_the_last_are_small(
    units: int, n: int, device: str, largest: float
) -> None:
    borders = tapered(units, n, device)
    sizes = [b - a for a, b in itertools.pairwise(borders)]
    assert (borders[0], borders[-1], len(sizes)) == (0, units, n)
    assert min(sizes) >= min(1, units)
    assert max(sizes) <= largest * 1.05 * units / n + 1
    assert sum(sizes[-n // 16 :]) <= max(0.05 * units, n // 16 + 1)


def test_a_spec_is_found_where_it_is_and_else_as_its_text(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text("version: 1")
    job = JobMessage(str(file), "version: 1", {}, "cpu", None, os.getcwd())
    with job.file() as found:
        assert found == file
    file.write_text("version: 2")  # another machine's
    with job.file() as found:
        assert found != file
        assert found.name == "spec.yaml"
        assert found.read_text() == "version: 1"


def test_ray_is_asked_for_only_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Exception, match=r"pip install 'dali-run\[ray\]'"):
        Actors(JobMessage("a", "", {}, "cpu", None, "."), "ray", None, None, lambda _: None)


def test_parts_go_on_with_what_earlier_ones_measured_of_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    for k in range(4):
        (tmp_path / "in" / "a" / f"{k}.jpg").write_bytes(b"bytes")
    reader = {"op": "readers.file", "file_root": str(tmp_path / "in"), "out": ["x", "label"]}
    write = {"writer": "tfrecord", "path": str(tmp_path / "out"), "shard": {"samples": 2},
             "fields": {"x": {"encode": "keep"}}}  # fmt: skip
    file = tmp_path / "spec.json"
    file.write_text(json.dumps({"version": 1, "name": "job", "pipeline": {"device": "cpu"}, "graph": [reader],
                                "outputs": {"x": "x"}, "write": write}))  # fmt: skip
    seen = []
    plain = Engine.__init__
    monkeypatch.setattr(Engine, "__init__", lambda self, *args: (seen.append(args[3].uploads), plain(self, *args))[1])
    prepared = prepare(file)
    with Sources(prepared.plan, 64) as sources:
        job = OpenJob(prepared, sources, identity(prepared, sources))
        for k in range(2):
            assert job.run((k, 2), range(2 * k, 2 * k + 2), lambda _: None, {}).job.exit_code == 0
    assert seen[0] is not None
    assert seen == [seen[0]] * 2
