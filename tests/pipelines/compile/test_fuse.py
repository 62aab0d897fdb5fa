"""Joined operators give what the operators give one after the other; on the CPU here, on a GPU where there is one."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.batch import Batch
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import Plan, compile_graph
from dali_run.pipelines.engine.engine import Engine, Options
from dali_run.pipelines.engine.inputs import JobFeed, Sources
from dali_run.pipelines.graph.builder import GraphBuilder
from dali_run.pipelines.graph.nodes import Graph
from dali_run.pipelines.plugins import load_operators

MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of many kinds in two classes: samplings, gray, progressive, turned, PNG, and one that is broken."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(5)
    for i in range(24):
        height, width = rng.integers(40, 300, 2).tolist()
        y, x = np.mgrid[:height, :width]
        picture = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1) + rng.integers(0, 30, (1, 1, 3))
        image = Image.fromarray(np.clip(picture + rng.integers(-8, 8, picture.shape), 0, 255).astype(np.uint8))
        folder = root / "ab"[i % 2]
        folder.mkdir(exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 1 + i % 8
        options: dict[str, Any] = {"quality": 85, "subsampling": i % 3, "exif": exif, "progressive": i % 7 == 3}
        if i % 11 == 5:
            image = image.convert("L")
        kind = "png" if i % 9 == 4 else "jpg"
        image.save(folder / f"{i:02d}.{kind}", **(options if kind == "jpg" else {}))
    whole = io.BytesIO()
    Image.fromarray(np.full((64, 64, 3), 99, np.uint8)).save(whole, "JPEG")
    (root / "a" / "broken.jpg").write_bytes(whole.getvalue()[:-200])
    return root


def graph(root: Path, decoder: str, resize: dict[str, Any], normalize: dict[str, Any] | None, mirror: bool) -> Graph:
    load_operators()
    b = GraphBuilder()
    x, label = b.add("readers.file", (), {"file_root": str(root)})
    (x,) = b.add(decoder, [x], device="mixed")
    name = resize.get("op", "resize")
    (x,) = b.add(name, [x], {k: v for k, v in resize.items() if k != "op"})
    if normalize is not None:
        args = dict(normalize)
        if mirror:
            (args["mirror"],) = b.add("random.coin_flip")
        (x,) = b.add("crop_mirror_normalize", [x], args)
    return b.build({"x": x, "label": label})


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


CASES = {
    "val": ("decoders.image", {"resize_shorter": 96}, {"crop": [80, 80], "mean": MEAN, "std": STD}, False),
    "train": ("decoders.image_random_crop", {"size": [72, 72]}, {"crop": [64, 64], "mean": MEAN, "std": STD}, True),
    "hwc half": (
        "decoders.image",
        {"size": [70, 90]},
        {"dtype": "FLOAT16", "output_layout": "HWC", "scale": 0.01},
        True,
    ),
    "rrc": ("decoders.image", {"op": "random_resized_crop", "size": [64, 64]}, None, False),
    "cubic": ("decoders.image", {"resize_longer": 100, "interp_type": "CUBIC"}, None, False),
}


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
