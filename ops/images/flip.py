"""Operator flip: mirror images left to right, top to bottom, front to back."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..copies.strided import CopyPlan, mirror, run, whole
from ..copies.windows import image_layout, known_layout


class Flip(Operator, name="flip"):
    """Mirror images left to right, top to bottom or front to back. Pixels are copied unchanged."""

    replayable = True
    layouts = ("FDHWC", "FHWC", "DHWC", "HWC", "FCDHW", "FCHW", "CDHW", "CHW")
    example = "{op: flip, in: images, horizontal: $coin, out: images}"

    horizontal: Annotated[int, Arg("not 0: mirror left to right", per_sample=True)] = 1
    vertical: Annotated[int, Arg("not 0: mirror top to bottom", per_sample=True)] = 0
    depthwise: Annotated[int, Arg("not 0: mirror front to back", per_sample=True)] = 0

    def infer(self, *specs: Spec) -> Spec:
        return Spec(specs[0].shape, specs[0].dtype, image_layout(specs[0].layout, specs[0].ndim, self.layouts))

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        everything = whole(images.replace(layout=known_layout(images, self.layouts)))
        return run(ctx, self._mirrored(ctx, everything), images, lambda c: self._mirrored(c, everything))

    def _mirrored(self, ctx: Context, plan: CopyPlan) -> CopyPlan:
        layout = plan.layout
        for letter, name in (("W", "horizontal"), ("H", "vertical"), ("D", "depthwise")):
            if letter in layout and (name in ctx.args or getattr(self, name)):
                plan = mirror(plan, layout.index(letter), ctx.arg(name, np.int32) != 0)
        return plan

    gpu = cpu
