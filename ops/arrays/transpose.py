"""Operator transpose: reorder dimensions."""

from __future__ import annotations

from typing import Annotated

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..copies.strided import permute, run, whole
from ..errors import SpecError


class Transpose(Operator, name="transpose"):
    """Reorder the dimensions: output dimension i is input dimension perm[i]."""

    replayable = True
    example = "{op: transpose, in: images, perm: [2, 0, 1], out: images}"

    perm: Annotated[tuple[int, ...] | None, Arg("input dimensions in their new order; reversed by default")] = None
    transpose_layout: Annotated[bool, Arg("also reorder the layout; if false, keep it")] = True
    output_layout: Annotated[str | None, Arg("layout of the output; overrides transpose_layout")] = None

    def check(self) -> None:
        if self.perm is not None and sorted(self.perm) != list(range(len(self.perm))):
            raise SpecError(f"perm must hold each of 0 to {len(self.perm) - 1} once, got {list(self.perm)}")
        if self.perm is not None and self.output_layout and len(self.output_layout) != len(self.perm):
            raise SpecError(f"output_layout {self.output_layout!r} does not name {len(self.perm)} dimensions")

    def infer(self, *specs: Spec) -> Spec:
        spec = specs[0]
        if spec.shape is None:
            layout = self.output_layout if self.output_layout is not None else ""
            return Spec(None if self.perm is None else (None,) * len(self.perm), spec.dtype, layout)
        order = self._order(len(spec.shape))
        return Spec(tuple(spec.shape[i] for i in order), spec.dtype, self._layout(spec.layout, order))

    def _order(self, ndim: int) -> list[int]:
        if self.perm is None:
            return list(range(ndim))[::-1]
        if len(self.perm) != ndim:
            raise SpecError(f"perm has {len(self.perm)} entries for {ndim} dimensions")
        return list(self.perm)

    def _layout(self, layout: str, order: list[int]) -> str:
        if self.output_layout is not None:
            return self.output_layout
        return "".join(layout[i] for i in order) if layout and self.transpose_layout else layout

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        order = self._order(data.ndim)
        return run(ctx, permute(whole(data), order, self._layout(data.layout, order)), data)

    gpu = cpu
