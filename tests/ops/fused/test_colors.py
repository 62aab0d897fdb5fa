"""Colour operators in a row: joined by the compiler, and equal to one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run import fn, pipeline_def, types
from dali_run.ops.fused.colors import JoinedColors

from ...kit.dali_cases import apply, batch_of, operator, source
from ...kit.emulated_lane import EmulatedLane

IMAGES = [source(k, 0, 256, "uint8", [7 + k, 9 + 2 * k, 3]) for k in range(5)]
VALUES = {"brightness": [0.2, 0.8, 1.0, 1.9, 3.0], "hue": [0.0, 10.0, -70.0, 180.0, 400.0]}


def chain_of(*ops: Any) -> Any:
    """Operators as the compiler joins them."""
    joined = ops[0]
    for op in ops[1:]:
        names = {f"first.{n}" for n in joined.per_sample} | {f"second.{n}" for n in op.per_sample}
        joined = JoinedColors(first=joined, second=op, per_sample=frozenset(names))
    return joined


@pytest.mark.parametrize("lane", [None, EmulatedLane()], ids=["cpu", "cuda"])
def test_equal_to_one_after_the_other(lane: Any) -> None:
    ops = [
        operator("brightness", ("brightness",)),
        operator("hsv", ("hue",), saturation=1.4),
        operator("contrast", contrast=1.7),
        operator("color_twist", saturation=0.3, brightness=1.2),
    ]
    given = {n: batch_of([np.float32(v) for v in values]) for n, values in VALUES.items()}
    want = batch_of(IMAGES, "HWC")
    for op in ops:
        want, _ = apply(op, want, args={n: given[n] for n in op.per_sample})
    args = {"first.first.first.brightness": given["brightness"], "first.first.second.hue": given["hue"]}
    got, rejects = apply(chain_of(*ops), batch_of(IMAGES, "HWC"), args=args, lane=lane)
    assert not rejects
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("lane", [None, EmulatedLane()], ids=["cpu", "cuda"])
def test_other_inputs_go_one_after_the_other(lane: Any) -> None:
    ops = [operator("hsv", hue=30.0), operator("brightness", brightness=1.5)]
    floats = [(i / 2).astype(np.float32) for i in IMAGES]
    got, _ = apply(chain_of(*ops), batch_of(floats, "HWC"), lane=lane)
    middle, _ = apply(ops[0], batch_of(floats, "HWC"), lane=lane)
    want, _ = apply(ops[1], middle, lane=lane)
    assert got.dtype == np.uint8
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    odd = batch_of([IMAGES[0], IMAGES[1][..., :1]], "HWC")
    out, rejects = apply(chain_of(*ops), odd, lane=lane)
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_shape")]
    frames = batch_of([np.stack([IMAGES[0]] * 2)], "FHWC")
    by_frame = {"second.brightness": batch_of([np.float32([1, 2])], "F")}
    joined = chain_of(ops[0], operator("brightness", ("brightness",)))
    out, _ = apply(joined, frames, args=by_frame, lane=lane)
    twice, _ = apply(ops[0], batch_of([IMAGES[0]], "HWC"))
    np.testing.assert_array_equal(out.sample(0)[0], twice.sample(0))
    np.testing.assert_array_equal(out.sample(0)[1], np.minimum(twice.sample(0).astype(int) * 2, 255))


def test_the_compiler_joins_them() -> None:
    pictures = np.stack([source(k, 0, 256, "uint8", [8, 9, 3]) for k in range(4)])

    def run(between: Any) -> tuple[np.ndarray, list[str]]:
        @pipeline_def(batch_size=4, num_threads=1, device_id=None, seed=1)
        def pipe() -> Any:
            images = fn.external_source(source=lambda: pictures, layout="HWC", dtype=types.UINT8, ndim=3)
            images = fn.crop(images, crop=(6, 7))
            images = fn.color_space_conversion(images, image_type=types.RGB, output_type=types.BGR)
            images = fn.brightness(images, brightness=fn.random.uniform(range=[0.5, 1.5]))
            images = between(fn.hue(images, hue=fn.random.uniform(range=[-60, 60])))
            return fn.contrast(images, contrast=1.3)

        pipeline = pipe()
        pipeline.build()
        out = np.stack([np.asarray(t) for t in pipeline.run()[0]])
        return out, list(pipeline.executor_statistics())

    joined, names = run(lambda images: images)
    apart, others = run(lambda images: fn.copy(images))
    np.testing.assert_array_equal(joined, apart)
    assert "brightness+hue+contrast" in names
    assert "brightness+hue" in others
