"""Transforms of other libraries and the equivalent steps of specs, from like.json; names are matched as people write
them. Used for hints and by `dali-run ops --like`."""

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
"""For each other library, the prefixes of its transforms in programs, such as ``A.`` for albumentations."""


@cache
def table() -> dict[str, dict[str, Any]]:
    """Return the table of other libraries' transforms, by ``library.Name``. An entry has ``steps`` (lines for a spec's
    graph with the batches ``images``, ``masks``, ``boxes`` and ``labels``) and, if needed, a ``note``."""
    entries: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("like.json").read_text(encoding="utf-8"))
    return entries


def bare(name: str) -> str:
    """Return ``name`` in lower case without underscores, hyphens and spaces."""
    return re.sub(r"[_\-\s]", "", name).lower()


def split(name: str) -> tuple[str | None, str]:
    """Split ``name`` into the library whose prefix it has (None without one) and the remaining name."""
    low = name.lower()
    starts = [(prefix, library) for library, prefixes in LIBRARIES.items() for prefix in prefixes]
    for prefix, library in sorted(starts, key=lambda s: -len(s[0])):
        if low.startswith(prefix + "."):
            return library, name[len(prefix) + 1 :]
    return None, name


def matches(name: str) -> Iterator[str]:
    """Yield the names in `table` of the transforms that ``name`` can mean. Without a library's prefix, all libraries
    are searched."""
    library, transform_name = split(name)
    for known in table():
        known_library, _, transform = known.partition(".")
        if bare(transform) == bare(transform_name.rpartition(".")[2]) and library in (None, known_library):
            yield known


def with_values(name: str, steps: Sequence[str], arguments: Mapping[str, Any]) -> list[str]:
    """Return the ``steps`` for the transform ``name`` of `table`, with the user's ``arguments`` inserted. They are
    converted to dali-run's conventions: one number for torchvision's Resize, for example, is the shorter side."""
    texts = list(steps)
    for key, value in arguments.items():
        for pattern, text in _written(name, key, value):
            texts = [re.sub(pattern, text, step, count=1) for step in texts]
    if (pair := [arguments.get("height"), arguments.get("width")]) and all(map(_is_number, pair)):
        texts = [re.sub(r"(size|crop): \[\d+, \d+\]", rf"\1: {pair}", step) for step in texts]
    return texts


def _written(name: str, key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the replacements that insert one argument into the steps of `table`: (pattern in a step, text that replaces
    it)."""
    pair = isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_number, value))
    number = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
    if key == "size" and name == "torchvision.Resize":
        if pair:
            yield r"resize_shorter: \d+", f"size: {list(value)}"
        elif _is_number(number):
            yield r"resize_shorter: \d+", f"resize_shorter: {number}"
    elif key == "size" and (pair or _is_number(number)):
        yield r"(size|crop): \[\d+, \d+\]", rf"\1: {list(value) if pair else [number, number]}"
    elif key == "max_size" and _is_number(number):
        yield r"(resize_(?:shorter|longer)): \d+", rf"\1: {number}"
    elif key in ("mean", "std") and isinstance(value, (list, tuple)) and value and all(map(_is_number, value)):
        factor = 255 if max(value) <= 1 else 1
        yield rf"{key}: \[[^]]*\]", f"{key}: {[round(v * factor, 4) for v in value]}"
    elif key == "p" and _is_number(value):
        yield r"probability: [\d.]+", f"probability: {value}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
