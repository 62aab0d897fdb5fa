"""`parity` of single operators against the libraries: Pillow and OpenCV here, torchvision and albumentations by what
make_library_presets.py stored."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dali_run.ops.base import Spec, operators, parameters
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType, Library
from dali_run.pipelines.compile.place import Target
from dali_run.pipelines.compile.plan import compile_graph
from dali_run.pipelines.plugins import load_operators
from dali_run.pipelines.spec.build import load_spec
from tests.kit.ops.presets import ours

from ...golden.library_calls import CASES, Case, called, image
from ...kit.operators import apply, batch_of, operator

STORED = Path(__file__).parents[2] / "golden" / "library_presets.npz"
IMAGE = image()


@pytest.mark.parametrize("case", [c for c in CASES if c.library in ("pillow", "opencv")], ids=lambda c: c.name)
def test_pixels_of_pillow_and_opencv(case: Case) -> None:
    """Of images in a batch, one of them turned, so that sizes differ."""
    if case.library == "opencv":
        pytest.importorskip("cv2")
    turned = np.ascontiguousarray(IMAGE.transpose(1, 0, 2))
    for found, given in zip(ours(case, [IMAGE, turned]), (IMAGE, turned), strict=True):
        np.testing.assert_array_equal(found, called(case, given))


@pytest.mark.parametrize("case", [c for c in CASES if c.library == "torchvision"], ids=lambda c: c.name)
def test_pixels_of_torchvision(case: Case) -> None:
    (found,) = ours(case, [IMAGE])
    np.testing.assert_array_equal(found, np.load(STORED)[case.name])


@pytest.mark.parametrize("case", [c for c in CASES if c.library == "albumentations"], ids=lambda c: c.name)
def test_pixels_of_albumentations(case: Case) -> None:
    """With the OpenCV that made the file they are equal; another may round a few values in another way."""
    pytest.importorskip("cv2")
    (found,) = ours(case, [IMAGE])
    stored = np.load(STORED)[case.name]
    assert found.shape == stored.shape
    assert (np.abs(found.astype(int) - stored) > 1).mean() < 0.01


def test_every_preset_is_compared() -> None:
    """Operators here have a case for each library that they name, and so have the libraries of new operators."""
    load_operators()
    compared = {(yaml.safe_load(c.step)["op"], c.library) for c in CASES}
    for name, op in operators().items():
        if "parity" not in parameters(op) or parameters(op)["parity"].type == Library:
            continue  # that is resizing, cropping and colour spaces: tests/ops/images/test_presets.py
        libraries = set(typing.get_args(parameters(op)["parity"].type)) & {"torchvision", "pillow", "opencv",
                                                                          "albumentations"}  # fmt: skip
        missing = {library for library in libraries if (name, library) not in compared}
        alike = {("rotate", "opencv"), ("warp_affine", "albumentations"), ("color_twist", "albumentations"),
                 ("hsv", "albumentations"), ("hsv", "pillow")}  # fmt: skip
        assert not {(name, library) for library in missing} - alike, f"{name}: {missing}"


def test_frames_channels_and_arguments_by_sample() -> None:
    """Each frame is an image, gray images are taken, and samples have factors of their own."""
    for library in ("torchvision", "pillow", "albumentations"):
        frames = np.stack([IMAGE, IMAGE[::-1]])
        op = operator("contrast", parity=library, contrast=0.5)
        alone = [np.asarray(a) for a in apply(op, batch_of(list(frames), "HWC"))[0]]
        (together,) = apply(op, batch_of([frames], "FHWC"))[0]
        np.testing.assert_array_equal(together, np.stack(alone))
        gray = np.ascontiguousarray(IMAGE[:, :, :1])
        (found,) = apply(op, batch_of([gray], "HWC"))[0]
        assert found.shape == gray.shape
        each = operator("contrast", ["contrast"], parity=library)
        factors = batch_of([np.float32(0.5), np.float32(1.0)])
        out, rejects = apply(each, batch_of([IMAGE, IMAGE], "HWC"), args={"contrast": factors})
        assert not rejects
        np.testing.assert_array_equal(out.sample(0), alone[0])
        assert np.abs(out.sample(1).astype(int) - IMAGE).max() <= 1


def test_what_does_not_go_is_refused_alone() -> None:
    """An image that a library cannot take leaves the batch; its neighbours stay."""
    two = np.zeros((6, 5, 2), np.uint8)
    out, rejects = apply(operator("brightness", parity="pillow", brightness=2.0), batch_of([IMAGE, two, IMAGE], "HWC"))
    assert [r.slot for r in rejects] == [1]
    np.testing.assert_array_equal(out.sample(0), out.sample(2))
    small = np.zeros((2, 2, 3), np.uint8)
    op = operator("gaussian_blur", parity="torchvision", window_size=[9])
    out, rejects = apply(op, batch_of([small, IMAGE], "HWC"))
    assert [r.slot for r in rejects] == [0]
    assert out.sample(1).shape == IMAGE.shape
    empty = np.zeros((0, 4, 3), np.uint8)
    for library in ("torchvision", "pillow", "opencv"):
        op = operator("warp_affine", parity=library, matrix=[1, 0, 0, 0, 1, 0])
        out, rejects = apply(op, batch_of([empty, IMAGE], "HWC"))
        assert out.sample(0).size == 0
        np.testing.assert_array_equal(out.sample(1), IMAGE)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("brightness", {"parity": "pillow", "brightness_shift": 0.1}, "brightness_shift needs parity: dali"),
        ("brightness", {"parity": "torchvision", "dtype": "FLOAT"}, "gives UINT8"),
        ("hue", {"parity": "torchvision", "hue": 20, "image_type": "BGR"}, "image_type needs parity: dali"),
        ("gaussian_blur", {"parity": "pillow", "sigma": 1, "window_size": 5}, "window_size needs parity: dali"),
        ("rotate", {"parity": "opencv", "angle": 3}, "OpenCV has no rotation"),
        ("rotate", {"parity": "albumentations", "angle": 3}, "keep_size: true"),
        ("experimental.warp_perspective", {"parity": "pillow", "border_mode": "wrap"}, "border_mode: wrap"),
    ],
)
def test_arguments_that_only_dali_has(name: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        operator(name, **arguments)


def test_floats_are_refused_with_a_remedy() -> None:
    op = operator("contrast", parity="torchvision", contrast=2)
    with pytest.raises(SpecError, match="cast it first"):
        op.infer(Spec((None, None, 3), DALIDataType.FLOAT, "HWC"))


SPEC = """\
version: 1
pipeline: {parity: %s}
graph:
  - {op: readers.file, files: [a.jpg], out: [jpegs, labels]}
  - {op: decoders.image, in: jpegs, out: images}
  - {op: brightness, in: images, brightness: 1.5, out: images}
  - {op: contrast, in: images, contrast: 1.5, out: images}
outputs: {images: images}
"""


@pytest.mark.parametrize(("library", "joined"), [("dali", True), ("torchvision", False), ("opencv", True)])
def test_a_pipelines_parity_reaches_the_operators_that_know_it(library: str, joined: bool, tmp_path: Path) -> None:
    """OpenCV has no such functions: they stay as they are, and are still one kernel."""
    (tmp_path / "spec.yaml").write_text(SPEC % library)
    plan = compile_graph(load_spec(tmp_path / "spec.yaml").graph, Target("cpu"))
    names = [type(n.op).name for n in plan.graph.nodes]
    assert ("contrast" in names) == (not joined), names
