"""Call operators that resize on images, and make the inputs that DALI was given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "resize.npz")
CASES: list[dict[str, Any]] = json.loads(str(GOLDEN["cases"]))


def run(op: Any, images: list[np.ndarray[Any, Any]], layout: str = "HWC", **args: Batch) -> tuple[Any, Context]:
    batch = Batch.from_list(images, layout, Samples.numbered(len(images)))
    ctx = Context(op, "cpu", batch.samples, args)
    return op.cpu(ctx, batch), ctx


def source(seed: int, dtype: str, shape: list[int]) -> np.ndarray[Any, Any]:
    low, high = {"uint8": (0, 256), "int16": (-32768, 32768), "uint16": (0, 65536), "float32": (-1000, 1000)}[dtype]
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)
