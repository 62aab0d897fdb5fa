"""YAML (and JSON) text as values with their positions. Tags are not executed, and ambiguous text is not interpreted.

Scalars have the meaning on which YAML 1.1 and YAML 1.2 agree. If the versions differ (``yes``, ``012``, ``1:30``,
``1e3``), the text is rejected with a remedy. Input is limited in bytes, depth and expanded size, so that hostile files
cause an error.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ...ops.base import nearest
from ..problems import Mark, Problems, show
from . import slips
from .shipped import shipped

MOST_BYTES = 1 << 20
MOST_DEPTH = 100
MOST_VALUES = 50_000

Data = None | bool | int | float | str | tuple["Value", ...] | dict[str, "Value"]


@dataclass(frozen=True, slots=True)
class Value:
    """A value from a YAML text with its position: a scalar, a list (as tuple of values) or a mapping (as dict of
    values)."""

    data: Data
    mark: Mark
    key_marks: Mapping[str, Mark] = field(default_factory=dict)
    """Positions of the keys, if the value is a mapping."""
    depth: int = 1
    """Nesting depth: 1 for a scalar, else 1 more than the deepest value inside."""
    broken: bool = False
    """Whether a problem was reported for this value. Parts of the spec that depend on it are then not reported
    again."""

    @property
    def sound(self) -> bool:
        """Whether no problem was reported for this value and the values inside it."""
        inner = self.data.values() if isinstance(self.data, dict) else self.data if isinstance(self.data, tuple) else ()
        return not self.broken and all(v.sound for v in inner)

    def to_python(self) -> Any:
        """Return the value without positions, as lists and dicts of Python scalars."""
        if isinstance(self.data, tuple):
            return [v.to_python() for v in self.data]
        if isinstance(self.data, dict):
            return {k: v.to_python() for k, v in self.data.items()}
        return self.data

    @property
    def kind(self) -> str:
        """Description of the value for messages, such as ``a list``."""
        if self.data is None:
            return "nothing"
        if isinstance(self.data, dict):
            return "a mapping"
        if isinstance(self.data, tuple):
            return "a list"
        return show(self.data)


def depth_of(inner: Iterable[Value]) -> int:
    """Return the nesting depth of a list or mapping that contains the values ``inner``."""
    return 1 + max((v.depth for v in inner), default=0)


def from_python(data: Any, mark: Mark) -> Value:
    """Convert Python data to a Value, in which everything has the position ``mark``."""
    if isinstance(data, Mapping):
        return Value({str(k): from_python(v, mark) for k, v in data.items()}, mark, {str(k): mark for k in data})
    if isinstance(data, (list, tuple)):
        return Value(tuple(from_python(v, mark) for v in data), mark)
    if data is None or isinstance(data, (bool, int, float, str)):
        return Value(data, mark)
    return Value(os.fspath(data) if isinstance(data, os.PathLike) else str(data), mark)


# -- reading ----------------------------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str], problems: Problems) -> Value | None:
    """Parse the file ``path`` and return its document; None if it cannot be read, with the reason in ``problems``."""
    name = os.fsencode(path).decode("utf-8", "replace")
    try:
        content = _content(Path(path))
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        hint = nearest(Path(path).stem, shipped()) if isinstance(e, FileNotFoundError) else ""
        problems.add(Mark(name, 1, 1), f"cannot be read: {reason}{hint}")
        return None
    return parse(content, name, problems, json=name.lower().endswith(".json"))


def _content(path: Path) -> bytes:
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise ValueError("it is a directory; give the spec file in it (dali-run inspect shows what a data set holds)")
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise ValueError("it is not a regular file")
    with path.open("rb") as f:
        return f.read(MOST_BYTES + 1)


def parse(content: bytes | str, name: str, problems: Problems, *, json: bool = False) -> Value | None:
    """Parse ``content`` and return its document; None if it cannot be read, with the reason in ``problems``. ``name``
    is the file's name in positions. ``json`` reads numbers by JSON's rules."""
    text = _decode(content, name, problems)
    if text is None:
        return None
    composer = _Composer(text, name, problems, json)
    try:
        return composer.document()
    except _TextError as e:
        problems.add(e.mark, e.text)
    except yaml.YAMLError as e:
        problems.add(*slips.syntax(e, name, text))
    except (ValueError, OverflowError) as e:  # from PyYAML's own parsing of directives and escapes
        problems.add(Mark(name, 1, 1), f"is not YAML: {e}")
    return None


_OTHERS = (
    (257, b"ustar", "a tar archive"),
    (16, b"\xde\xc0\xef\xbe", "an LMDB database"),
    (0, b"\x0a\x23\xd7\xce", "a RecordIO file"),
    (0, b"PAR1", "a Parquet file"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (0, b"\xff\xd8\xff", "a JPEG"),
    (0, b"\x89PNG\r\n", "a PNG"),
    (0, b"RIFF", "an audio file, a video or a WebP"),
    (0, b"\x1f\x8b", "a gzip'ed file"),
    (0, b"PK\x03\x04", "a zip archive"),
)
"""Kinds of files that users pass as a spec by mistake, each as (offset of the signature, bytes of the signature, name
of the kind)."""


def _other_kind(content: bytes) -> str:
    for at, signature, kind in _OTHERS:
        if content[at : at + len(signature)] == signature:
            return kind
    length = int.from_bytes(content[:8], "little")  # length of the first record, which its checksum and data follow
    if 0 < length < 1 << 32 and len(content) >= 12 and (len(content) > MOST_BYTES or length + 16 <= len(content)):
        return "a TFRecord file"
    return ""


_BOMS = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"), (b"\x00\x00\xfe\xff", "UTF-32"))
# The c-printable characters of YAML 1.2, except the byte order mark.
UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def _decode(content: bytes | str, name: str, problems: Problems) -> str | None:
    if isinstance(content, bytes):
        kind = _other_kind(content)
        if kind:
            problems.add(
                Mark(name, 1, 1),
                f"is {kind}, not a spec; dali-run inspect shows what data holds, dali-run stats measures it, "
                "dali-run verify checks a job's output",
            )
            return None
        for bom, encoding in _BOMS:
            if content.startswith(bom):
                problems.add(Mark(name, 1, 1), f"is {encoding} text; save it as UTF-8")
                return None
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as e:
            before = content[: e.start].decode("utf-8", "replace")
            problems.add(
                _mark_at(before, len(before), name),
                f"byte 0x{content[e.start]:02x} is not UTF-8 text; save the file as UTF-8",
            )
            return None
    else:
        text = content
    text = text.removeprefix("\ufeff")  # Windows editors write a byte order mark before UTF-8
    if len(text) > MOST_BYTES:
        problems.add(Mark(name, 1, 1), f"is larger than {MOST_BYTES >> 20} MiB, the limit for specs")
        return None
    bad = UNPRINTABLE.search(text)
    if bad:
        character = "a NUL byte" if bad[0] == "\0" else f"the unprintable character U+{ord(bad[0]):04X}"
        problems.add(_mark_at(text, bad.start(), name), f"contains {character}; is this a text file?")
        return None
    return text


def _mark_at(text: str, position: int, name: str) -> Mark:
    line_start = text.rfind("\n", 0, position) + 1
    return Mark(name, text.count("\n", 0, position) + 1, position - line_start + 1)


# -- composing --------------------------------------------------------------------------------------------------------


class _TextError(Exception):
    """Internal error of a problem after which the rest of the text cannot be read. `parse` catches and reports it."""

    def __init__(self, mark: Mark, text: str) -> None:
        super().__init__(text)
        self.mark, self.text = mark, text


class _Composer:
    """Builder of values from YAML events. Unlike PyYAML's, it limits depth and aliases and records positions."""

    def __init__(self, text: str, name: str, problems: Problems, json: bool) -> None:
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self.events: Iterator[Any] = yaml.parse(text, Loader=loader)
        self.name, self.problems, self.json = name, problems, json
        self.anchors: dict[str, tuple[Value, int] | None] = {}
        self.values = 0

    def document(self) -> Value | None:
        result: Value | None = None
        documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _TextError(self.mark(event), "a second document starts here; a spec is one document")
                result = self.value(next(self.events), 1)
        if result is None:
            raise _TextError(Mark(self.name, 1, 1), "is empty; a spec starts with `version: 1`")
        return result

    def mark(self, event: Any) -> Mark:
        return Mark(self.name, event.start_mark.line + 1, event.start_mark.column + 1)

    def value(self, event: Any, depth: int) -> Value:
        mark = self.mark(event)
        if depth > MOST_DEPTH:
            raise _TextError(mark, f"is nested deeper than {MOST_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event.anchor, mark, depth)
        self.count(1, mark)
        before = self.values
        if event.anchor is not None:
            # not complete yet: an alias to it inside of it would make it contain itself
            self.anchors[event.anchor] = None
        reported = len(self.problems.found)
        if event.tag is not None:
            self.problems.add(
                mark, f"tag {show(event.tag)} is not allowed: specs are plain data; remove the tag, and quote text"
            )
        if isinstance(event, yaml.ScalarEvent):
            data = self.scalar(event, mark)
            value = Value(data, mark, broken=len(self.problems.found) > reported)
        elif isinstance(event, yaml.SequenceStartEvent):
            items = tuple(self.items(depth))
            value = Value(items, mark, depth=depth_of(items))
        else:
            value = self.mapping(mark, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, self.values - before + 1)
        return value

    def count(self, more: int, mark: Mark) -> None:
        self.values += more
        if self.values > MOST_VALUES:
            raise _TextError(mark, f"expands to more than {MOST_VALUES} values")

    def alias(self, anchor: str | None, mark: Mark, depth: int) -> Value:
        if anchor is None or anchor not in self.anchors:
            raise _TextError(mark, f"alias *{anchor} has no anchor &{anchor} before it")
        entry = self.anchors[anchor]
        if entry is None:
            raise _TextError(mark, f"alias *{anchor} is inside its own anchor: it would contain itself")
        self.count(entry[1], mark)
        if depth + entry[0].depth > MOST_DEPTH:
            raise _TextError(mark, f"is nested deeper than {MOST_DEPTH} levels by its aliases")
        return entry[0]

    def items(self, depth: int) -> Iterator[Value]:
        for event in self.events:
            if isinstance(event, yaml.SequenceEndEvent):
                return
            yield self.value(event, depth + 1)

    def mapping(self, mark: Mark, depth: int) -> Value:
        entries: dict[str, Value] = {}
        key_marks: dict[str, Mark] = {}
        merged: list[Value] = []
        for event in self.events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key_mark = self.mark(event)
            is_merge = isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]
            key = None if is_merge else self.key(event, key_mark, depth)
            value = self.value(next(self.events), depth + 1)
            if is_merge:
                merged += self.merge_sources(value)
            elif key is not None and key in entries:
                first = key_marks[key]
                self.problems.add(
                    key_mark, f"key {show(key)} is given twice, first in line {first.line}; remove one of them"
                )
            elif key is not None:
                entries[key], key_marks[key] = value, key_mark
        for source in merged:
            assert isinstance(source.data, dict)
            self.count(len(source.data), mark)
            for key, value in source.data.items():
                if key not in entries:
                    entries[key], key_marks[key] = value, source.key_marks[key]
        return Value(entries, mark, key_marks, depth_of(entries.values()))

    def merge_sources(self, value: Value) -> list[Value]:
        sources = list(value.data) if isinstance(value.data, tuple) else [value]
        wrong = [s for s in sources if not isinstance(s.data, dict)]
        for s in wrong:
            self.problems.add(s.mark, f"`<<` merges a mapping or a list of mappings, got {s.kind}")
        return [s for s in sources if isinstance(s.data, dict)]

    def key(self, event: Any, mark: Mark, depth: int) -> str | None:
        key = self.value(event, depth + 1).data
        if isinstance(key, str):
            return key
        if isinstance(key, (tuple, dict)):
            self.problems.add(mark, "a key must be text, not a list or a mapping")
        else:
            remedy = "quote it" if isinstance(event, yaml.AliasEvent) else f'quote it: "{event.value[:40]}"'
            self.problems.add(mark, f"key {show(key)} is not text; {remedy}")
        return None

    def scalar(self, event: Any, mark: Mark) -> Data:
        text: str = event.value
        if any("\ud800" <= c <= "\udfff" for c in text):
            self.problems.add(mark, "contains half of a surrogate pair, which is not text")
            return ""
        if not event.implicit[0] or event.tag is not None:
            return text
        return resolve(text, mark, self.problems, json=self.json)


# -- scalars ----------------------------------------------------------------------------------------------------------

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?")  # accepted as a float by both YAML 1.1 and 1.2
_JSON_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_HEX = re.compile(r"[-+]?0x[0-9a-fA-F]+")
_LIKE_FLOAT = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+")
_OCTAL_LIKE = re.compile(r"[-+]?0[0-9_]+")
_UNDERSCORED = re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?")
_BINARY = re.compile(r"[-+]?0[bo][0-9_]+")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?")
_SWITCHES = {"yes": True, "on": True, "no": False, "off": False}
_NOT_FINITE = {".nan", ".inf", "+.inf", "-.inf", "nan", "infinity", "-infinity"}


def resolve(text: str, mark: Mark, problems: Problems, *, json: bool = False) -> Data:
    """Return the value of the unquoted scalar ``text`` at ``mark``. Text that YAML readers interpret differently is
    reported as a problem, with a remedy."""
    lower = text.lower()
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return lower == "true"
    if _INT.fullmatch(text) or _HEX.fullmatch(text):
        if len(text) > 40 or abs(number := int(text, 0)) >= 1 << 64:
            problems.add(mark, f"{show(text)} does not fit into 64 bits")
            return 0
        return number
    if _FLOAT.fullmatch(text) or (json and _JSON_FLOAT.fullmatch(text)):
        value = float(text)
        if value in (float("inf"), float("-inf")):
            problems.add(mark, f"{show(text)} is too large for a 64-bit number")
            return 0.0
        return value
    remedy = _surprise(text, lower)
    if remedy:
        problems.add(mark, remedy)
    return text


def _surprise(text: str, lower: str) -> str:
    """Return the reason for which the unquoted ``text`` must be written differently; empty if all YAML readers read it
    as text."""
    quoted = f'quote it ("{text[:40]}") if text is meant'
    if lower in _SWITCHES:
        return (
            f"{text} is a switch in YAML 1.1 and text in YAML 1.2; write {str(_SWITCHES[lower]).lower()}, or {quoted}"
        )
    if lower in _NOT_FINITE:
        return f"{text} is not a usable number; {quoted}"
    if _SEXAGESIMAL.fullmatch(text):
        return f"{text[:40]} is a number to base 60 in YAML 1.1; write the number itself, or {quoted}"
    if _OCTAL_LIKE.fullmatch(text):
        return f"{text[:40]} is an octal number in YAML 1.1; write it without leading zeros, or {quoted}"
    if _BINARY.fullmatch(text):
        return f"{text[:40]} is a number only for some YAML readers; write it as a decimal, or {quoted}"
    if _UNDERSCORED.fullmatch(text):
        return f"{text[:40]} is a number in YAML 1.1 and text in YAML 1.2; write it without underscores, or {quoted}"
    if _LIKE_FLOAT.fullmatch(text):
        return f"{text[:40]} is text in YAML 1.1 and a number in YAML 1.2; write {both_float(text)}, or {quoted}"
    if _DATE.fullmatch(text):
        return f"{text[:40]} is a date in YAML 1.1 and text in YAML 1.2; {quoted}"
    return ""


def both_float(text: str) -> str:
    """Return ``text``, a number, in a notation that YAML 1.1 and 1.2 both read as a float: 1e3 as 1.0e+3."""
    mantissa, exponent = re.split("[eE]", text[:40], maxsplit=1)
    mantissa = mantissa if "." in mantissa else mantissa + ".0"
    return f"{mantissa}e{exponent if exponent[:1] in '+-' else '+' + exponent}"


_FIELD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}")


def is_field_name(name: str) -> bool:
    """Return whether ``name`` may name an output. The name becomes a feature, a file name extension or a column."""
    return bool(_FIELD_NAME.fullmatch(name)) and not any(p in ("", ".", "..") for p in name.split("/"))
