"""Warming up touches every host kernel once and changes nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.base import Operator, find
from dali_run.ops.batch import Batch
from dali_run.ops.context import Context
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import Plan, compile_graph
from dali_run.pipelines.engine.inputs import JobFeed, Sources
from dali_run.pipelines.engine.memory.budget import MemoryBudget
from dali_run.pipelines.engine.warm_up import rehearse, warm_up
from dali_run.pipelines.spec.build import load_spec
from dali_run.pipelines.tools.sample_data import make_sample_data
from dali_run.writers.base import FieldConfig, find_writer
from dali_run.writers.shards.config import WriteConfig
from tests.kit.writers import HAS_PYARROW

called: list[tuple[str, int]] = []


class WholeIteration(Operator, name="test_warm_up.whole"):
    """Must not run early: it may keep state."""

    per_batch = True

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        called.append(("whole", len(data)))
        return data


class Counted(Operator, name="test_warm_up.counted"):
    """Notes its calls."""

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        called.append(("counted", len(data)))
        return data


class Broken(Operator, name="test_warm_up.broken"):
    """A bug."""

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        called.append(("broken", len(data)))
        raise ZeroDivisionError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warm") / "data"
    make_sample_data(folder, 8)
    return folder / "train"


def plan_of(data: Path, tmp_path: Path, steps: list[str], device: Any = "cpu") -> Plan:
    spec = tmp_path / "spec.yaml"
    lines = "\n".join(f"  - {{op: {s}}}" for s in steps)
    reader = f"  - {{op: readers.file, file_root: {data}, out: [x, labels]}}"
    spec.write_text(f"version: 1\ngraph:\n{reader}\n{lines}\noutputs: [x]\n")
    return compile_graph(load_spec(spec).graph, Target(device))


def warm(plan: Plan, left: int = 6) -> list[tuple[str, int]]:
    called.clear()
    with Sources(plan, 4) as sources:
        assert warm_up(plan, JobFeed(sources), 0, left) > 0
    return list(called)


def test_the_writer_is_rehearsed_with_zeros_for_what_a_gpu_makes(data: Path, tmp_path: Path) -> None:
    """So that its loops are compiled before the clock starts there, too."""
    seen: list[Mapping[str, Batch]] = []
    plan = plan_of(data, tmp_path, ["decoders.image, in: x, out: x", "resize, in: x, size: [9, 7], out: x"], "gpu")
    with Sources(plan, 4) as sources:
        warm_up(plan, JobFeed(sources), 0, 6, sink=seen.append)
    (outputs,) = seen
    assert outputs["x"].dtype == "uint8"
    assert outputs["x"].shapes.tolist() == [[9, 7, 3], [9, 7, 3]]


def test_kernels_run_on_two_samples_and_stateful_ones_do_not(data: Path, tmp_path: Path) -> None:
    assert find("test_warm_up.counted") is Counted
    one = "test_warm_up.counted, in: x, out: x"
    assert warm(plan_of(data, tmp_path, [one])) == [("counted", 2)]
    assert warm(plan_of(data, tmp_path, [one]), left=1) == [("counted", 1)]
    assert warm(plan_of(data, tmp_path, [one]), left=0) == []
    assert warm(plan_of(data, tmp_path, [one, "test_warm_up.whole, in: x, out: x", one])) == [("counted", 2)]
    assert warm(plan_of(data, tmp_path, ["test_warm_up.broken, in: x, out: x", one])) == [("broken", 2)]


class Growing(Operator, name="test_warm_up.growing"):
    """Takes a megabyte a sample, as an operator that nobody can foresee."""

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        made = ctx.empty(len(data) << 20, np.uint8)
        called.append(("growing", len(data)))
        assert len(made)
        return data


@pytest.mark.parametrize("first", [0, 1])
def test_the_budget_holds_from_the_first_sample(tmp_path: Path, first: int) -> None:
    """A sample that is as large as the budget is decoded by the run or not at all: warming up leaves it out."""
    folder = tmp_path / "data" / "a"
    folder.mkdir(parents=True)
    for k in range(4):
        Image.new("RGB", (2000, 2000) if k == first else (20, 20)).save(folder / f"{k}.png")
    plan = plan_of(folder.parent, tmp_path, ["decoders.image, in: x, out: x", "test_warm_up.counted, in: x, out: x"])
    account = MemoryBudget(8 << 20)  # 12 MB are more than that
    called.clear()
    with Sources(plan, 4) as sources:
        warm_up(plan, JobFeed(sources), 0, 4, host=account)
    assert called == [("counted", 1)]
    assert 0 < account.peak < 1 << 20


def test_what_warming_up_allocates_is_on_the_account(data: Path, tmp_path: Path) -> None:
    account = MemoryBudget(64 << 20)
    plan = plan_of(data, tmp_path, ["test_warm_up.growing, in: x, out: x"])
    called.clear()
    with Sources(plan, 4) as sources:
        warm_up(plan, JobFeed(sources), 0, 4, host=account)
    assert called == [("growing", 2)]
    assert account.peak >= 2 << 20
    assert account.used == 0


def test_writers_are_warmed_up_with_the_outputs_and_leave_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(data, tmp_path, ["decoders.image, in: x, out: x", "resize, in: x, size: [8, 8], out: x"])
    given: list[Mapping[str, Batch]] = []
    with Sources(plan, 4) as sources:
        warm_up(plan, JobFeed(sources), 0, 6, sink=given.append)
    (outputs,) = given
    assert [b.shape for b in next(iter(outputs.values()))] == [(8, 8, 3)] * 2
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    for writer in ("tfrecord", "lmdb", "webdataset", "numpy", "files", "recordio", *["parquet"] * HAS_PYARROW):
        framed: list[int] = []
        with monkeypatch.context() as patch:
            count_frames(patch, writer, framed)
            fields = dict.fromkeys(outputs, FieldConfig())
            rehearse(WriteConfig(tmp_path / "out", "job", writer, fields=fields), outputs)
        assert framed == [2], writer
        assert not (tmp_path / "out").exists()
        assert not list(scratch.iterdir())


def count_frames(patch: pytest.MonkeyPatch, writer: str, framed: list[int]) -> None:
    """Note how many records ``writer`` appends."""
    made = find_writer(writer).open

    def opened(self: Any, files: Any, fields: Any) -> Any:
        shard = made(self, files, fields)
        append = shard.append
        shard.append = lambda frames, n: (append(frames, n), framed.append(n))
        return shard

    patch.setattr(find_writer(writer), "open", opened)
