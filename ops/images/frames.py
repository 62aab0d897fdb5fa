"""Parts of a batch to which operator arguments apply: samples, or the frames of sequences if an argument is given per
frame. Called by operators that process images."""

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
class ImageParts:
    """Images of a batch, as M parts with their shapes and arguments. A part is a whole sample, or one frame of a
    sequence. Created by one call of an operator."""

    offsets: I64
    """Index in the batch's data of each part's first element, [M]."""
    shapes: I64
    """Shape of each part, [M, D]; if the parts are frames, without the dimension of frames."""
    sample: I64 | None
    """Index in the batch of each part's sample, [M]; None if each part is a whole sample."""
    arguments: dict[str, npt.NDArray[Any]]
    """Values of the operator's arguments, by name, one for every part: [M] or [M, k]."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def sizes(self) -> I64:
        """Number of elements of each part, int64[M]."""
        return elements(self.shapes)

    def places(self, out: Batch) -> I64:
        """Return the index of each part's first element in the data of ``out``, an output batch without gaps whose
        parts have the same shapes."""
        if self.sample is None:
            return out.offsets
        sizes = self.sizes
        ends: I64 = sizes.cumsum()
        return ends - sizes + (int(out.offsets[0]) if len(out) else 0)


def image_parts(ctx: Context, batch: Batch, names: Iterable[str], dtype: Any = np.float32) -> ImageParts:
    """Divide ``batch`` into images (whole samples or frames), and return them with the values of the arguments
    ``names``. By DALI's rule for sequences, an argument whose layout begins with F has one value per frame (or one for
    all); other arguments hold for the whole sample. A sample whose number of frames differs from its argument's is
    rejected, and gets zeros."""
    names = list(names)
    framed = [n for n in names if n in ctx.args and ctx.args[n].layout.startswith("F") and batch.layout.startswith("F")]
    if not framed:
        given = {n: ctx.arg(n, dtype) for n in names}
        return ImageParts(batch.offsets, batch.shapes.astype(np.int64), None, given)
    counts = batch.shapes[:, 0].astype(np.int64)
    sample = np.repeat(np.arange(len(batch)), counts)
    shapes = batch.shapes[:, 1:].astype(np.int64)[sample]
    number = np.arange(len(sample)) - np.repeat(counts.cumsum() - counts, counts)
    offsets = batch.offsets[sample] + number * elements(shapes)
    given = {n: _by_frame(ctx, n, counts, dtype) if n in framed else ctx.arg(n, dtype)[sample] for n in names}
    return ImageParts(offsets, shapes, sample, given)


def as_frames(images: Batch, parts: ImageParts) -> ImageParts:
    """Split ``parts`` that are whole sequences into single frames. Each frame gets the arguments of its sequence."""
    counts = images.shapes[:, 0].astype(np.int64)
    sample = np.repeat(np.arange(len(images)), counts)
    shapes = images.shapes[:, 1:].astype(np.int64)[sample]
    number = np.arange(len(sample)) - np.repeat(counts.cumsum() - counts, counts)
    given = {k: v[sample] for k, v in parts.arguments.items()}
    return ImageParts(images.offsets[sample] + number * elements(shapes), shapes, sample, given)


def _by_frame(ctx: Context, name: str, counts: I64, dtype: Any) -> npt.NDArray[Any]:
    """Return the values of the argument ``name`` for each frame: [M] or [M, k]. Sample i has ``counts[i]`` frames."""
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
