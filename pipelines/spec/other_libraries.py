"""Names of transforms in other libraries, and the steps that do the same: like.json, and how people write the names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
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
