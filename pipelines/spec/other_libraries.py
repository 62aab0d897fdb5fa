"""Names of transforms in other libraries, and the steps that do the same: like.json, and how people write the names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

LIBRARIES = {
    "torchvision": ("torchvision.transforms.v2", "torchvision.transforms", "torchvision", "transforms.v2", "t", "v2"),
    "albumentations": ("albumentations", "a", "alb"),
    "imgaug": ("imgaug.augmenters", "imgaug", "iaa"),
}
"""How their names begin, in imports as people write them."""


@cache
def table() -> dict[str, dict[str, Any]]:
    """For every transform, as ``library.Name``: ``steps`` (lines of a spec's graph, on ``images``, ``masks``, ``boxes``
    and ``labels``) and, where there is something to say, a ``note``."""
    found: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("like.json").read_text(encoding="utf-8"))
    return found


def bare(name: str) -> str:
    """``name`` without what spellings differ in."""
    return re.sub(r"[_\-\s]", "", name).lower()


def split(name: str) -> tuple[str | None, str]:
    """The library that ``name`` begins with, or None, and the rest."""
    low = name.lower()
    starts = [(prefix, library) for library, prefixes in LIBRARIES.items() for prefix in prefixes]
    for prefix, library in sorted(starts, key=lambda s: -len(s[0])):
        if low.startswith(prefix + "."):
            return library, name[len(prefix) + 1 :]
    return None, name


def matches(name: str) -> Iterator[str]:
    """The transforms of `table` that ``name`` can mean: those of the library that it says, or of all."""
    library, rest = split(name)
    for known in table():
        of, _, transform = known.partition(".")
        if bare(transform) == bare(rest.rpartition(".")[2]) and library in (None, of):
            yield known


def with_values(name: str, steps: Sequence[str], given: Mapping[str, Any]) -> list[str]:
    """The ``steps`` for the transform ``name`` of `table` with the values that the user gave it, as they are meant
    there: torchvision's Resize of one number is the shorter side, means and deviations are of 0 to 1."""
    texts = list(steps)
    for key, value in given.items():
        for pattern, text in _written(name, key, value):
            texts = [re.sub(pattern, text, step, count=1) for step in texts]
    if (pair := [given.get("height"), given.get("width")]) and all(map(_is_number, pair)):
        texts = [re.sub(r"(size|crop): \[\d+, \d+\]", rf"\1: {pair}", step) for step in texts]
    return texts


def _written(name: str, key: str, value: Any) -> Iterator[tuple[str, str]]:
    """A pattern in the steps, and the text that takes its place."""
    pair = isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_number, value))
    one = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
    if key == "size" and name == "torchvision.Resize":
        if pair:
            yield r"resize_shorter: \d+", f"size: {list(value)}"
        elif _is_number(one):
            yield r"resize_shorter: \d+", f"resize_shorter: {one}"
    elif key == "size" and (pair or _is_number(one)):
        yield r"(size|crop): \[\d+, \d+\]", rf"\1: {list(value) if pair else [one, one]}"
    elif key == "max_size" and _is_number(one):
        yield r"(resize_(?:shorter|longer)): \d+", rf"\1: {one}"
    elif key in ("mean", "std") and isinstance(value, (list, tuple)) and value and all(map(_is_number, value)):
        factor = 255 if max(value) <= 1 else 1
        yield rf"{key}: \[[^]]*\]", f"{key}: {[round(v * factor, 4) for v in value]}"
    elif key == "p" and _is_number(value):
        yield r"probability: [\d.]+", f"probability: {value}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
