"""Lance: data files of rows, and the data set of them, both made by the package pylance (extra ``lance``)."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from ...ops.errors import JobError
from ..base import FieldConfig, Frames, Records, Shard, ShardFiles
from ..bytes import files_io
from ..bytes.written import Problem, UnreadError, WrittenShard
from .arrow import ArrowFrames, ArrowWriter, schema_in


class Lance(ArrowWriter, name="lance", suffix=".lance"):
    """A Lance data set, one fragment per shard. Bytes are stored as binary, numbers in their own type, lists as lists.

    Arrays become three columns: ``<field>`` (binary), ``<field>/shape`` and ``<field>/dtype``. The data files are equal
    to the byte on every run. Lance's own description of the data set (``_versions``, ``_transactions``) is not: it
    holds a time and random names. Folders only: no URLs.
    """

    libraries = ("pylance", "pyarrow")
    module: ClassVar[str] = "lance"
    extra: ClassVar[str] = "lance"
    folders: ClassVar[tuple[str, ...]] = ("_versions", "_transactions")
    local_only: ClassVar[bool] = True

    def open(self, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> Shard:
        return LanceShard(self, files, fields)

    @classmethod
    def walk(cls, shard: WrittenShard) -> Iterator[Problem]:
        if importlib.util.find_spec("lance") is None:
            raise UnreadError("pylance is missing: pip install 'dali-run[lance]'")
        if not shard.sound:
            return
        from lance.file import LanceFileReader

        name, rows = shard.file(".lance"), 0
        reader = LanceFileReader(str(shard.root / name))
        told = shard.schema.get("schema")
        if told is not None and not reader.metadata().schema.equals(schema_in({"schema": told})):
            yield Problem(name, "", "has other columns than the data set's schema says")
        for batch in reader.read_all(batch_size=256).to_batches():
            rows += batch.num_rows
        yield from shard.count(name, rows)

    @classmethod
    def complete(cls, root: Path, manifest: Mapping[str, Any], carry: Mapping[str, Any]) -> None:
        import lance

        for folder in cls.folders:
            files_io.remove(root / folder)
        schema = cls.of(manifest["write"]["options"]).shard_schema(carry)
        files = _files(manifest)
        fragments = _fragments(schema, files) if files else []
        lance.LanceDataset.commit(str(root), lance.LanceOperation.Overwrite(schema, fragments))

    @classmethod
    def check_complete(cls, root: Path, manifest: Mapping[str, Any]) -> Iterator[Problem]:
        if importlib.util.find_spec("lance") is None:
            return
        import lance

        try:
            fragments = lance.dataset(str(root)).get_fragments()
            found = [(f.data_files()[0].path, f.physical_rows) for f in fragments]
        except Exception as e:
            yield Problem("_versions", "", f"Lance cannot open the data set: {e}")
            return
        if found != [(name.removeprefix("data/"), rows) for name, rows, _ in _files(manifest)]:
            yield Problem("_versions", "", "lists other data files than the manifest")


def _files(manifest: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Return name, number of rows and size in bytes of each data file that holds rows."""
    return [(f["name"], s["samples"], f["bytes"]) for s in manifest["shards"] for f in s["files"] if s["samples"]]


def _fragments(schema: Any, files: list[tuple[str, int, int]]) -> list[Any]:
    """Return Lance's descriptions (fragments) of the data files, made like the one that Lance itself makes of one row
    of nulls."""
    import pyarrow as pa
    from lance.fragment import FragmentMetadata, write_fragments

    row = pa.table([pa.nulls(1, f.type) for f in schema], schema=schema)
    with tempfile.TemporaryDirectory(prefix="dali-run-") as folder:
        (model,) = write_fragments(row, folder, schema=schema, mode="create")
    fragments = []
    for number, (name, rows, size) in enumerate(files):
        told = model.to_json()
        told |= {"id": number, "physical_rows": rows}
        told["files"][0] |= {"path": name.removeprefix("data/"), "file_size_bytes": size}
        fragments.append(FragmentMetadata.from_json(json.dumps(told)))
    return fragments


class LanceShard(Shard):
    """One Lance data file. Lance writes it under another name; at the end it is copied from there into the shard's
    file."""

    def __init__(self, writer: Lance, files: ShardFiles, fields: Mapping[str, FieldConfig]) -> None:
        self._options = writer
        self._fields = fields
        self._carry = files.carry
        self._file = files.create_at(0, f"data/{files.stem}.lance")
        self._path = self._file.temporary.with_name("rows.lance")
        self._writer: Any = None

    def frame(self, records: Records) -> ArrowFrames:
        return self._options.table_of(records, self._fields, self._carry)

    def _open(self, schema: Any) -> Any:
        from lance.file import LanceFileWriter

        if self._writer is None:
            self._writer = LanceFileWriter(str(self._path), schema)
        return self._writer

    def append(self, frames: Frames, n: int) -> None:
        assert isinstance(frames, ArrowFrames)
        table = frames.table.slice(0, n).combine_chunks()
        try:
            self._open(table.schema).write_batch(table)
        except (OSError, ValueError) as e:
            raise JobError(f"{self._path}: Lance cannot write the rows: {e}") from None

    def close(self) -> None:
        self._open(self._options.shard_schema(self._carry)).close()
        self._file.write_file(self._path)
