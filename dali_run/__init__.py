"""dali-run: batch preprocessing from a YAML spec, and DALI's Python API on the same engine."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if sys.platform != "linux":
    raise ImportError(  # checked first: later imports need memfd, statx, SIGALRM of Linux
        f"dali-run runs on Linux with glibc 2.28 or newer, on x86-64 and aarch64; this is {sys.platform}. "
        "On Windows run it in WSL 2, on macOS in a Linux container or virtual machine (docs/install.md)"
    )

from . import ops
from .ops.dali_names import FOLDERS
from .version import __version__

if TYPE_CHECKING:
    from . import (
        auto_aug,
        backend,
        data_node,
        dynamic,
        external_source,
        fn,
        math,
        pickling,
        pipeline,
        plugin,
        plugin_manager,
        tensors,
        tfrecord,
        types,
    )
    from .ops.errors import DaliRunError, DeviceError, JobError, SpecError
    from .pipelines.fleet.api import OperatorReport, Report, run_job
    from .pipelines.job.run import Progress
    from .pipelines.python.data_node import DataNode
    from .pipelines.python.from_spec import load_spec
    from .pipelines.python.indexing import newaxis
    from .pipelines.python.pipeline import OperatorConcurrency, Pipeline, StreamPolicy
    from .pipelines.python.pipeline_def import pipeline_def
    from .pipelines.serve.server import Server

__all__ = [
    "DaliRunError",
    "DataNode",
    "DeviceError",
    "JobError",
    "OperatorConcurrency",
    "OperatorReport",
    "Pipeline",
    "Progress",
    "Report",
    "Server",
    "SpecError",
    "StreamPolicy",
    "__version__",
    "auto_aug",
    "backend",
    "data_node",
    "dynamic",
    "external_source",
    "fn",
    "load_spec",
    "math",
    "newaxis",
    "ops",
    "pickling",
    "pipeline",
    "pipeline_def",
    "plugin",
    "plugin_manager",
    "run_job",
    "tensors",
    "tfrecord",
    "types",
]

_MODULES = (
    "auto_aug",
    "backend",
    "data_node",
    "dynamic",
    "external_source",
    "fn",
    "math",
    "pickling",
    "pipeline",
    "plugin",
    "plugin_manager",
    "tensors",
    "tfrecord",
    "types",
)
_MEMBERS = {
    "DaliRunError": ".ops.errors",
    "DataNode": ".pipelines.python.data_node",
    "DeviceError": ".ops.errors",
    "JobError": ".ops.errors",
    "OperatorConcurrency": ".pipelines.python.pipeline",
    "OperatorReport": ".pipelines.fleet.api",
    "Pipeline": ".pipelines.python.pipeline",
    "Progress": ".pipelines.job.run",
    "Report": ".pipelines.fleet.api",
    "Server": ".pipelines.serve.server",
    "SpecError": ".ops.errors",
    "StreamPolicy": ".pipelines.python.pipeline",
    "load_spec": ".pipelines.python.from_spec",
    "newaxis": ".pipelines.python.indexing",
    "pipeline_def": ".pipelines.python.pipeline_def",
    "run_job": ".pipelines.fleet.api",
}


def __getattr__(name: str) -> Any:
    """Import modules and members on first use, because the command line must start without loading the engine."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _MEMBERS:
        return getattr(import_module(_MEMBERS[name], __name__), name)
    raise AttributeError(f"module 'dali_run' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _Folder(ModuleType):
    """Module for a folder of operators such as ``ops.readers``; it can be imported before the registry is loaded."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_operator_class(self.__name__.removeprefix(f"{ops.__name__}.")), name)

    def __dir__(self) -> list[str]:
        return dir(_operator_class(self.__name__.removeprefix(f"{ops.__name__}.")))


def _operator_class(name: str) -> Any:
    from .pipelines.python.functions import ops_member

    return ops_member(name)


def _operator_class_names() -> list[str]:
    from .pipelines.python.functions import ops_members

    return ops_members()


for _path in FOLDERS:
    sys.modules[f"{ops.__name__}.{_path}"] = _Folder(f"{ops.__name__}.{_path}", "Generated from the registry.")
ops.operator_classes = _operator_class
ops.operator_class_names = _operator_class_names
