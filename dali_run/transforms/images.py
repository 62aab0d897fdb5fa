"""Images that transforms take and return: Pillow images, tensors and arrays (CHW), batches of them (NCHW), lists."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from ..ops.batch import Batch, Samples, elements
from . import on_gpu, pillow
from .steps import Shape

_NO_IMAGES = ("BoundingBoxes", "Mask", "KeyPoints", "Video")
"""Tensor classes of torchvision that are not images. They would have to move with an image, which is not supported."""


@dataclass(slots=True)
class Images:
    """The images of one call of a transform: either Pillow images (``pillow_images``) or tensors (``batch``, layout
    CHW)."""

    pillow_images: list[Image.Image] | None
    batch: Batch | None
    shapes: list[Shape]
    finish: Callable[[list[Image.Image] | Batch], Any]
    """Function that converts the results to the value that the call returns."""
    source: Any = None
    """The tensors that the caller gave, an array or a list, if the results may be views of them; otherwise None."""
    gpu: on_gpu.Gpu | None = None
    """GPU that holds the batch; None if it is on the host."""

    def windows(self, windows: Sequence[tuple[int, int, int, int]]) -> Any:
        """Return a window (top, left, height, width) of each image as views of the caller's tensors.

        Return None if a window lies partly outside, or if the images are one tensor and the windows differ.
        """
        if self.source is None or not all(
            y >= 0 and x >= 0 and y + height <= shape[1] and x + width <= shape[2]
            for (y, x, height, width), shape in zip(windows, self.shapes, strict=True)
        ):
            return None
        places = [(..., slice(y, y + height), slice(x, x + width)) for y, x, height, width in windows]
        if isinstance(self.source, list):
            return [_same_kind(image, image[place]) for image, place in zip(self.source, places, strict=True)]
        equal = all(other == windows[0] for other in windows)
        return _same_kind(self.source, self.source[places[0]]) if equal else None


def _same_kind(value: Any, part: Any) -> Any:
    """Return ``part`` as the same kind of tensor as ``value``: a slice of a torchvision Image would be a plain
    tensor."""
    kind = type(value)
    return kind(part) if kind.__name__ == "Image" and kind.__module__.startswith("torchvision") else part


def is_image(value: Any) -> bool:
    """Return whether transforms accept ``value`` as an image."""
    return isinstance(value, (Image.Image, np.ndarray)) or _is_tensor(value)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_images(value: Any, *, device: str = "cpu") -> Images:
    """Return ``value`` as `Images`. Raises TypeError if it is not an image, ValueError for a wrong number of
    dimensions."""
    if type(value).__name__ in _NO_IMAGES and _is_tensor(value):
        raise TypeError(
            f"transforms accept only images, got {type(value).__name__}: use operators of a pipeline for boxes and "
            "masks (fn.bb_flip, fn.random_bbox_crop, fn.coord_transform)"
        )
    if isinstance(value, Image.Image):
        return _of_pillow_images([value], lambda found: found[0], device)
    if isinstance(value, list) and value and all(isinstance(v, Image.Image) for v in value):
        return _of_pillow_images(value, lambda found: found, device)
    if isinstance(value, list) and value and all(is_image(v) and not isinstance(v, Image.Image) for v in value):
        tensors = [v.cuda() for v in value] if _must_go_to_gpu(value[0], device) else value
        odd = next((v for v in tensors if v.ndim != 3), None)
        if odd is not None:
            raise ValueError(f"the images of a list must be (C, H, W), got {tuple(odd.shape)}")
        kinds = {str(v.dtype).removeprefix("torch.") for v in tensors}
        if len(kinds) > 1:
            raise ValueError(f"the images of a list must have one type, got {', '.join(sorted(kinds))}")
        gpu = on_gpu.of(tensors[0])
        if gpu is not None and all(getattr(v, "device", None) == tensors[0].device for v in tensors):
            return _of_gpu_tensors(tensors, [tuple(v.shape) for v in tensors], tensors[0], None, gpu)
        arrays = [_host(v) for v in tensors]
        batch = Batch.from_list(arrays, "CHW", Samples.numbered(len(arrays)))
        return Images(None, batch, [a.shape for a in arrays], _as_list(value[0], device), _viewable(value, device))
    if not is_image(value):
        raise TypeError(
            "transforms take Pillow images, tensors and arrays (C, H, W) or (N, C, H, W), and lists of them, got "
            f"{type(value).__name__}"
        )
    value = value.cuda() if _must_go_to_gpu(value, device) else value
    if value.ndim >= 3 and (gpu := on_gpu.of(value)) is not None:
        return _of_gpu_tensors(
            value, [tuple(value.shape[-3:])] * math.prod(value.shape[:-3]), value, value.shape[:-3], gpu
        )
    array = _host(value)
    if array.ndim < 3:
        raise ValueError(f"a tensor must be (C, H, W) or (N, C, H, W), got {tuple(array.shape)}")
    lead, shape = array.shape[:-3], array.shape[-3:]
    flat = np.ascontiguousarray(array).reshape(-1, *shape)
    batch = Batch.from_dense(flat, "CHW", Samples.numbered(len(flat)))
    return Images(None, batch, [shape] * len(flat), _as_array(value, lead, device), _viewable(value, device))


def _must_go_to_gpu(value: Any, device: str) -> bool:
    """Return whether ``value`` is a tensor on the host and ``device`` is "gpu", so that it must be copied to the
    GPU."""
    return device == "gpu" and _is_tensor(value) and not value.is_cuda


def _of_gpu_tensors(
    tensors: Any, shapes: list[Shape], first: Any, lead: Sequence[int] | None, gpu: on_gpu.Gpu
) -> Images:
    """Return tensors of a GPU as `Images`: a list of tensors, or one tensor whose dimensions before the last three are
    ``lead``."""
    extents = np.array(shapes, np.int32).reshape(len(shapes), 3)
    sizes = elements(extents)
    data = gpu.flat(tensors if isinstance(tensors, list) else [tensors])
    batch = Batch(data, sizes.cumsum() - sizes, extents, "CHW", Samples.numbered(len(shapes)))

    def finish(results: list[Image.Image] | Batch) -> Any:
        if isinstance(results, list):
            return results if lead is None or lead else results[0]
        flat = gpu.tensor(results.data)
        if flat is None:  # Pillow images that became tensors again, on the host
            flat = results.data if isinstance(first, np.ndarray) else _tensor(results.data, "cpu")
        if lead is not None and results.is_uniform:
            return _same_kind(first, flat.reshape(*lead, *results.shapes[0].tolist()))
        ends = results.offsets + results.sizes
        parts = zip(results.offsets.tolist(), ends.tolist(), results.shapes.tolist(), strict=True)
        return [_same_kind(first, flat[begin:end].reshape(*shape)) for begin, end, shape in parts]

    return Images(None, batch, shapes, finish, tensors, gpu)


def _viewable(value: Any, device: str) -> Any:
    return None if device == "gpu" else value  # "gpu" asks for results on the GPU


def _of_pillow_images(pillow_images: list[Image.Image], pick: Callable[[list[Any]], Any], device: str) -> Images:
    shapes = [(pillow.bands(p), p.height, p.width) for p in pillow_images]
    several = len(pillow_images) > 1 or pick(["?"]) == ["?"]

    def finish(results: list[Image.Image] | Batch) -> Any:
        if isinstance(results, list):
            return pick(results)
        if several:
            return _tensor(results.dense(), device) if results.is_uniform else [_tensor(a, device) for a in results]
        return _tensor(results.sample(0), device)

    return Images(list(pillow_images), None, shapes, finish)


def _host(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value
    return value.detach().cpu().numpy()


def _tensor(array: Any, device: str) -> Any:
    """Return a torch tensor if torch is imported, otherwise the array itself."""
    torch = sys.modules.get("torch")
    if torch is None:
        return array
    tensor = torch.from_numpy(array)
    return tensor.cuda() if device == "gpu" else tensor


def _like(value: Any, array: Any, device: str) -> Any:
    if isinstance(value, np.ndarray):
        return array
    tensor = _tensor(array, device)
    if value.is_cuda:
        tensor = tensor.to(value.device)
    return _same_kind(value, tensor)


def _as_array(value: Any, lead: Sequence[int], device: str) -> Callable[[list[Image.Image] | Batch], Any]:
    def finish(results: list[Image.Image] | Batch) -> Any:
        if isinstance(results, list):
            return results if lead else results[0]
        if not results.is_uniform and len(results):
            return [_like(value, a, device) for a in results]
        dense = results.dense()
        return _like(value, dense.reshape(*lead, *dense.shape[1:]), device)

    return finish


def _as_list(first: Any, device: str) -> Callable[[list[Image.Image] | Batch], Any]:
    def finish(results: list[Image.Image] | Batch) -> Any:
        return results if isinstance(results, list) else [_like(first, a, device) for a in results]

    return finish
