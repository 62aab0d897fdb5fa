"""NVIDIA Triton: a model for its Python back end that answers requests with the pipeline of a spec, and DALI's
`autoserialize`. `dali-run serve-model` writes the model repository."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from ..pipelines.serve.server import RequestError, Server

__all__ = ["ServedModel", "autoserialize"]

_Factory = TypeVar("_Factory", bound=Callable[..., Any])


def autoserialize(dali_pipeline: _Factory) -> _Factory:
    """Mark a function with @pipeline_def as the one that `dali-run serve-model FILE.py` serves.

    Raises TypeError for anything else.
    """
    if not getattr(dali_pipeline, "_is_pipeline_def", False):
        raise TypeError("@autoserialize goes above @pipeline_def")
    dali_pipeline._is_autoserialize = True  # type: ignore[attr-defined]
    return dali_pipeline


class ServedModel:
    """Base of ``TritonPythonModel`` in model.py. The spec's external_sources are the model's inputs, its outputs the
    outputs."""

    spec: ClassVar[str | os.PathLike[str]]

    def initialize(self, args: dict[str, str]) -> None:
        """Load the spec. ``args`` are Triton's: the instance's device, and the configuration, whose max_batch_size
        counts."""
        config = json.loads(args.get("model_config") or "{}")
        on_gpu = args.get("model_instance_kind") == "GPU"
        device = int(args.get("model_instance_device_id") or 0) if on_gpu else None
        given = {"batch_size": config["max_batch_size"]} if config.get("max_batch_size") else {}
        self._server = Server(self.spec, device_id=device, **given)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response a request; a request that cannot be answered gets an error of its own."""
        import triton_python_backend_utils as pb_utils

        wanted = [set(r.requested_output_names()) for r in requests]
        answers = self._server.execute([_arrays(r) for r in requests], wanted)
        return [_response(pb_utils, a) for a in answers]

    def finalize(self) -> None:
        """Stop the pipeline."""
        self._server.close()


def _arrays(request: Any) -> dict[str, Any]:
    """The inputs of a request; those on a GPU come by DLPack."""
    return {t.name(): t.as_numpy() if t.is_cpu() else _from_gpu(t) for t in request.inputs()}


def _from_gpu(tensor: Any) -> Any:
    import cupy

    return cupy.from_dlpack(tensor)


def _response(pb_utils: Any, answer: dict[str, Any] | RequestError) -> Any:
    if isinstance(answer, RequestError):
        return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(str(answer)))
    return pb_utils.InferenceResponse(output_tensors=[_tensor(pb_utils, n, a) for n, a in answer.items()])


def _tensor(pb_utils: Any, name: str, array: Any) -> Any:
    if hasattr(array, "__cuda_array_interface__"):
        return pb_utils.Tensor.from_dlpack(name, array)
    return pb_utils.Tensor(name, array)
