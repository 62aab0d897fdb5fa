"""imread: image files as tensors."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ...ops.errors import ArgumentTypeError
from ..plugins import find_operator
from .values import Value, as_batch, as_tensor, invoke


def imread(filepaths: Any, /, *, device: Any = "cpu", **arguments: Any) -> Any:
    """Read and decode image files: one path gives a Tensor, a list of paths a Batch. A path may also be a Tensor of its
    bytes, and a list of paths a Batch of such. ``arguments`` are the arguments of `decoders.image`. Raises TypeError
    for a value that is not a path, SampleError for files that cannot be read or decoded."""
    encoded = invoke(find_operator("io.file.read"), (_paths(filepaths),), {})
    return invoke(find_operator("decoders.image"), (encoded,), arguments, device=device)


def _paths(paths: Any) -> Value:
    if isinstance(paths, Value):
        return paths
    if isinstance(paths, (str, bytes, os.PathLike)):
        return as_tensor(_bytes(paths))
    if isinstance(paths, (list, tuple)):
        return as_batch([_bytes(p) for p in paths], dtype="u8")
    raise ArgumentTypeError(f"imread takes a path, a list of paths, or a Tensor or Batch of their bytes, got {paths!r}")


def _bytes(path: Any) -> Any:
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise ArgumentTypeError(f"a path is a string or a pathlib.Path, got {path!r}")
    return np.frombuffer(os.fsencode(path), np.uint8)
