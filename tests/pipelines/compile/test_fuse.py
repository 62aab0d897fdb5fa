"""Joined operators give what the operators give one after the other; on the CPU here, on a GPU where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import Plan, compile_graph
from dali_run.pipelines.engine.engine import Engine, Options
from dali_run.pipelines.engine.inputs import JobFeed, Sources
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.plugins import load_operators
from tests.kit.engine.joined import CASES, graph


def outputs(plan: Plan) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, str]]:
    """Every sample's result by key, and every reject's operator and code."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    rejects: dict[str, str] = {}
    with Sources(plan, 8) as sources:
        feed = JobFeed(sources)
        with Engine(plan, feed, feed.requests(8), Options()) as engine:
            for it in engine:
                batch: Batch = it.outputs(plan)["x"]
                for i, value in enumerate(batch):
                    found[it.samples.origin(i).key] = np.array(value)
                rejects |= {it.origin_of(d).key: f"{d.node}: {d.code}" for d in it.dropped}
    return found, rejects


@pytest.mark.parametrize("case", CASES)
def test_joined_equals_apart_on_the_cpu(pictures: Path, case: str) -> None:
    built = graph(pictures, *CASES[case])
    joined, rejects = outputs(compile_graph(built, Target(), 7))
    apart, same = outputs(compile_graph(built, Target(), 7, fusing=False))
    assert rejects == same == {"a/broken.jpg": f"{CASES[case][0]}: truncated"}
    assert joined.keys() == apart.keys()
    for key, value in joined.items():
        assert value.dtype == apart[key].dtype
        np.testing.assert_array_equal(value, apart[key], err_msg=key)


def test_what_was_joined_is_told() -> None:
    plan = compile_graph(graph(Path("."), *CASES["val"]), Target(), 0)
    assert plan.fused == ("decoders.image+resize+crop_mirror_normalize",)
    assert plan.describe()["fused"] == ["decoders.image+resize+crop_mirror_normalize"]


def test_a_value_that_others_need_is_not_joined_away() -> None:
    load_operators()
    b = GraphBuilder()
    x, _ = b.add("readers.file", (), {"file_root": "."})
    (x,) = b.add("decoders.image", [x])
    (x,) = b.add("resize", [x], {"size": [64, 64]})
    (y,) = b.add("crop_mirror_normalize", [x])
    assert compile_graph(b.build({"x": x, "y": y}), Target(), 0).fused == ()
    assert compile_graph(b.build({"y": y}), Target(), 0).fused == ("decoders.image+resize+crop_mirror_normalize",)


def test_random_operators_keep_their_seeds_when_nodes_are_joined() -> None:
    built = graph(Path("."), *CASES["train"])
    apart = compile_graph(built, Target(), 3, fusing=False)
    joined = compile_graph(built, Target(), 3)
    by_name = {apart.graph.nodes[i].name: s for i, s in apart.seeds.items()}
    assert {joined.graph.nodes[i].name.split("+")[0]: s for i, s in joined.seeds.items()} == by_name


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("fusing", [True, False])
def test_the_gpu_equals_the_cpu(pictures: Path, case: str, fusing: bool) -> None:
    built = graph(pictures, *CASES[case])
    on_cpu, rejects = outputs(compile_graph(built, Target(), 7))
    plan = compile_graph(built, Target("gpu"), 7, fusing=fusing)
    assert any("decoders" in name for name in plan.fused) == fusing
    on_gpu, same = outputs(plan)
    assert rejects == same
    assert on_cpu.keys() == on_gpu.keys()
    normalize = CASES[case][2] or {}
    level = normalize.get("scale", 1.0) / min(normalize.get("std", [1.0]))
    for key, value in on_cpu.items():
        assert value.dtype == on_gpu[key].dtype
        difference = np.abs(value.astype(np.float64) - on_gpu[key].astype(np.float64))
        assert difference.max() <= level * 1.01 + 2e-3, key
