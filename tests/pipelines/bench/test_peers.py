"""Peers without graphs, strata and suites: what a graph means as a recipe, and which files are of which kind."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from dali_run.ops.errors import SpecError
from dali_run.pipelines.bench.measure import Measurement
from dali_run.pipelines.bench.peers.recipe import Recipe, recipe_of
from dali_run.pipelines.bench.run import Bench, median_of, peer_files, run_bench
from dali_run.pipelines.bench.strata import only, strata_of
from dali_run.pipelines.bench.suites import SUITES, suite_data, write_suite
from dali_run.pipelines.bench.web_mix import KINDS, pixels_of, write_mix
from dali_run.pipelines.spec.build import load_spec


def picture(folder: Path, name: str, size: tuple[int, int] = (40, 30), **how: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(len(name)).integers(0, 255, (size[1], size[0], 3), np.uint8)
    out = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert("L") if how.pop("gray", False) else image).save(out, "JPEG", **how)
    (folder / name).write_bytes(out.getvalue())
    return folder / name


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    for i in range(3):
        picture(root / "a", f"{i}.jpg", subsampling=2)
    picture(root / "b", "full.jpg", subsampling=0)
    picture(root / "b", "gray.jpg", gray=True)
    picture(root / "b", "steps.jpg", progressive=True)
    return root


def suite_spec(data: Path, name: str, **changes: str) -> Measurement:
    specs = write_suite("imagenet", data.parent)
    overrides = {"data": str(data), "pipeline.device": "cpu", "pipeline.batch_size": "4", **changes}
    return Measurement(str(specs[name]), overrides, seconds=0.05, warm_up=1, encode=False)


def recipe(this: Measurement) -> Recipe:
    from dali_run.pipelines.compile.plan import compile_graph

    built, plan = this.compiled()
    return recipe_of(compile_graph(built.graph, plan.target, 0, fusing=False).graph)


# -- recipes ----------------------------------------------------------------------------------------------------------


def test_the_suite_as_recipes(data: Path) -> None:
    decode = recipe(suite_spec(data, "decode"))
    assert [Path(f).name for f in decode.files] == ["0.jpg", "1.jpg", "2.jpg", "full.jpg", "gray.jpg", "steps.jpg"]
    assert decode.labels == (0, 0, 0, 1, 1, 1)
    assert decode.only_decodes
    assert (decode.outputs, decode.shuffle, decode.dtype, decode.layout) == (("image", "label"), True, "UINT8", "HWC")
    val = recipe(suite_spec(data, "val"))
    assert (val.size, val.filter, val.antialias, val.crop, val.mirror) == ((256,), "bilinear", True, (224, 224), 0)
    assert (val.dtype, val.layout) == ("FLOAT", "CHW")
    assert val.mean == pytest.approx((123.675, 116.28, 103.53))
    train = recipe(suite_spec(data, "train"))
    assert train.area == pytest.approx((0.08, 1))
    assert train.ratio == pytest.approx((3 / 4, 4 / 3))
    assert (train.size, train.crop, train.mirror) == ((224, 224), None, 0.5)
    assert not train.only_decodes


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("output_type: RGB", "output_type: BGR", "only output_type RGB"),
        ("interp_type: TRIANGULAR", "interp_type: LANCZOS3", "LANCZOS3 is not translated"),
        ("resize_shorter: 256", "resize_longer: 256", "resize_longer is not translated"),
        ("crop: [224, 224]", "crop: [224, 224]\n    crop_pos_x: 0.1", "crop_pos_x is not translated"),
        ("dtype: FLOAT", "dtype: UINT8", "only dtype FLOAT"),
        ("  - op: crop_mirror", "  - {op: rotate, in: images, angle: 3, out: images}\n  - op: crop_mirror", "rotate"),
        ("outputs: {image: images", "outputs: {image: images, file: jpegs", "has one image"),
        ("outputs: {image: images, label", "outputs: {label", "no image among its outputs"),
    ],
)
def test_what_has_no_place_in_a_recipe_is_refused(data: Path, old: str, new: str, reason: str) -> None:
    this = suite_spec(data, "val")
    text = Path(this.spec).read_text()
    assert old in text
    Path(this.spec).write_text(text.replace(old, new))
    with pytest.raises(SpecError, match=reason):
        recipe(this)


def test_peers_get_a_script_and_the_recipe(data: Path) -> None:
    files = peer_files("torchvision", suite_spec(data, "val"))
    compile(files["peer.py"], "peer.py", "exec")
    given = json.loads(files["recipe.json"])
    assert (given["batch_size"], given["gpu"], given["to_host"], len(given["files"])) == (4, None, False, 6)
    compile(peer_files("nvjpeg", suite_spec(data, "decode"))["peer.py"], "peer.py", "exec")
    with pytest.raises(SpecError, match="nvJPEG only decodes"):
        peer_files("nvjpeg", suite_spec(data, "val"))


@pytest.mark.skipif("TORCH_PYTHON" not in os.environ, reason="TORCH_PYTHON names no interpreter with torchvision")
@pytest.mark.parametrize("spec", ["decode", "val", "train"])
def test_torchvision_itself_runs_the_recipe(data: Path, spec: str) -> None:
    python = os.environ["TORCH_PYTHON"]
    bench = Bench({spec: suite_spec(data, spec)}, repeats=1, peers={"torchvision": python, "dataloader": python})
    ours, *peers = run_bench(bench)["results"]
    assert median_of(ours), ours
    for peer in peers:  # a refusal would say that its outputs are not like ours
        assert median_of(peer), peer


# -- strata and suites ------------------------------------------------------------------------------------------------


def test_files_are_sorted_by_kind(data: Path) -> None:
    picture(data / "b", "wide.jpg", subsampling=1)
    large = np.zeros((2000, 4000, 3), np.uint8)
    (data / "b" / "large.jpg").write_bytes(simplejpeg.encode_jpeg(large, quality=10, colorsubsampling="420"))
    Image.fromarray(large[:9, :9]).save(data / "b" / "a.png")
    Image.fromarray(large[:9, :9]).convert("CMYK").save(data / "b" / "cmyk.jpg")
    (data / "b" / "other.jpg").write_bytes(b"no picture")
    graph = load_spec(suite_spec(data, "decode").spec, {"data": str(data)}).graph
    found = strata_of(graph)
    expected = {"4:2:0": 3, "4:4:4": 1, "4:2:2": 1, "gray": 1, "progressive": 1, "large": 1, "other": 1,
                "png": 1, "cmyk": 1}  # fmt: skip
    assert found == expected
    assert next(iter(found)) == "4:2:0"
    for kind, count in expected.items():
        (inner,) = [n.op for n in only(graph, kind).nodes if n.op.name == "readers.file"]
        assert len(inner.files) == len(inner.labels) == count  # type: ignore[attr-defined]
    (gray,) = [n.op for n in only(graph, "gray").nodes if n.op.name == "readers.file"]
    assert [Path(f).name for f in gray.files] == ["gray.jpg"]  # type: ignore[attr-defined]
    assert gray.labels == (1,)  # type: ignore[attr-defined]
    assert gray.random_shuffle  # type: ignore[attr-defined]
    with pytest.raises(SpecError, match="no files of the stratum 4:1:1"):
        only(graph, "4:1:1")


def test_a_long_header_is_read_to_its_end(data: Path) -> None:
    file = data / "b" / "full.jpg"
    plain = file.read_bytes()
    comment = b"\xff\xfe" + (65535).to_bytes(2, "big") + bytes(65533)
    file.write_bytes(plain[:2] + comment * 3 + plain[2:])
    assert strata_of(load_spec(suite_spec(data, "decode").spec, {"data": str(data)}).graph)["4:4:4"] == 1


def test_each_stratum_is_a_setting_of_its_own(data: Path) -> None:
    bench = Bench({"val": suite_spec(data, "val"), "decode": suite_spec(data, "decode")}, repeats=1, strata=True)
    labels = [label for label, _ in bench.settings()]
    kinds = ["4:2:0 (3 files)", "4:4:4 (1 file)", "gray (1 file)", "progressive (1 file)"]
    expected = ["val", *(f"val {k}" for k in kinds), "decode", *(f"decode {k}" for k in kinds)]
    assert sorted(labels) == sorted(expected)
    assert [m.stratum for label, m in bench.settings() if label == "val gray (1 file)"] == ["gray"]


def test_strata_need_files(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("version: 1\ngraph: [{op: random.uniform, out: x}]\noutputs: {x: x}\n")
    with pytest.raises(SpecError, match=r"one readers\.file"):
        strata_of(load_spec(spec).graph)


SMALL = ((0.0, 0.02), (1.0, 0.3))
"""Sizes of images, so that a test takes little time."""


def test_sizes_in_a_row_are_those_of_the_web() -> None:
    sizes = np.array([pixels_of(k) for k in range(2000)]) / 1e6
    assert np.quantile(sizes, (0.05, 0.5, 0.9, 0.99)) == pytest.approx((0.04, 0.25, 1.0, 4.0), rel=0.05)
    assert np.median(sizes[:50]) == pytest.approx(0.25, rel=0.2)


def test_a_mix_has_its_shares_and_bytes(data: Path, tmp_path: Path) -> None:
    pictures = sorted(data.rglob("*.jpg"))
    made = suite_data("web", data, tmp_path)
    files = sorted((made / "0").iterdir())
    assert len(files) == 2000
    spec = write_suite("web", tmp_path)["val"]
    found = strata_of(load_spec(spec, {"data": str(made)}).graph)
    assert found == {"4:2:0": 1240, "progressive": 500, "png": 120, "webp": 100, "cmyk": 40}
    counts = write_mix(
        pictures, tmp_path / "more", count=1, nbytes=5 << 20, shares={"png": 1.0, "pnm": 1.0}, megapixels=SMALL
    )
    assert sum(p.stat().st_size for p in (tmp_path / "more").rglob("*.p*m")) > 2 << 20
    assert abs(counts["png"] - counts["pnm"]) <= 1
    write_mix(pictures[:1], tmp_path / "variants", count=4, shares={"png": 1.0}, variants=3, megapixels=SMALL)
    assert len({p.read_bytes() for p in (tmp_path / "variants" / "0").iterdir()}) == 3
    kinds = dict.fromkeys(KINDS, 1.0)
    write_mix(pictures[:1], tmp_path / "different", count=12 * len(KINDS), shares=kinds, variants=0, megapixels=SMALL)
    files = sorted((tmp_path / "different" / "0").iterdir())
    assert len(files) == len({p.read_bytes() for p in files}) == 12 * len(KINDS)
    with pytest.raises(SpecError, match="there are no images"):
        write_mix([], tmp_path / "none", count=1)


def test_every_spec_of_a_suite_builds(tmp_path: Path, data: Path) -> None:
    for name in SUITES:
        for path in write_suite(name, tmp_path).values():
            load_spec(path, {"data": str(data)})
