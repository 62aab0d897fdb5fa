"""Checks of inputs that all operators on signals share."""

from __future__ import annotations

import numpy as np

from ..base import Spec
from ..batch import Batch
from ..context import Context
from ..errors import SpecError
from ..types import DALIDataType

KINDS = {np.dtype(np.float32): "float", np.dtype(np.int16): "short"}
"""C++ names of the signals' element types, as in the CUDA sources."""


def check_signal(spec: Spec) -> None:
    """Raise SpecError unless a batch with ``spec`` can be a signal of one channel (`check_channel`) of FLOAT or
    INT16."""
    if spec.dtype not in (None, DALIDataType.FLOAT, DALIDataType.INT16):
        raise SpecError(f"takes signals of FLOAT or INT16, got {spec}; cast it first")
    check_channel(spec)


def check_channel(spec: Spec) -> None:
    """Raise SpecError unless a batch with ``spec`` has the shape of a signal of one channel: (n,), or n and axes of
    length 1, as in DALI."""
    if spec.shape is not None and (not spec.shape or sum(n not in (1, None) for n in spec.shape) > 1):
        raise SpecError(f"takes signals of one channel, (n,), (n, 1) or (1, n), got {spec}; decode with downmix: true")


def one_channel(ctx: Context, audio: Batch) -> Batch:
    """Return ``audio`` as signals (n,); samples of several channels are rejected and become empty."""
    if audio.ndim == 1:
        return audio
    lengths = audio.sizes
    wrong = (audio.shapes != 1).sum(axis=1) > 1 if audio.ndim else np.ones(len(audio), np.bool_)
    for i in np.flatnonzero(wrong).tolist():
        ctx.reject(i, "bad_shape", f"needs a signal of one channel, got the shape {audio.shapes[i].tolist()}; decode "
                   "with downmix: true")  # fmt: skip
    return audio.replace(shapes=np.where(wrong, 0, lengths).astype(np.int32)[:, None])
