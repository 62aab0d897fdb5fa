"""Translate a graph into an image recipe: files, sizes and numbers as plain data, for peers that have no graphs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ....ops.base import Operator, parameters
from ....ops.codecs.decoders import Image, ImageRandomCrop
from ....ops.errors import SpecError
from ....ops.images.crop_mirror_normalize import CropMirrorNormalize
from ....ops.images.resize import Resize
from ....ops.types import DALIDataType, DALIImageType, DALIInterpType
from ....readers.file import File
from ...graph.nodes import Edge, Graph, Node

_FILTERS = {
    DALIInterpType.INTERP_LINEAR: "bilinear",
    DALIInterpType.INTERP_TRIANGULAR: "bilinear",
    DALIInterpType.INTERP_CUBIC: "bicubic",
    DALIInterpType.INTERP_NN: "nearest",
}
"""torchvision's names of the interpolation filters, by DALI's names."""
_WITHOUT_EFFECT = {"jpeg_decoder", "hw_decoder_load", "jpeg_fancy_upsampling", "max_pixels", "bomb_ratio", "name",
                   "initial_fill"}  # fmt: skip
"""Arguments of operators that a recipe ignores, because they choose an implementation or the order of the data."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """An image graph as a fixed sequence of steps, from which scripts measure other libraries: files -> RGB -> [random
    window] -> [resize] -> [central crop] -> [mirror] -> [normalise], and the labels. Created by `recipe_of`."""

    files: tuple[str, ...]
    labels: tuple[int, ...]
    outputs: tuple[str, ...]
    """``image`` and ``label``, in the order of the graph's outputs; one of them may be missing."""
    shuffle: bool = False
    area: tuple[float, float] | None = None
    """Minimum and maximum area of the random window, as a fraction of the image; None for no window."""
    ratio: tuple[float, float] | None = None
    """Minimum and maximum of width divided by height of the random window."""
    size: tuple[int, ...] | None = None
    """Size to which images are resized: (height, width), or (shorter side,). None if they are not resized."""
    filter: str = "bilinear"
    antialias: bool = True
    crop: tuple[int, int] | None = None
    """Size (height, width) of the central crop; None for no crop."""
    mirror: float = 0.0
    """Probability with which an image is mirrored."""
    mean: tuple[float, ...] | None = None
    """Mean per channel, in the units of uint8, that is subtracted from images; None if images stay uint8 and are not
    normalised."""
    std: tuple[float, ...] | None = None
    dtype: str = "UINT8"
    layout: str = "HWC"

    @property
    def only_decodes(self) -> bool:
        """Whether images are only decoded, without any further step."""
        return self.size is None and self.crop is None and self.mean is None and self.area is None

    def as_dict(self) -> dict[str, Any]:
        """Return the recipe as plain data."""
        return asdict(self)


def recipe_of(graph: Graph) -> Recipe:
    """Return the recipe of ``graph``, which must not be fused. Raises SpecError with the node that a recipe cannot
    contain."""
    reader = None
    outputs = []
    steps: list[Node] = []
    for name, edge in graph.outputs.items():
        if isinstance(graph.node(edge).op, File) and edge.output == 1:
            outputs.append("label")
            reader = reader or graph.node(edge)
        elif "image" in outputs:
            raise SpecError(f"output {name!r} is not translated: a recipe has one image")
        else:
            outputs.append("image")
            steps = chain(graph, edge)
            reader = steps.pop(0)
    if "image" not in outputs or reader is None:
        raise SpecError("the graph has no image among its outputs: there is no recipe")
    translated = {id(n) for n in (reader, *steps)} | {id(graph.node(e)) for n in steps for e in n.args.values()}
    for node in graph.nodes:
        if id(node) not in translated:
            raise SpecError(f"{node.name} is not translated: it is no part of a recipe")
    recipe = replace(files_of(reader), outputs=tuple(outputs))
    for node in steps:
        recipe = _step(graph, node, recipe)
    if recipe.area is not None and (recipe.size is None or len(recipe.size) != 2):
        raise SpecError("a random window that is not resized to (height, width) is not translated")
    return recipe


def chain(graph: Graph, edge: Edge, readers: tuple[type[Operator], ...] = (File,)) -> list[Node]:
    """Return the nodes that lead to ``edge``, one after the other, beginning with the reader. Raises SpecError if a
    node has several inputs, or is in a branch of a conditional."""
    node = graph.node(edge)
    if isinstance(node.op, readers):
        return [node]
    if len(node.inputs) != 1 or node.scope:
        raise SpecError(f"{node.name} is not translated: it is no part of a recipe")
    return [*chain(graph, node.inputs[0], readers), node]


def files_of(node: Node) -> Recipe:
    """Return a recipe that only reads: the files and labels of the readers.file ``node``, and no step."""
    assert isinstance(node.op, File)
    arguments = _given(node, {"file_root", "files", "labels", "file_list", "file_filters", "dir_filters",
                          "case_sensitive_filter", "random_shuffle", "shuffle", "shuffle_after_epoch"})  # fmt: skip
    source = node.op.open_records()
    try:
        files = tuple(os.path.abspath(source.path(i)) for i in range(len(source)))
    finally:
        source.close()
    shuffled = bool(arguments.get("random_shuffle") or arguments.get("shuffle_after_epoch"))
    return Recipe(files, tuple(source.labels.tolist()), (), shuffled or arguments.get("shuffle") in ("window", "full"))


def _step(graph: Graph, node: Node, recipe: Recipe) -> Recipe:
    if isinstance(node.op, Image):
        arguments = _given(node, {"output_type"})
        if arguments.get("output_type", DALIImageType.RGB) is not DALIImageType.RGB:
            raise SpecError(f"{node.name}: only output_type RGB is translated")
        return recipe
    if isinstance(node.op, ImageRandomCrop):
        _given(node, {"random_area", "random_aspect_ratio", "num_attempts"})
        return replace(recipe, area=node.op.random_area, ratio=node.op.random_aspect_ratio)
    if isinstance(node.op, Resize):
        return _resize(node, node.op, recipe)
    if isinstance(node.op, CropMirrorNormalize):
        return _normalize(graph, node, node.op, recipe)
    allowed = "decoders.image, decoders.image_random_crop, resize and crop_mirror_normalize"
    raise SpecError(f"{node.op.name} is not translated: a recipe has {allowed}")


def _resize(node: Node, op: Resize, recipe: Recipe) -> Recipe:
    arguments = _given(node, {"size", "resize_shorter", "interp_type", "antialias"})
    if op.interp_type not in _FILTERS:
        raise SpecError(f"{node.name}: interp_type {op.interp_type.name} is not translated")
    if recipe.size is not None or recipe.mean is not None:
        raise SpecError(f"{node.name} is not translated: a recipe resizes once, before it normalises")
    triangular = op.interp_type is DALIInterpType.INTERP_TRIANGULAR
    if "resize_shorter" in arguments:
        size: tuple[int, ...] = (round(arguments["resize_shorter"]),)
    elif "size" in arguments:
        size = tuple(round(s) for s in arguments["size"]) * (1 if len(arguments["size"]) == 2 else 2)
    else:
        raise SpecError(f"{node.name}: only size and resize_shorter are translated")
    return replace(recipe, size=size, filter=_FILTERS[op.interp_type], antialias=op.antialias or triangular)


def _normalize(graph: Graph, node: Node, op: CropMirrorNormalize, recipe: Recipe) -> Recipe:
    arguments = _given(node, {"crop", "dtype", "mean", "std", "mirror", "output_layout"})
    if recipe.mean is not None:
        raise SpecError(f"{node.name} is not translated: a recipe normalises once")
    if op.dtype not in (DALIDataType.FLOAT, DALIDataType.FLOAT16):
        raise SpecError(f"{node.name}: only dtype FLOAT and FLOAT16 are translated")
    crop = arguments.get("crop")
    return replace(
        recipe, crop=None if crop is None else (round(crop[0]), round(crop[1])), mirror=_mirror(graph, node, op),
        mean=three(op.mean), std=three(op.std), dtype=op.dtype.name, layout=op.output_layout,
    )  # fmt: skip


def _mirror(graph: Graph, node: Node, op: CropMirrorNormalize) -> float:
    if "mirror" not in node.args:
        return float(op.mirror != 0)
    coin = graph.node(node.args["mirror"])
    if coin.op.name != "random.coin_flip" or coin.args:
        raise SpecError(f"{node.name}: only random.coin_flip is translated as mirror")
    return float(coin.op.probability)  # type: ignore[attr-defined]


def three(values: tuple[float, ...]) -> tuple[float, ...]:
    """Return one value per channel, three in all. A single value is repeated."""
    return values if len(values) == 3 else values * 3


def _given(node: Node, allowed: set[str]) -> Mapping[str, Any]:
    """Return the arguments of a node that differ from their defaults. Raises SpecError if one of them is not in
    ``allowed``."""
    op: Operator = node.op
    arguments = {p.name: getattr(op, p.name) for p in parameters(type(op)).values()
             if p.name not in op.per_sample and getattr(op, p.name) != p.default}  # fmt: skip
    for name in {*arguments, *node.args} - allowed - _WITHOUT_EFFECT:
        raise SpecError(f"{node.name}: {name} is not translated")
    return arguments
