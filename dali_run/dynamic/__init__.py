"""DALI's dynamic mode (``nvidia.dali.experimental.dynamic``, ``ndd`` for short) on this engine.

Operators are functions of tensors and batches, readers are iterators, and no pipeline is defined
(docs/dynamic-mode.md). The stub file __init__.pyi lists the functions, which are generated from the registry.
"""

from __future__ import annotations

import sys
from typing import Any

from ..pipelines.dynamic.contexts import EvalContext, EvalMode, ThreadPool, get_num_threads, set_num_threads
from ..pipelines.dynamic.devices import (
    Device,
    Stream,
    device,
    get_current_stream,
    get_default_stream,
    set_current_stream,
    set_default_stream,
    stream,
)
from ..pipelines.dynamic.dtypes import (
    DataType,
    DType,
    ImageType,
    InterpType,
    bfloat16,
    dtype,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    type_id,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ..pipelines.dynamic.dtypes import bool_ as bool
from ..pipelines.dynamic.functions import Namespace, look_up, members
from ..pipelines.dynamic.imread import imread
from ..pipelines.dynamic.readers import Reader, ReaderState
from ..pipelines.dynamic.rng import RNG, RNGState, get_default_rng, set_seed
from ..pipelines.dynamic.sources import ExternalSource
from ..pipelines.dynamic.values import Batch, Tensor, as_batch, as_tensor, batch, tensor
from . import capture, checkpoint, math, pytorch

__all__ = [
    "Batch",
    "DType",
    "DataType",
    "Device",
    "EvalContext",
    "EvalMode",
    "ExternalSource",
    "ImageType",
    "InterpType",
    "Reader",
    "ReaderState",
    "Stream",
    "Tensor",
    "ThreadPool",
    "as_batch",
    "as_tensor",
    "batch",
    "bfloat16",
    "bool",
    "capture",
    "checkpoint",
    "device",
    "dtype",
    "float16",
    "float32",
    "float64",
    "get_current_stream",
    "get_default_stream",
    "get_num_threads",
    "imread",
    "int8",
    "int16",
    "int32",
    "int64",
    "math",
    "pytorch",
    "set_current_stream",
    "set_default_stream",
    "set_num_threads",
    "stream",
    "tensor",
    "type_id",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

_NAMESPACES = (
    "decoders", "encoders", "experimental", "experimental.decoders", "experimental.readers", "io", "io.file", "noise",
    "random", "readers", "reductions", "segmentation", "transforms",
)  # fmt: skip
_RANDOM = {"RNG": RNG, "RNGState": RNGState, "get_default_rng": get_default_rng, "set_seed": set_seed}
for _path in _NAMESPACES:
    # so that `import dali_run.dynamic.readers` works before the registry is loaded
    _above, _, _last = _path.rpartition(".")
    _folder = Namespace(f"{__name__}.{_path}", f"{_path}.", _RANDOM if _path == "random" else None)
    setattr(sys.modules[f"{__name__}.{_above}" if _above else __name__], _last, _folder)
    sys.modules[_folder.__name__] = _folder


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    member = look_up(__name__, "", name)
    globals()[name] = member
    return member


def __dir__() -> list[str]:
    return sorted({*__all__, *_NAMESPACES[:1], *(n for n in _NAMESPACES if "." not in n), *members("")})
