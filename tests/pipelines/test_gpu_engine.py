"""The engine's whole GPU path without a GPU: lanes, uploads, fused decoding, second decoders, several devices.

CuPy is a stand-in whose kernels run on the CPU; see tests/ops/fake_cupy.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dali_run.pipelines.compile import Plan, compile_graph
from dali_run.pipelines.execute import Engine, Options
from dali_run.pipelines.feed import JobFeed, Sources
from dali_run.pipelines.place import Target
from tests.ops.fake_cupy import faked

from .test_fuse import CASES, graph, pictures  # noqa: F401 - a fixture

CHOSEN = ("val", "train")


def outputs(plan: Plan, batch: int = 8, lanes: int = 2) -> tuple[dict[str, np.ndarray], list[str]]:
    """Results by key, and what was rejected."""
    found, rejected = {}, []
    options = Options(lanes=lanes)
    with Sources(plan, batch) as sources:
        feed = JobFeed(sources)
        with Engine(plan, feed, feed.requests(batch), options) as engine:
            for it in engine:
                rejected += [f"{it.origin_of(d).key}: {d.code}" for d in it.dropped]
                whole = it.outputs(plan)["x"]
                for i in range(len(whole)):
                    found[it.samples.origin(i).key] = np.array(whole.sample(i))
    return found, sorted(rejected)


@pytest.mark.parametrize("case", CHOSEN)
def test_the_emulated_gpu_equals_the_cpu(pictures: Path, case: str) -> None:  # noqa: F811
    built = graph(pictures, *CASES[case])
    on_cpu, rejects = outputs(compile_graph(built, Target(), 7))
    with faked(memory=True) as fake:
        plan = compile_graph(built, Target("gpu"), 7)
        assert any("decoders" in name for name in plan.fused)
        on_gpu, same = outputs(plan)
    assert rejects == same
    assert on_cpu.keys() == on_gpu.keys()
    assert {"jpeg_entropy", "jpeg_resize", "scatter"} <= {name for name, _ in fake.launched}
    normalize = CASES[case][2] or {}
    level = normalize.get("scale", 1.0) / min(normalize.get("std", [1.0]))
    for key, value in on_cpu.items():
        assert value.dtype == on_gpu[key].dtype
        difference = np.abs(value.astype(np.float64) - on_gpu[key].astype(np.float64))
        assert difference.max() <= level * 1.01 + 2e-3, key


def test_several_gpus_give_the_bytes_of_one(pictures: Path) -> None:  # noqa: F811
    built = graph(pictures, *CASES["train"])
    found = []
    for devices, batch, lanes in ((1, 8, 2), (2, 5, 1), (3, 3, 2)):
        with faked(devices, memory=True) as fake:
            plan = compile_graph(built, Target("gpu", tuple(range(devices))), 7)
            found.append(outputs(plan, batch, lanes))
        assert {device for name, device in fake.launched if name == "jpeg_entropy"} == set(range(devices))
    first, rejected = found[0]
    for other, same in found[1:]:
        assert same == rejected
        assert list(other) == list(first)
        for key, value in first.items():
            np.testing.assert_array_equal(value, other[key])
