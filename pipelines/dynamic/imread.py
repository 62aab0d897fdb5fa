"""imread: image files as tensors."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ...ops.errors import ArgumentTypeError
from ..plugins import find_operator
from .values import Value, as_batch, as_tensor, invoke


def imread(filepaths: Any, /, *, device: Any = "cpu", **arguments: Any) -> Any:
    """Read and decode the image at a path, a Tensor; or, of a list of paths, a Batch. Paths may be Tensors and Batches
    of their bytes. ``arguments`` are those of `decoders.image`. Raises TypeError for what is no path, SampleError for
    files that cannot be read or decoded."""
    encoded = invoke(find_operator("io.file.read"), (_paths(filepaths),), {})
    return invoke(find_operator("decoders.image"), (encoded,), arguments, device=device)


def _paths(given: Any) -> Value:
    if isinstance(given, Value):
        return given
    if isinstance(given, (str, bytes, os.PathLike)):
        return as_tensor(_bytes(given))
    if isinstance(given, (list, tuple)):
        return as_batch([_bytes(p) for p in given], dtype="u8")
    raise ArgumentTypeError(f"imread takes a path, a list of paths, or a Tensor or Batch of their bytes, got {given!r}")


def _bytes(path: Any) -> Any:
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise ArgumentTypeError(f"a path is a text or a pathlib.Path, got {path!r}")
    return np.frombuffer(os.fsencode(path), np.uint8)
