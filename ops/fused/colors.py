"""Fused colour operators: several in a row, computed in one pass over the pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..color.linear import F32, Linear, chain
from ..context import Context
from ..copies.windows import known_layout
from ..gpu.launch_recording import without_data
from ..images.frames import ImageParts
from ..types import DALIDataType
from .resize_normalize import part

T = TypeVar("T")
FIRST, SECOND = "first.", "second."
"""Prefixes of argument names in the fused operator, for its two parts: ``first.brightness``, ``second.hue``."""
_UINT8 = np.dtype(np.uint8)


def joined_arguments(first: Mapping[str, T], second: Mapping[str, T]) -> dict[str, T]:
    """Join the argument inputs of two operators to one dict, with the prefixes of the fused operator."""
    return {FIRST + k: v for k, v in first.items()} | {SECOND + k: v for k, v in second.items()}


def can_join(first: Operator, second: Operator, between: Spec, after: Spec) -> bool:
    """Return whether `JoinedColors` can replace ``first`` and the operator ``second`` after it, because both are linear
    maps of uint8 pixels. ``between``, ``after``: specs of their outputs."""
    return (
        isinstance(first, (Linear, JoinedColors))
        and isinstance(second, Linear)
        and getattr(first, "parity", "dali") == second.parity == "dali"
        and between.dtype is DALIDataType.UINT8
        and after.dtype is DALIDataType.UINT8
        and between.shape is not None
        and between.shape[-1] == 3
    )


class JoinedColors(Operator, name="_fused.colors"):
    """Two or more colour operators in one kernel. Results equal those of the separate operators: pixels are rounded to
    bytes after each one."""

    replayable = True
    bound = Linear.bound

    first: Annotated[Any, Arg("the first operator, or several fused ones")]
    second: Annotated[Any, Arg("the operator that follows")]

    def infer(self, *specs: Spec) -> Spec:
        result: Spec = self.second.infer(self.first.infer(*specs))
        return result

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        if images.dtype == _UINT8:
            images = images.replace(layout=known_layout(images, Linear.layouts))
            if (images.shapes[:, -1] == 3).all():
                found = self._steps(ctx, images)
                if all(parts.sample is None for parts, _, _ in found):
                    like = without_data(images)
                    return chain(ctx, images, *_stacked(found), lambda c: _stacked(self._steps(c, like)))
        # other inputs, or arguments per frame: apply the operators one after the other
        stage = ctx.stage
        middle = self.first.kernel(stage)(part(ctx, self.first, FIRST), images)
        out: Batch = self.second.kernel(stage)(part(ctx, self.second, SECOND), middle)
        return out

    gpu = cpu

    def _steps(self, ctx: Context, images: Batch) -> list[tuple[ImageParts, F32, F32]]:
        """Return the linear map of each fused operator, in order: the images or frames, and a matrix and an offset for
        each."""
        first, second = part(ctx, self.first, FIRST), part(ctx, self.second, SECOND)
        if isinstance(self.first, JoinedColors):
            before = self.first._steps(first, images)
        else:
            before = [self.first.maps(first, images, _UINT8)]
        return [*before, self.second.maps(second, images, _UINT8)]


def _stacked(steps: list[tuple[ImageParts, F32, F32]]) -> tuple[ImageParts, F32, F32]:
    """Stack the linear maps of K operators to matrices [M, K, 3, 3] and offsets [M, K, 3] for M images. If an operator
    has arguments per frame, return only that operator's map."""
    by_frame = next((step for step in steps if step[0].sample is not None), None)
    if by_frame is not None:
        return by_frame
    return steps[0][0], np.stack([m for _, m, _ in steps], axis=1), np.stack([o for _, _, o in steps], axis=1)
