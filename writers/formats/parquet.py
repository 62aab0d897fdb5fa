"""Parquet: a row per sample, for pyarrow, pandas, polars, Hugging Face datasets. Needs pyarrow (extra ``parquet``)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import numpy as np

from ...ops.base import Arg, Spec
from ..base import FieldConfig, Frames, Records, Shard, ShardFile, ShardFiles
from ..bytes.written import Problem, UnreadError, WrittenShard
from . import hugging_face
from .arrow import ArrowFrames, ArrowWriter, schema_in


class Parquet(ArrowWriter, name="parquet", suffix=".parquet"):
    """Parquet files, one column per field. Bytes are stored as binary, numbers in their own type, lists as lists.

    Arrays become three columns: ``<field>`` (binary), ``<field>/shape`` and ``<field>/dtype``. Whether a field of
    numbers is one number or a list follows from the spec, or else from the data set's first sample, unless it is named
    in ``lists``. Pages carry checksums.
    """

    libraries = ("pyarrow",)
    copies = 3  # pyarrow's encoder, its page, and the bytes that it passes to the file

    row_group: Annotated[int, Arg("largest number of rows per row group", ge=1)] = 256
    row_group_bytes: Annotated[int, Arg("bytes from which a row group is complete", ge=1)] = 1 << 26
    compression: Annotated[
        Literal["none", "snappy", "zstd"], Arg("compression of columns; encoded images do not shrink")
    ] = "none"
    features: Annotated[
        dict[str, Any] | None,
        Arg("features of Hugging Face's datasets: {image: image, sound: audio, label: [cat, dog]}; writes README.md"),
    ] = None

    def check(self, fields: Mapping[str, FieldConfig], specs: Mapping[str, Spec]) -> None:
        super().check(fields, specs)
        hugging_face.check(self.features, fields, specs)

    @property
    def written_at_once(self) -> int:
        return self.row_group_bytes

    def described(self, table: Any, fields: Mapping[str, FieldConfig]) -> Any:
        return hugging_face.described(table, self.features, fields)

    @property
    def collection(self) -> tuple[str, ...]:
        return (hugging_face.CARD,) if self.features is not None else ()

    @classmethod
    def collect(cls, manifest: Mapping[str, Any], carry: Mapping[str, Any]) -> dict[str, bytes]:
        if manifest["write"]["options"].get("features") is None or "schema" not in carry:
            return {}
        return {hugging_face.CARD: hugging_face.card(manifest, schema_in(carry))}

    def open(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> Shard:
        return ParquetShard(self, files, fields)

    @classmethod
    def walk(cls, shard: WrittenShard) -> Iterator[Problem]:
        if importlib.util.find_spec("pyarrow") is None:
            raise UnreadError("pyarrow is missing: pip install 'dali-run[parquet]'")
        if not shard.sound:  # pyarrow ends the process for some damaged files
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        name = shard.file(".parquet")
        rows = 0
        try:
            file = pq.ParquetFile(shard.root / name, page_checksum_verification=True)
            told = shard.schema.get("schema")
            if told is not None and not file.schema_arrow.equals(schema_in({"schema": told})):
                yield Problem(name, "", "has other columns than the data set's schema says")
            for g in range(file.num_row_groups):
                rows += file.read_row_group(g, use_threads=False).num_rows
        except pa.ArrowException as e:
            raise ValueError(" ".join(str(e).split())) from e
        yield from shard.count(name, rows)


class ParquetShard(Shard):
    """One Parquet file that is being written."""

    def __init__(self, writer: Parquet, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> None:
        self._options = writer
        self._fields = fields
        self._carry = files.carry
        self._sink = _Sink(files.create(".parquet"))
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._rows = self._bytes = 0
        """Number of rows and bytes in the open row group."""

    def frame(self, records: Records) -> ArrowFrames:
        return self._options.table_of(records, self._fields, self._carry)

    def append(self, frames: Frames, n: int) -> None:
        assert isinstance(frames, ArrowFrames)
        options, at = self._options, 0
        while at < n:
            reached = self._bytes + np.cumsum(frames.sizes[at : min(n, at + options.row_group - self._rows)])
            fits = min(len(reached), int(np.searchsorted(reached, options.row_group_bytes)) + 1)
            self._waiting.append(frames.table.slice(at, fits))
            at, self._rows, self._bytes = at + fits, self._rows + fits, int(reached[fits - 1])
            if self._rows == options.row_group or self._bytes >= options.row_group_bytes:
                self._put()

    def _put(self) -> None:
        import pyarrow as pa

        table = pa.concat_tables(self._waiting).combine_chunks()
        self._open(table.schema).write_table(table, row_group_size=self._rows)
        self._waiting, self._rows, self._bytes = [], 0, 0

    def _open(self, schema: Any) -> Any:
        import pyarrow.parquet as pq

        if self._writer is None:
            self._writer = pq.ParquetWriter(self._sink, schema, compression=self._options.compression,
                                            use_dictionary=False, write_statistics=False,
                                            write_page_checksum=True)  # fmt: skip
        return self._writer

    def close(self) -> None:
        if self._rows:
            self._put()
        self._open(self._options.shard_schema(self._carry)).close()


class _Sink:
    """File object through which pyarrow writes into the shard's file."""

    closed = False

    def __init__(self, file: ShardFile) -> None:
        self._file = file
        self._failed = False

    def write(self, data: Any) -> int:
        """Write all of ``data`` to the shard's file. If the shard was given up, the data is dropped."""
        if self._failed or self._file.closed:
            return len(data)
        self._failed = True
        self._file.write(bytes(data))
        self._failed = False
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes written so far, as files do."""
        return self._file.size

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def close(self) -> None:
        """Do nothing: the shard closes its file."""
