"""Kinds of inputs that operators take: numbers, shapes and layouts."""

from __future__ import annotations

from typing import Any

import numpy as np

from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.errors import DaliRunError
from dali_run.ops.types import from_numpy
from tests.kit.operators import apply

IMAGES = [(7, 9, 3), (5, 12, 3), (1, 1, 3), (6, 10, 3)]
"""Shapes of the images that `ragged` puts into a batch, with gaps."""


def ragged(dtype: str, seed: int) -> Batch:
    """Return a batch of images with gaps between them in memory, in another order than in the batch."""
    random = np.random.default_rng(seed)
    sizes = [int(np.prod(s)) for s in IMAGES]
    order, at, offsets = [2, 0, 3, 1], 5, [0] * len(IMAGES)
    for i in order:
        offsets[i] = at
        at += sizes[i] + 3
    low, high = {"uint8": (0, 256), "uint16": (0, 65536), "uint64": (0, 1 << 40)}.get(dtype, (-400, 400))
    values = random.integers(low, high, at + 9)
    data = (values * 0.25).astype(dtype) if dtype.startswith("float") else values.astype(dtype)
    return Batch(data, np.array(offsets), np.array(IMAGES, np.int32), "HWC", Samples.numbered(len(IMAGES)))


def vectors(dtype: str, length: int | None) -> Batch:
    random = np.random.default_rng(3)
    sizes = [length or n for n in (4, 9, 1, 30)]
    return Batch.from_list([random.integers(0, 5, n).astype(dtype) for n in sizes], "", Samples.numbered(4))


def frames() -> Batch:
    random = np.random.default_rng(4)
    shapes = [(3, 8, 9, 3), (2, 5, 12, 3)]
    return Batch.from_list([random.integers(0, 256, s).astype(np.uint8) for s in shapes], "FHWC", Samples.numbered(2))


def plain(dtype: str, shape: tuple[int, ...], layout: str) -> Batch:
    random = np.random.default_rng(5)
    most = 255 if dtype == "uint8" else 1
    return Batch.from_list([(random.random(shape) * most).astype(dtype) for _ in range(3)], layout, Samples.numbered(3))


KINDS = {
    "images": lambda: ragged("uint8", 1), "float images": lambda: ragged("float32", 2), "frames": frames,
    "numbers": lambda: Batch.from_dense(np.arange(4, dtype=np.int32), "", Samples.numbered(4)),
    "vectors": lambda: vectors("float32", None), "spectra": lambda: plain("float32", (257, 9), "ft"),
    "boxes": lambda: plain("float32", (4, 4), ""), "points": lambda: plain("float32", (5, 2), ""),
    "masks": lambda: plain("uint8", (6, 7, 1), "HWC"),
}  # fmt: skip
"""Kinds of input batches; the example of an operator is tried with each kind, on all its inputs."""


def takes(op: Any, inputs: list[Batch]) -> bool:
    """Return whether the operator, and then its cpu kernel, accepts these inputs."""
    try:
        op.infer(*(Spec((None,) * b.ndim, from_numpy(b.dtype), b.layout) for b in inputs))
        results, rejects = apply(op, *inputs)
    except (DaliRunError, ValueError, IndexError, TypeError, AttributeError):
        return False
    results = results if isinstance(results, tuple) else (results,)
    return not rejects and any(len(r) and r.sizes.any() for r in results)
