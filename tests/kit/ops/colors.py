"""Conversions between colour spaces, and images for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.color.conversion import COLOURS, ColorSpaceConversion
from dali_run.ops.context import Context
from dali_run.ops.types import DALIImageType

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "color.npz")


PAIRS = [(a, b) for a in COLOURS for b in COLOURS if a is not b]


def source(space: DALIImageType) -> np.ndarray:
    return GOLDEN["GRAY" if space is DALIImageType.GRAY else "colour"]


def convert(a: DALIImageType, b: DALIImageType, images: list[np.ndarray], **how: Any) -> tuple[Batch, Context]:
    op = ColorSpaceConversion(image_type=a, output_type=b)
    op.check()
    batch = Batch.from_list(images, how.pop("layout", "HWC"), Samples.numbered(len(images)))
    ctx = Context(op, how.pop("stage", "cpu"), batch.samples, **how)
    return op.cpu(ctx, batch), ctx
