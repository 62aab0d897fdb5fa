"""Images that transforms take and return: Pillow's, tensors and arrays (CHW), batches of them (NCHW), lists."""

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
"""torchvision's tensors that are no images; they would have to move with an image, and do not here."""


@dataclass(slots=True)
class Images:
    """Images of one call: Pillow's (``pictures``) or tensors (``batch``, layout CHW)."""

    pictures: list[Image.Image] | None
    batch: Batch | None
    shapes: list[Shape]
    finish: Callable[[list[Image.Image] | Batch], Any]
    """Makes what the caller gets of the results."""
    given: Any = None
    """The tensors that the caller gave, an array or a list of them, where parts of them may be the result."""
    gpu: on_gpu.Gpu | None = None
    """Where the batch lies; None: on the host."""

    def windows(self, windows: Sequence[tuple[int, int, int, int]]) -> Any:
        """A window (top, left, height, width) of each image, as views of what the caller gave; None where they are not
        all inside, or are windows of one tensor at different places."""
        if self.given is None or not all(
            y >= 0 and x >= 0 and y + height <= shape[1] and x + width <= shape[2]
            for (y, x, height, width), shape in zip(windows, self.shapes, strict=True)
        ):
            return None
        places = [(..., slice(y, y + height), slice(x, x + width)) for y, x, height, width in windows]
        if isinstance(self.given, list):
            return [_kept(image, image[place]) for image, place in zip(self.given, places, strict=True)]
        same = all(other == windows[0] for other in windows)
        return _kept(self.given, self.given[places[0]]) if same else None


def _kept(value: Any, part: Any) -> Any:
    """``part`` as the kind of tensor that ``value`` is: torchvision's images come out of slices as plain ones."""
    kind = type(value)
    return kind(part) if kind.__name__ == "Image" and kind.__module__.startswith("torchvision") else part


def is_image(value: Any) -> bool:
    """Whether transforms act on ``value``."""
    return isinstance(value, (Image.Image, np.ndarray)) or _is_tensor(value)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def taken(value: Any, *, device: str = "cpu") -> Images:
    """``value`` as `Images`. Raises TypeError for what is no image, ValueError for a wrong number of dimensions."""
    if type(value).__name__ in _NO_IMAGES and _is_tensor(value):
        raise TypeError(
            f"transforms act on images alone, got {type(value).__name__}: boxes and masks go through operators "
            "(fn.bb_flip, fn.random_bbox_crop, fn.coord_transform) of a pipeline"
        )
    if isinstance(value, Image.Image):
        return _of_pictures([value], lambda found: found[0], device)
    if isinstance(value, list) and value and all(isinstance(v, Image.Image) for v in value):
        return _of_pictures(value, lambda found: found, device)
    if isinstance(value, list) and value and all(is_image(v) and not isinstance(v, Image.Image) for v in value):
        given = [v.cuda() for v in value] if _goes(value[0], device) else value
        odd = next((v for v in given if v.ndim != 3), None)
        if odd is not None:
            raise ValueError(f"a list holds images (C, H, W), got {tuple(odd.shape)}")
        kinds = {str(v.dtype).removeprefix("torch.") for v in given}
        if len(kinds) > 1:
            raise ValueError(f"images of a list share one type, got {', '.join(sorted(kinds))}")
        gpu = on_gpu.of(given[0])
        if gpu is not None and all(getattr(v, "device", None) == given[0].device for v in given):
            return _there(given, [tuple(v.shape) for v in given], given[0], None, gpu)
        arrays = [_host(v) for v in given]
        batch = Batch.from_list(arrays, "CHW", Samples.numbered(len(arrays)))
        return Images(None, batch, [a.shape for a in arrays], _as_list(value[0], device), _parted(value, device))
    if not is_image(value):
        raise TypeError(
            "transforms take Pillow's images, tensors and arrays (C, H, W) or (N, C, H, W), and lists of them, got "
            f"{type(value).__name__}"
        )
    value = value.cuda() if _goes(value, device) else value
    if value.ndim >= 3 and (gpu := on_gpu.of(value)) is not None:
        return _there(value, [tuple(value.shape[-3:])] * math.prod(value.shape[:-3]), value, value.shape[:-3], gpu)
    array = _host(value)
    if array.ndim < 3:
        raise ValueError(f"tensors are (C, H, W) or (N, C, H, W), got {tuple(array.shape)}")
    lead, shape = array.shape[:-3], array.shape[-3:]
    flat = np.ascontiguousarray(array).reshape(-1, *shape)
    batch = Batch.from_dense(flat, "CHW", Samples.numbered(len(flat)))
    return Images(None, batch, [shape] * len(flat), _as_array(value, lead, device), _parted(value, device))


def _goes(value: Any, device: str) -> bool:
    """Whether a tensor of the host is asked to go to the GPU."""
    return device == "gpu" and _is_tensor(value) and not value.is_cuda


def _there(given: Any, shapes: list[Shape], first: Any, lead: Sequence[int] | None, gpu: on_gpu.Gpu) -> Images:
    """Tensors of a GPU: a list of them, or one whose dimensions before the last three are ``lead``."""
    extents = np.array(shapes, np.int32).reshape(len(shapes), 3)
    sizes = elements(extents)
    data = gpu.flat(given if isinstance(given, list) else [given])
    batch = Batch(data, sizes.cumsum() - sizes, extents, "CHW", Samples.numbered(len(shapes)))

    def finish(found: list[Image.Image] | Batch) -> Any:
        if isinstance(found, list):
            return found if lead is None or lead else found[0]
        flat = gpu.tensor(found.data)
        if flat is None:  # pictures that became tensors again, on the host
            flat = found.data if isinstance(first, np.ndarray) else _tensor(found.data, "cpu")
        if lead is not None and found.is_uniform:
            return _kept(first, flat.reshape(*lead, *found.shapes[0].tolist()))
        ends = found.offsets + found.sizes
        parts = zip(found.offsets.tolist(), ends.tolist(), found.shapes.tolist(), strict=True)
        return [_kept(first, flat[begin:end].reshape(*shape)) for begin, end, shape in parts]

    return Images(None, batch, shapes, finish, given, gpu)


def _parted(value: Any, device: str) -> Any:
    return None if device == "gpu" else value  # "gpu" asks for results there


def _of_pictures(pictures: list[Image.Image], pick: Callable[[list[Any]], Any], device: str) -> Images:
    shapes = [(pillow.bands(p), p.height, p.width) for p in pictures]
    several = len(pictures) > 1 or pick(["?"]) == ["?"]

    def finish(found: list[Image.Image] | Batch) -> Any:
        if isinstance(found, list):
            return pick(found)
        if several:
            return _tensor(found.dense(), device) if found.is_uniform else [_tensor(a, device) for a in found]
        return _tensor(found.sample(0), device)

    return Images(list(pictures), None, shapes, finish)


def _host(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value
    return value.detach().cpu().numpy()


def _tensor(array: Any, device: str) -> Any:
    """A tensor of torch where it is imported, or can be; else the array."""
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
    return _kept(value, tensor)


def _as_array(value: Any, lead: Sequence[int], device: str) -> Callable[[list[Image.Image] | Batch], Any]:
    def finish(found: list[Image.Image] | Batch) -> Any:
        if isinstance(found, list):
            return found if lead else found[0]
        if not found.is_uniform and len(found):
            return [_like(value, a, device) for a in found]
        dense = found.dense()
        return _like(value, dense.reshape(*lead, *dense.shape[1:]), device)

    return finish


def _as_list(first: Any, device: str) -> Callable[[list[Image.Image] | Batch], Any]:
    def finish(found: list[Image.Image] | Batch) -> Any:
        return found if isinstance(found, list) else [_like(first, a, device) for a in found]

    return finish
