"""WebDataset: tar files whose members of one sample share a key and differ in extension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import numpy as np
import numpy.typing as npt

from ..ops.base import Arg, Spec
from ..ops.batch import I64
from ..ops.errors import SpecError
from .base import FieldConfig, Frames, KeyBy, Records, Shard, ShardFiles, Writer
from .columns import U8, check_field, copy, starts_of
from .extensions import file_columns
from .names import make_unique, webdataset_key

BLOCK = 512
_INDEX_VERSION = "v1.2"
_NAME, _PREFIX = 100, 155
"""Bytes for names in a ustar header (POSIX.1-1988)."""


class WebDataset(Writer, name="webdataset", suffix=".tar"):
    """Tar files for webdataset, DALI's readers.webdataset, and tar itself.

    Encoded fields become ``<key>.jpg`` and so on (kept bytes by their signature), one integer ``<key>.cls``, arrays
    ``<key>.npy``; where two fields share an extension it is ``<field>.<extension>``. Members carry no times or owners.
    """

    key: KeyBy = "sample"
    index: Annotated[bool, Arg("also write <shard>.idx, as wds2idx does, for DALI's reader")] = True

    def check(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> None:
        for name, config in fields.items():
            check_field(name, config, specs.get(name, Spec()))
            if "." in name or "/" in name or any(c.isspace() for c in name):
                raise SpecError(f"field {name!r} cannot be part of a member's name; avoid dots, slashes and spaces")

    def open(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> Shard:
        return WebDatasetShard(self, files, fields)


@dataclass(slots=True)
class TarFrames(Frames):
    """The members of all records in one buffer."""

    data: U8
    keys: list[str]
    names: list[str]
    """Of the members, record by record."""
    extensions: list[str]
    content: I64
    """Where each member's content begins in ``data``."""
    content_sizes: I64


class WebDatasetShard(Shard):
    """One .tar file, and its index."""

    def __init__(self, writer: WebDataset, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> None:
        self._by_position = writer.key == "position"
        self._fields = fields
        self._file = files.create(".tar")
        self._index = files.create(".idx") if writer.index else None
        self._lines: list[str] = []
        self._count = 0
        self._keys: set[str] = set()

    def frame(self, records: Records) -> TarFrames:
        positions = records.samples.position.tolist()
        if self._by_position:
            keys = [f"{p:010d}" for p in positions]
        else:
            keys = make_unique([webdataset_key(k) for k in records.sample_keys()], positions, self._keys)
        columns = file_columns(records, self._fields)
        extensions = [e for row in zip(*(exts for exts, _ in columns), strict=True) for e in row]
        width = len(columns)
        names = [f"{keys[i // width]}.{e}" for i, e in enumerate(extensions)]
        sizes = np.stack([c.sizes for _, c in columns], axis=1).reshape(-1)
        long = _long_names([n.encode() for n in names])
        heads = BLOCK + long.extra
        padded = -(-sizes // BLOCK) * BLOCK
        starts = starts_of(heads + padded)
        out = np.zeros(int((heads + padded).sum()), np.uint8)
        headers = _headers(long.names, long.prefixes, sizes)
        content = starts + heads
        out_blocks = out.reshape(-1, BLOCK)
        out_blocks[(content - BLOCK) // BLOCK] = headers
        for row, block in long.blocks.items():
            out[starts[row] : starts[row] + len(block)] = np.frombuffer(block, np.uint8)
        for k, (_, column) in enumerate(columns):
            copy(out, content[k::width], column)
        total = (heads + padded).reshape(-1, width).sum(axis=1)
        return TarFrames(total, out, keys, names, extensions, content, sizes)

    def append(self, frames: Frames, n: int) -> None:
        assert isinstance(frames, TarFrames)
        width = len(frames.names) // len(frames.keys)
        if self._index is not None:
            members = zip(
                frames.extensions,
                (frames.content + self._file.size).tolist(),
                frames.content_sizes.tolist(),
                frames.names,
                strict=True,
            )
            flat = [word for member in islice(members, n * width) for word in member]
            self._lines.append((" ".join(["%s %d %d %s"] * width) + "\n") * n % tuple(flat))
            self._count += n
        self._keys.update(frames.keys[:n])
        self._file.write(frames.data[: int(frames.sizes[:n].sum())])

    def close(self) -> None:
        self._file.write(bytes(2 * BLOCK))
        if self._index is not None:
            self._index.write(f"{_INDEX_VERSION} {self._count}\n{''.join(self._lines)}".encode())


@dataclass(frozen=True, slots=True)
class _Names:
    """Names as headers hold them; what is longer goes into a block of its own before the member."""

    names: Sequence[bytes]
    prefixes: Mapping[int, bytes]
    blocks: Mapping[int, bytes]
    extra: I64


def _long_names(names: Sequence[bytes]) -> _Names:
    lengths = np.fromiter(map(len, names), np.int64, len(names))
    extra = np.zeros(len(names), np.int64)
    prefixes: dict[int, bytes] = {}
    blocks: dict[int, bytes] = {}
    short = list(names)
    for row in np.flatnonzero(lengths > _NAME).tolist():
        cut = names[row].rfind(b"/", 0, _PREFIX + 1)
        if cut > 0 and len(names[row]) - cut - 1 <= _NAME:
            prefixes[row], short[row] = names[row][:cut], names[row][cut + 1 :]
            continue
        # GNU's long name: a member of type L whose content is the name. All readers of tar know it.
        text = names[row] + b"\0"
        head = _headers([b"././@LongLink"], {}, np.array([len(text)]), b"L")
        blocks[row] = head.tobytes() + text + bytes(-len(text) % BLOCK)
        extra[row] = len(blocks[row])
        short[row] = names[row][:_NAME]
    return _Names(short, prefixes, blocks, extra)


def _octal(values: npt.NDArray[np.int64], digits: int) -> U8:
    shifts = 3 * np.arange(digits - 1, -1, -1)
    return (((values[:, None] >> shifts) & 7) + ord("0")).astype(np.uint8)


def _headers(names: Sequence[bytes], prefixes: Mapping[int, bytes], sizes: I64, kind: bytes = b"0") -> U8:
    """uint8[N, 512]: ustar headers of files that nobody owns and that are as old as time."""
    out = np.zeros((len(names), BLOCK), np.uint8)
    out[:, :_NAME] = np.array(names, f"S{_NAME}").view(np.uint8).reshape(-1, _NAME)
    for at, text in ((100, b"0000644"), (108, b"0000000"), (116, b"0000000"), (136, b"0" * 11), (148, b" " * 8),
                     (156, kind), (257, b"ustar\x0000"), (329, b"0000000"), (337, b"0000000")):  # fmt: skip
        out[:, at : at + len(text)] = np.frombuffer(text, np.uint8)
    out[:, 124:135] = _octal(sizes, 11)
    for row, prefix in prefixes.items():
        out[row, 345 : 345 + len(prefix)] = np.frombuffer(prefix, np.uint8)
    out[:, 148:154] = _octal(out.sum(axis=1, dtype=np.int64), 6)
    out[:, 154] = 0
    return out
