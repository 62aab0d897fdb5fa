"""Pictures: what arguments speak of, samples or (where an argument is given per frame) the frames of sequences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base import parameter
from ..batch import I64, Batch, elements
from ..context import Context


@dataclass(frozen=True, slots=True)
class Pictures:
    """M pieces of N samples: where they begin, their shapes, and the arguments of each."""

    offsets: I64
    shapes: I64
    """[M, D], without the frames' dimension where `per_frame`."""
    sample: I64 | None
    """[M] the sample that a piece belongs to; None where pieces are samples."""
    arguments: dict[str, npt.NDArray[Any]]
    """[M] or [M, k] by name."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def sizes(self) -> I64:
        """Elements of each, int64[M]."""
        return elements(self.shapes)

    def places(self, out: Batch) -> I64:
        """Where the pieces begin in ``out``, a packed batch of samples whose pieces are of these shapes."""
        if self.sample is None:
            return out.offsets
        sizes = self.sizes
        ends: I64 = sizes.cumsum()
        return ends - sizes + (int(out.offsets[0]) if len(out) else 0)


def pictures(ctx: Context, batch: Batch, names: Iterable[str], dtype: Any = np.float32) -> Pictures:
    """The pieces of ``batch`` with the arguments ``names``, by DALI's rule for sequences: an argument whose layout
    begins with F holds a value for each frame (or one for all); any other holds for the whole sample.

    A sample whose argument has another number of frames is rejected, and has zeros there.
    """
    names = list(names)
    framed = [n for n in names if n in ctx.args and ctx.args[n].layout.startswith("F") and batch.layout.startswith("F")]
    if not framed:
        given = {n: ctx.arg(n, dtype) for n in names}
        return Pictures(batch.offsets, batch.shapes.astype(np.int64), None, given)
    counts = batch.shapes[:, 0].astype(np.int64)
    sample = np.repeat(np.arange(len(batch)), counts)
    shapes = batch.shapes[:, 1:].astype(np.int64)[sample]
    number = np.arange(len(sample)) - np.repeat(counts.cumsum() - counts, counts)
    offsets = batch.offsets[sample] + number * elements(shapes)
    given = {n: _by_frame(ctx, n, counts, dtype) if n in framed else ctx.arg(n, dtype)[sample] for n in names}
    return Pictures(offsets, shapes, sample, given)


def as_frames(images: Batch, parts: Pictures) -> Pictures:
    """The frames of sequences as pieces, with the arguments of their samples."""
    counts = images.shapes[:, 0].astype(np.int64)
    sample = np.repeat(np.arange(len(images)), counts)
    shapes = images.shapes[:, 1:].astype(np.int64)[sample]
    number = np.arange(len(sample)) - np.repeat(counts.cumsum() - counts, counts)
    given = {k: v[sample] for k, v in parts.arguments.items()}
    return Pictures(images.offsets[sample] + number * elements(shapes), shapes, sample, given)


def _by_frame(ctx: Context, name: str, counts: I64, dtype: Any) -> npt.NDArray[Any]:
    """The values of an argument that is given per frame, [M] or [M, k]."""
    given, rows = ctx.args[name], []
    vector = parameter(type(ctx.op), name).is_vector
    for i, count in enumerate(counts.tolist()):
        values = np.asarray(given.sample(i), dtype)
        values = values.reshape(len(values), -1) if vector else values.reshape(-1)
        if len(values) not in (1, count):
            ctx.reject(i, "bad_argument", f"{name} has values for {len(values)} frames, the sequence has {count}")
            values = np.zeros_like(values[:1]) if len(values) else np.zeros((1, *values.shape[1:]), dtype)
        rows.append(values if len(values) == count else np.repeat(values[:1], count, axis=0))
    return np.concatenate(rows) if rows else np.zeros(0, dtype)
