"""Join: the checked `join` argument of readers, which says which table, by which key, and which fields."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ...ops.arrays.json_values import VALUE_SPECS, Path
from ...ops.base import nearest
from ...ops.errors import SpecError
from ..fetch.extents import one_or_more

FORMATS = ("csv", "tsv", "jsonl", "json", "parquet", "txt")
"""Formats of tables; ``txt`` is a list with a key per line."""
_LIST = {"format": "csv", "columns": ("key",), "key": "key", "quotes": False, "delimiter": "\x1f"}
"""Settings of a list of keys (format ``txt``), which is read as a CSV table of one column. The delimiter is a control
character that keys do not contain."""
_SUFFIXES = {"ndjson": "jsonl", "pq": "parquet", "tab": "tsv"}
_CHOICES = {
    "match": ("path", "name", "stem"),
    "missing": ("reject", "leave_out", "empty"),
    "duplicates": ("error", "first", "last"),
    "malformed": ("error", "skip"),
    "format": ("", *FORMATS),
}


@dataclass(frozen=True, slots=True)
class Join:
    """The checked argument `join` of a reader, which joins samples with table rows. The attributes are its keys."""

    file: str | tuple[str, ...]
    fields: dict[str, str] = field(default_factory=dict)
    """Type (text, int, float) of each joined field, by the name of the column or the path in JSON. If it is empty, the
    table only selects samples."""
    key: str = ""
    """Column of the table, or path in JSON, that holds the key; empty if the keys are the names of a JSON object."""
    match: str = "path"
    missing: str = "reject"
    duplicates: str = "error"
    malformed: str = "error"
    format: str = ""
    columns: tuple[str, ...] = ()
    """Names of the table's columns, if its file has no header."""
    delimiter: str = ""
    quotes: bool = True
    rows: str = "$"
    """JSON path of the array or object that holds the rows of a JSON file."""
    part: int = field(default=0)
    """Code of the choice ``match`` for compiled loops: 0 path, 1 name, 2 stem."""

    @staticmethod
    def of(given: Mapping[str, Any]) -> Join:
        """Check the argument `join` and return it as an object. Raises SpecError."""
        known = [f.name for f in fields(Join) if f.name != "part"]
        for key in given:
            if key not in known:
                raise SpecError(f"join has no {key!r}{nearest(str(key), known)} (it has: {', '.join(known)})")
        if not given.get("file"):
            raise SpecError("join needs file: a table")
        if not given.get("fields") and given.get("missing") != "leave_out":
            raise SpecError("join needs fields: columns, or paths in JSON; without fields it can only leave out the "
                            "samples that have no row (missing: leave_out)")  # fmt: skip
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        values["fields"] = _typed(values.get("fields") or ())
        _check_values(values)
        values["format"] = values.get("format") or _format(one_or_more(values["file"])[0])
        if values["format"] == "txt":
            values = {**values, **_LIST}
        values["part"] = _CHOICES["match"].index(values.get("match", "path"))
        join = Join(**values)
        join._check()
        return join

    def _check(self) -> None:
        is_json = self.format in ("json", "jsonl")
        if len(self.delimiter.encode()) > 1:
            raise SpecError(f"join: delimiter must be one character, got {self.delimiter!r}")
        if not self.key and self.format != "json":
            raise SpecError(f"join needs key: {'the path to' if is_json else 'the column of'} the samples' keys")
        for path in filter(None, (self.key, *self.fields, self.rows)) if is_json else ():
            Path.of(path)
        if self.format == "parquet" and importlib.util.find_spec("pyarrow") is None:
            raise SpecError("join of a Parquet file needs pyarrow: pip install 'dali-run[parquet]'")

    @property
    def digest(self) -> tuple[Any, ...]:
        """Return the settings that decide which keys the table has, and in which rows. A cached index of the table is
        valid only for equal settings."""
        return (self.key, self.part, self.format, self.columns, self.delimiter, self.quotes, self.rows)


def _check_values(values: Mapping[str, Any]) -> None:
    """Raise SpecError for a value of a type or a choice that join does not accept."""
    for key, choices in _CHOICES.items():
        if values.get(key, choices[0]) not in choices:
            raise SpecError(f"join: {key} must be {', '.join(filter(None, choices))}, got {values[key]!r}")
    for key in ("key", "delimiter", "rows"):
        if not isinstance(values.get(key, ""), str):
            raise SpecError(f"join: {key} must be a text, got {values[key]!r}")
    if not all(isinstance(f, str) and f and "\0" not in f for f in one_or_more(values["file"])):
        raise SpecError(f"join: file must be a path, or several, got {values['file']!r}")


def _typed(given: Any) -> dict[str, str]:
    """Return the fields' types by name. ``given``: names of fields that are texts, or types by name."""
    names = given if isinstance(given, Mapping) else dict.fromkeys(one_or_more(given), "text")
    for name, kind in names.items():
        if not isinstance(name, str) or not name:
            raise SpecError(f"join: fields must be names of columns, got {name!r}")
        if kind not in VALUE_SPECS:
            raise SpecError(f"join: field {name!r} must be {', '.join(VALUE_SPECS)}, got {kind!r}")
    return dict(names)


def _format(file: str) -> str:
    suffix = file.lower().removesuffix(".gz").rpartition(".")[2]
    found = _SUFFIXES.get(suffix, suffix)
    if found not in FORMATS:
        raise SpecError(f"join: {file} has no suffix that tells its format; give format: {', '.join(FORMATS)}")
    return found
