"""DataSet: one checked entry of the argument `of` of readers.mix."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...ops.base import coerce, find, is_known, nearest, parameters
from ...ops.errors import SpecError
from ..base import Reader

_FOR_THE_MIXTURE = ("num_shards", "shard_id", "stick_to_shard", "pad_last_batch", "shuffle_after_epoch", "lazy_init")
"""Arguments of readers that may be given only to the mixture itself, not to the readers in it."""

LEAST_WEIGHT, LARGEST_WEIGHT = 1e-9, 1e9
"""Bounds of the weights of data sets."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """One data set of a mixture: its name, reader and weight."""

    name: str
    reader: Reader
    weight: float | None
    """Relative share of the mixture's samples that come from this data set, in proportion to the other weights. None if
    the spec gives no weights."""


def data_sets(of: Mapping[str, Any], shuffle: str) -> tuple[DataSet, ...]:
    """Parse the argument ``of`` of a mixture: under each data set's name, a reader's ``op`` with its arguments, and a
    ``weight``. Readers whose arguments set no order get ``shuffle``. Raises SpecError that names the data set."""
    if len(of) < 2:
        raise SpecError(
            "of: give two data sets or more, by name: {a: {op: readers.file, file_root: ..., weight: 2}, ...}"
        )
    found = tuple(_data_set(name, given, shuffle) for name, given in of.items())
    without = [d.name for d in found if d.weight is None]
    if without and len(without) < len(found):
        raise SpecError(
            f"of: {without[0]} has no weight, and others have one; give a weight to all data sets or to none"
        )
    outputs = {d.name: d.reader.num_outputs for d in found}
    if len(set(outputs.values())) > 1:
        raise SpecError(f"of: the data sets give different numbers of outputs: {outputs}")
    return found


def _data_set(name: str, given: Any, shuffle: str) -> DataSet:
    if not name or "/" in name or not isinstance(given, Mapping) or not isinstance(given.get("op"), str):
        raise SpecError(f"of: {name!r} must be the name, without /, of a mapping with `op:`, the name of a reader")
    values = {k: v for k, v in given.items() if k not in ("op", "weight")}
    weight = given.get("weight")
    is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    if weight is not None and not (is_number and LEAST_WEIGHT <= weight <= LARGEST_WEIGHT):
        raise SpecError(f"of: the weight of {name} must be a number from {LEAST_WEIGHT:g} to {LARGEST_WEIGHT:g}, "
                        f"got {weight!r}")  # fmt: skip
    _import_declaring(given["op"])
    try:
        cls = find(given["op"])
    except SpecError as e:
        raise SpecError(f"of: {name}: {e}") from None
    if not issubclass(cls, Reader) or cls.name == "readers.mix":
        raise SpecError(f"of: {name}: {given['op']} does not read a data set; give a reader")
    if not {"shuffle", "random_shuffle"} & values.keys():
        values["shuffle"] = shuffle
    return DataSet(name, _reader(name, cls, values), None if weight is None else float(weight))


def _reader(name: str, cls: type[Reader], values: Mapping[str, Any]) -> Reader:
    """Return the reader of the data set ``name``. Raises SpecError for arguments that it cannot have in a mixture."""
    known = parameters(cls)
    for key in values:
        if key not in known:
            raise SpecError(f"of: {name}: {cls.name} has no argument {key!r}{nearest(str(key), known)}")
        if key in _FOR_THE_MIXTURE:
            raise SpecError(f"of: {name}: {key} is for all data sets together; give it to readers.mix")
    try:
        reader = cls(**{key: coerce(known[key], value) for key, value in values.items()})
        reader.check()
    except (SpecError, ValueError, TypeError) as e:
        raise SpecError(f"of: {name}: {cls.name}: {e}") from None
    if reader.split is not None and reader.use is None:
        raise SpecError(f"of: {name}: split needs `use` in a mixture, the part to read")
    return reader


def _import_declaring(name: str) -> None:
    """Import the modules of this package that declare the reader ``name``, unless it is known already."""
    if is_known(name):
        return
    for module, text in _reader_modules().items():
        if f'"{name}"' in text:
            importlib.import_module(f"...{module}", __package__)


@cache
def _reader_modules() -> dict[str, str]:
    """Source code of the modules of this package that declare operators, by module names such as ``readers.file``."""
    root = Path(__file__).parents[1]
    paths = [p for p in sorted(root.rglob("*.py")) if not p.stem.endswith("_cpu") and p.stem != "__init__"]
    texts = {
        f"readers.{p.relative_to(root).with_suffix('').as_posix().replace('/', '.')}": p.read_text() for p in paths
    }
    return {module: text for module, text in texts.items() if 'name="readers.' in text or 'name="experimental.' in text}
