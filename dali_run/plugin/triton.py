"""NVIDIA Triton: a model for its Python backend, which answers requests with the pipeline of a spec, and DALI's
`autoserialize`.

`dali-run serve-model` writes the model repository.
"""

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

    Raises TypeError for any other object.
    """
    if not getattr(dali_pipeline, "_is_pipeline_def", False):
        raise TypeError("@autoserialize must be above @pipeline_def")
    dali_pipeline._is_autoserialize = True  # type: ignore[attr-defined]
    return dali_pipeline


class ServedModel:
    """Base class of ``TritonPythonModel`` in model.py, which Triton creates.

    The inputs of the model are the spec's external_sources, its outputs the spec's outputs.
    """

    spec: ClassVar[str | os.PathLike[str]]

    def initialize(self, args: dict[str, str]) -> None:
        """Load the spec. ``args`` come from Triton: the device of the instance, and the model configuration, whose
        max_batch_size is used."""
        config = json.loads(args.get("model_config") or "{}")
        on_gpu = args.get("model_instance_kind") == "GPU"
        device = int(args.get("model_instance_device_id") or 0) if on_gpu else None
        arguments = {"batch_size": config["max_batch_size"]} if config.get("max_batch_size") else {}
        self._server = Server(self.spec, device_id=device, **arguments)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Return one response per request. A request that fails gets an error response; the others are not affected."""
        import triton_python_backend_utils as pb_utils

        requested = [set(r.requested_output_names()) for r in requests]
        answers = self._server.execute([_arrays(r) for r in requests], requested)
        return [_response(pb_utils, a) for a in answers]

    def finalize(self) -> None:
        """Stop the pipeline."""
        self._server.close()


def _arrays(request: Any) -> dict[str, Any]:
    """Return the inputs of a request. Those on a GPU are passed by DLPack."""
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
