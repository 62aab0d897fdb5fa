"""ArrayRecord: Examples in files with random access, for Grain; made by the package array_record (extra
``array-record``)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ...ops.base import Arg, Spec
from ...ops.errors import JobError, SpecError
from ..base import FieldConfig, Frames, Records, Shard, ShardFiles, Writer
from ..bytes.written import Problem, UnreadError, WrittenShard
from .columns import Column, check_field, examples, features, keys_of, pack

_BYTES_LIST = 10  # tag of a feature of bytes


class ArrayRecord(Writer, name="array_record", suffix=".array_record"):
    """Examples in ArrayRecord files, as `grain.sources.ArrayRecordDataSource` reads them, one record per group.

    Bytes (encoded images, texts) are stored as bytes features, integers as int64, floats as float, and arrays as three
    features: ``<field>`` (bytes), ``<field>/shape`` and ``<field>/dtype``.
    """

    libraries = ("array_record",)

    key: Annotated[str, Arg("store the samples' keys as a bytes feature of this name; empty for none")] = "key"
    compression: Annotated[
        Literal["none", "snappy", "zstd", "brotli"], Arg("compression of records; encoded images do not shrink")
    ] = "none"

    def check(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> None:
        if importlib.util.find_spec("array_record") is None:
            raise SpecError("the array_record writer needs array_record: pip install 'dali-run[array-record]'")
        for name, config in fields.items():
            check_field(name, config, specs.get(name, Spec()))
        if self.key in fields:
            raise SpecError(f"option key: {self.key!r} is already the name of a field")

    def open(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> Shard:
        return ArrayRecordShard(self, files, fields)

    @classmethod
    def walk(cls, shard: WrittenShard) -> Iterator[Problem]:
        if importlib.util.find_spec("array_record") is None:
            raise UnreadError("array_record is missing: pip install 'dali-run[array-record]'")
        if not shard.sound:
            return
        from array_record.python.array_record_module import ArrayRecordReader

        name = shard.file(".array_record")
        reader = ArrayRecordReader(str(shard.root / name))
        if not reader.ok():
            yield Problem(name, "", "is not an ArrayRecord file")
            return
        yield from shard.count(name, reader.num_records())
        for at in range(0, reader.num_records(), 256):
            reader.read(list(range(at, min(at + 256, reader.num_records()))))


@dataclass(slots=True)
class ArrayRecordFrames(Frames):
    """Records of a batch as serialised tf.train.Examples."""

    records: Column


class ArrayRecordShard(Shard):
    """One ArrayRecord file. The library writes it under another name; at the end it is copied from there."""

    def __init__(self, writer: ArrayRecord, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        self._key = writer.key.encode()
        self._fields = fields
        self._file = files.create(".array_record")
        self._path = self._file.temporary.with_name(self._file.temporary.name + ".made")
        compression = "uncompressed" if writer.compression == "none" else writer.compression
        self._writer: Any = ArrayRecordWriter(str(self._path), f"group_size:1,{compression}")

    def frame(self, records: Records) -> ArrayRecordFrames:
        parts = features(records.fields, self._fields)
        if self._key:
            parts.append((self._key, _BYTES_LIST, keys_of(records.samples)))
        column = pack(examples(parts, len(records)))
        return ArrayRecordFrames(column.sizes, column)

    def append(self, frames: Frames, n: int) -> None:
        assert isinstance(frames, ArrayRecordFrames)
        for i in range(n):
            self._writer.write(frames.records.value(i))
        if not self._writer.ok():
            raise JobError(f"{self._path}: array_record cannot write the records")

    def close(self) -> None:
        self._writer.close()
        self._file.write_file(self._path)
