"""readers.parquet against what pyarrow itself reads, nulls, types that differ, damage of every kind, and bombs."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run import fn
from dali_run.ops.errors import JobError, SampleError, SpecError
from dali_run.pipeline import pipeline_def
from dali_run.pipelines.job.run import run_job
from dali_run.readers.fetch import bus_errors, extents
from dali_run.readers.parquet import blocks as parquet_blocks
from dali_run.readers.parquet.pages import walk_pages
from dali_run.readers.parquet.reader import Parquet
from tests.kit.long import thinned
from tests.kit.readers import content, fetch, open_reader

pa = pytest.importorskip("pyarrow", reason="needs the extra parquet")
pq = pytest.importorskip("pyarrow.parquet")
N = 103
COLUMNS = ("image", "blob", "text", "numbers", "label", "byte", "score", "flag", "word", "fixed", "when", "box", "half")


def table(n: int = N) -> Any:
    """Every kind of column that can be read, with and without nulls."""
    rng = np.random.default_rng(0)
    images = [{"bytes": rng.bytes(int(rng.integers(0, 4000))), "path": f"p{i}.jpg"} for i in range(n)]
    return pa.table({
        "image": pa.array(images),  # as Hugging Face's datasets store them
        "blob": pa.array([rng.bytes(int(rng.integers(0, 50))) if i % 7 else None for i in range(n)], pa.large_binary()),
        "text": pa.array([("cat", "dog", "é")[i % 3] for i in range(n)]),
        "numbers": pa.array([list(range(i % 5)) if i % 9 else None for i in range(n)], pa.list_(pa.int32())),
        "label": pa.array(range(n), pa.int64()),
        "byte": pa.array([i % 256 for i in range(n)], pa.uint8()),
        "score": pa.array(rng.normal(size=n), pa.float64()),
        "flag": pa.array([i % 2 == 0 if i % 5 else None for i in range(n)], pa.bool_()),
        "word": pa.array([("x", "y")[i % 2] for i in range(n)]).dictionary_encode(),
        "fixed": pa.array([b"abcd"] * n, pa.binary(4)),
        "when": pa.array(range(n), pa.timestamp("us")),
        "box": pa.array([[i, i + 1] for i in range(n)], pa.list_(pa.float32(), 2)),
        "half": pa.array(np.arange(n, dtype=np.float16)),
    })  # fmt: skip


def write(folder: Path, whole: Any, cuts: tuple[int, ...] = (0, 40, 40, N), **options: Any) -> str:
    for k, (low, high) in enumerate(itertools.pairwise(cuts)):
        part = whole.slice(low, high - low)
        pq.write_table(part, folder / f"{k}.parquet", **{"row_group_size": 25, "data_page_size": 3000, **options})
    return str(folder / "*.parquet")


def check(row: dict[str, Any], index: int, outputs: list[Any]) -> None:
    for name, got in zip(COLUMNS, outputs, strict=True):
        want = row[name]
        if isinstance(want, dict):
            want = want["bytes"]
        if want is None:
            assert got.shape == (0,), name
        elif isinstance(want, (str, bytes)):
            assert got.tobytes() == (want.encode() if isinstance(want, str) else want), name
        elif name == "when":
            assert got.tolist() == [index]
        else:
            assert got.tolist() == (want if isinstance(want, list) else [want]), name


@pytest.mark.parametrize("block", [64 << 20, 20_000], ids=["whole row groups", "parts of row groups"])
@pytest.mark.parametrize("options", [
    {"compression": "none", "use_dictionary": False},
    {"compression": "zstd", "use_dictionary": True, "write_page_checksum": True},
    {"compression": "snappy", "use_dictionary": True, "data_page_version": "2.0"},
], ids=str)  # fmt: skip
def test_equals_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, options: dict[str, Any]) -> None:
    monkeypatch.setattr(parquet_blocks, "BLOCK", block)
    path = write(tmp_path, table(), **options)
    reader = Parquet(path=path, columns=COLUMNS, nulls="empty")
    source = open_reader(reader)
    assert len(source) == N
    assert source.groups is not None
    assert source.groups.tolist() == [40, 0, N - 40]
    rows = pa.concat_tables([pq.read_table(p) for p in sorted(tmp_path.glob("*.parquet"))]).to_pylist()
    shuffled = np.random.default_rng(1).permutation(N).tolist()
    for index in (range(N), shuffled, [N - 1, 3, 3, 77], [5], []):
        for staging in (False, True):
            batches, rejects = fetch(reader, source, index, staging)
            assert not rejects
            for i, record in enumerate(index):
                check(rows[record], record, [b.sample(i) for b in batches])
    types = ["uint8", "uint8", "uint8", "int32", "int64", "int32", "float64", "bool", "uint8", "uint8", "int64"]
    assert [b.dtype.name for b in batches] == [*types, "float32", "float16"]
    assert source.origin(41).key == "2.parquet/00000001"
    assert source.keys(np.arange(N)) == [source.origin(i).key.encode() for i in range(N)]


def test_little_is_kept(tmp_path: Path) -> None:
    """Blocks that do not fit into the cache are let go, and come again."""
    path = write(tmp_path, table(), row_group_size=10)
    reader = Parquet(path=path, columns=("image",), cache_size=60_000)
    source = open_reader(reader)
    (expected,), _ = fetch(reader, open_reader(Parquet(path=path, columns=("image",))), range(N))
    for _ in range(2):
        (batch,), rejects = fetch(reader, source, range(N))
        assert not rejects
        assert content(batch) == content(expected)
        assert source._blocks._size <= 60_000


def test_python_functions_give_a_tuple(tmp_path: Path) -> None:
    path = write(tmp_path, table())

    @pipeline_def(batch_size=4, num_threads=1, device_id=None)
    def both() -> Any:
        labels, numbers = fn.readers.parquet(path=path, columns=["label", "box"])
        return labels, numbers

    pipe = both()
    pipe.build()
    labels, boxes = pipe.run()
    assert np.array(labels.as_array()).tolist() == [[0], [1], [2], [3]]
    assert np.array(boxes.as_array()).tolist() == [[k, k + 1] for k in range(4)]


def test_keys(tmp_path: Path) -> None:
    whole = table().append_column("id", pa.array([f"n/{i}" if i % 10 else None for i in range(N)]))
    path = write(tmp_path, whole)
    for name, wanted in (("id", "n/43"), ("label", "43"), ("image.path", "p43.jpg")):
        source = open_reader(Parquet(path=path, columns=("label",), key=name))
        assert source.origin(43).key == wanted
        assert source.keys(np.array([43])) == [wanted.encode()]
    source = open_reader(Parquet(path=path, columns=("label",), key="id"))
    assert source.origin(50).key == "2.parquet/00000010"  # null


def test_nulls_are_rejected_by_name(tmp_path: Path) -> None:
    reader = Parquet(path=write(tmp_path, table()), columns=("label", "flag", "blob", "numbers"))
    _, rejects = fetch(reader, open_reader(reader), range(11))
    assert [(r.slot, r.code) for r in rejects] == [(k, "missing_feature") for k in (0, 5, 10, 7, 9)]
    assert "column 'flag' is null; give nulls: empty" in rejects[0].message
    holes = pa.table({"list": pa.array([[1, 2], [3, None], [4]], pa.list_(pa.int32()))})
    reader = Parquet(path=write(tmp_path, holes, (0, 3)), columns=("list",))
    (batch,), rejects = fetch(reader, open_reader(reader), range(3))
    assert [r.slot for r in rejects] == [1]
    assert batch.sample(2).tolist() == [4]


def test_images_that_lie_elsewhere(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = pa.table({"image": pa.array([{"bytes": None, "path": "a.jpg"}, {"bytes": b"x", "path": None}, None], kind)})
    reader = Parquet(path=write(tmp_path, rows, (0, 3)), columns=("image",))
    (batch,), rejects = fetch(reader, open_reader(reader), range(3))
    assert [r.slot for r in rejects] == [0, 2]
    assert "the image itself may lie in a file of its own" in rejects[0].message
    assert content(batch)[1] == b"x"


def test_wrong_names_and_types(tmp_path: Path) -> None:
    odd = pa.table({"points": pa.array([[[1, 2]]]), "price": pa.array([1]).cast(pa.decimal128(20)), "label": [1]})
    path = write(tmp_path, odd, (0, 1))
    for name, words in (
        ("lable", "did you mean label"),
        ("points", "of type list<.*; bytes, texts, numbers"),
        ("price", "decimal128"),
        ("label.x", "no column"),
    ):
        with pytest.raises(SpecError, match=words):
            open_reader(Parquet(path=path, columns=(name,)))
    with pytest.raises(SpecError, match="columns is empty"):
        open_reader(Parquet(path=path, columns=()))
    with pytest.raises(JobError, match="there is no file"):
        open_reader(Parquet(path=str(tmp_path / "none"), columns=("label",)))


def test_files_that_differ(tmp_path: Path) -> None:
    """Most files say the types, wherever they stand; rows of others are rejected, and told why."""
    (tmp_path / "a.parquet").write_bytes(b"PAR1 is no footer")
    pq.write_table(pa.table({"label": ["x"]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"label": [1, 2]}), tmp_path / "c.parquet")
    pq.write_table(pa.table({"lable": [1]}), tmp_path / "d.parquet")
    pq.write_table(pa.table({"label": [3]}), tmp_path / "e.parquet")
    reader = Parquet(path=str(tmp_path / "*.parquet"), columns=("label",))
    source = open_reader(reader)
    (batch,), rejects = fetch(reader, source, range(len(source)))
    assert [b.tolist() for b in batch] == [[], [], [1], [2], [], [3]]
    assert [(r.slot, r.code) for r in rejects] == [
        (0, "corrupt_record"), (1, "missing_feature"), (4, "missing_feature")
    ]  # fmt: skip
    assert "holds bytes here, int64 in most files" in rejects[1].message
    assert [Path(source.origin(r.slot).source).name for r in rejects] == ["a.parquet", "b.parquet", "d.parquet"]
    with pytest.raises(JobError, match=r"a\.parquet: its footer cannot be read.*is it a Parquet file"):
        open_reader(Parquet(path=str(tmp_path / "a.parquet"), columns=("label",)))


def test_nothing_at_all(tmp_path: Path) -> None:
    reader = Parquet(path=write(tmp_path, table(0), (0, 0)), columns=("label", "image"))
    source = open_reader(reader)
    assert len(source) == 0
    batches, rejects = fetch(reader, source, [])
    assert [len(b) for b in batches] == [0, 0]
    assert not rejects


def test_fingerprint_tells_edits(tmp_path: Path) -> None:
    path = write(tmp_path, table())
    reader = Parquet(path=path, columns=("label",))
    first = open_reader(reader)
    assert first.fingerprint() == open_reader(reader).fingerprint()
    assert first.inventory().records.tolist() == [40, 0, 63]
    write(tmp_path, table(), row_group_size=20)
    assert first.fingerprint() != open_reader(reader).fingerprint()


# -- damage -----------------------------------------------------------------------------------------------------------


def test_a_damaged_page_costs_its_row_group(tmp_path: Path) -> None:
    options = {"use_dictionary": False, "compression": "none", "write_statistics": False, "write_page_checksum": True}
    path = Path(write(tmp_path, table(), (0, N), **options))
    (file,) = path.parent.glob("*.parquet")
    chunk = pq.read_metadata(file).row_group(1).column(0)
    raw = bytearray(file.read_bytes())
    raw[chunk.data_page_offset + 700] ^= 4
    file.write_bytes(raw)
    reader = Parquet(path=str(file), columns=("image", "label"))
    batches, rejects = fetch(reader, open_reader(reader), range(N))
    assert [r.slot for r in rejects] == list(range(25, 50))
    assert {r.code for r in rejects} == {"corrupt_record"}
    assert "row group 1 cannot be decoded" in rejects[0].message
    reader = Parquet(path=str(file), columns=("image", "label"), check_crc=False)
    again, rejects = fetch(reader, open_reader(reader), range(N))
    assert not rejects
    assert sum(a != b for a, b in zip(content(again[0]), content(batches[0]), strict=True) if b) == 0
    reader = Parquet(path=str(file), columns=("label",))  # the damage is elsewhere
    assert not fetch(reader, open_reader(reader), range(N))[1]


def test_every_flipped_bit_under_a_checksum_is_found(tmp_path: Path) -> None:
    """Rows come as they were written, or are rejected; whatever is damaged: pages, their headers, the footer."""
    whole = table(40).select(["image", "label", "text"])
    options = {"row_group_size": 10, "compression": "none", "write_statistics": False, "write_page_checksum": True}
    path = Path(write(tmp_path, whole, (0, 40), **options))
    (file,) = path.parent.glob("*.parquet")
    good = file.read_bytes()
    rows = whole.to_pylist()
    rng = np.random.default_rng(0)
    footer = len(good) - 8 - struct.unpack("<I", good[-8:-4])[0]
    found = 0
    for _ in range(100):
        raw = bytearray(good)
        at = int(rng.integers(footer))
        raw[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(raw)
        reader = Parquet(path=str(file), columns=("image", "label", "text"))
        source = open_reader(reader)
        batches, rejects = fetch(reader, source, range(len(source)))
        refused = {r.slot for r in rejects}
        found += bool(refused)
        for i in set(range(40)) - refused:
            assert batches[0].sample(i).tobytes() == rows[i]["image"]["bytes"]
            assert batches[1].sample(i).tolist() == [rows[i]["label"]]
            assert batches[2].sample(i).tobytes() == rows[i]["text"].encode()
    assert found > 60  # the paths of images are not read


@pytest.mark.parametrize("block", thinned([3000, 64 << 20], 2))
def test_damage_is_an_error_or_rejects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(parquet_blocks, "BLOCK", block)
    rng = np.random.default_rng(block)
    outcomes = {"rows": 0, "rejects": 0, "refused": 0}
    for k, options in enumerate(({"compression": "zstd"}, {"use_dictionary": False}, {"data_page_version": "2.0"})):
        whole = io.BytesIO()
        pq.write_table(table(40), whole, row_group_size=15, **options)
        good = whole.getvalue()
        footer = len(good) - 8 - struct.unpack("<I", good[-8:-4])[0]
        for _ in range(40):
            raw = bytearray(good)
            for _ in range(int(rng.integers(1, 4))):
                at = int(rng.integers(footer, len(raw)) if rng.integers(2) else rng.integers(len(raw)))
                if rng.integers(4):
                    raw[at] ^= 1 << int(rng.integers(8))
                else:
                    raw[at] = int(rng.choice((0, 127, 128, 255)))
            if rng.integers(10) == 0:
                del raw[int(rng.integers(len(raw))) :]
            file = tmp_path / f"{k}.parquet"
            file.write_bytes(raw)
            reader = Parquet(path=str(file), columns=COLUMNS, nulls="empty", key="text")
            try:
                source = open_reader(reader)
            except (JobError, SpecError):
                outcomes["refused"] += 1
                continue
            n = min(len(source), 1000)
            _, rejects = fetch(reader, source, range(n))
            source.keys(np.arange(n))
            outcomes["rejects" if rejects else "rows"] += 1
            assert all(r.code and len(r.message) > 10 for r in rejects)
    assert min(outcomes.values()) > 1


def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files that unpack to much: words of a dictionary stay words; pages and lists over the limit are refused."""
    long = b"x" * 1_000_000
    words = pa.table({"blob": pa.array([long] * 300, pa.binary())})
    pq.write_table(words, tmp_path / "words.parquet", compression="zstd")
    assert (tmp_path / "words.parquet").stat().st_size < 10_000
    reader = Parquet(path=str(tmp_path / "words.parquet"), columns=("blob",))
    source = open_reader(reader)
    (batch,), rejects = fetch(reader, source, [299, 0])
    assert not rejects
    assert [len(b) for b in batch] == [1_000_000] * 2
    assert source._blocks._size < 3_000_000  # not 300 MB

    for module in (parquet_blocks, sys.modules["dali_run.readers.parquet.pages"]):
        monkeypatch.setattr(module, "FREE_UNPACKED", 1 << 20)
    pq.write_table(pa.table({"blob": [bytes(5 << 20)]}), tmp_path / "page.parquet", compression="zstd")
    pq.write_table(pa.table({"list": [[0] * 5_000_000]}), tmp_path / "list.parquet", compression="zstd")
    for name, column in (("page", "blob"), ("list", "list")):
        reader = Parquet(path=str(tmp_path / f"{name}.parquet"), columns=(column,))
        _, rejects = fetch(reader, open_reader(reader), [0])
        assert rejects[0].code == "too_large"
        assert "more than 200 times" in rejects[0].message


def test_long_values_behind_a_full_dictionary_are_no_words(tmp_path: Path) -> None:
    """Writers begin with a dictionary and give it up; making one of everything takes ten times as long."""
    rng = np.random.default_rng(0)
    file = tmp_path / "a.parquet"
    blobs = pa.table({"blob": [rng.bytes(300_000) for _ in range(300)]})
    pq.write_table(blobs, file, compression="none", write_batch_size=4)
    group = pq.read_metadata(file).row_group(0)
    assert group.column(0).has_dictionary_page
    source = open_reader(Parquet(path=str(file), columns=("blob",)))
    with file.open("rb") as raw:
        data = memoryview(raw.read())
    assert source._blocks._examine(group, [0], source._columns(), data) == []
    pq.write_table(pa.table({"blob": [bytes(900_000)] * 200}), file, compression="none")
    data = memoryview(file.read_bytes())
    assert source._blocks._examine(pq.read_metadata(file).row_group(0), [0], source._columns(), data) == ["blob"]


def test_page_headers() -> None:
    """The walk itself, on headers of all sorts and on damage: SampleError, whatever comes."""
    file = io.BytesIO()
    pq.write_table(table(), file, compression="none", data_page_size=500, write_page_checksum=True)
    data = file.getvalue()
    group = pq.read_metadata(io.BytesIO(data)).row_group(0)
    for k in range(group.num_columns):
        chunk = group.column(k)
        start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
        pages = walk_pages(memoryview(data), start, start + chunk.total_compressed_size, chunk.num_values)
        assert pages.values == chunk.num_values
        assert 0 < pages.unpacked <= chunk.total_uncompressed_size
    rng = np.random.default_rng(0)
    for _ in range(2000):
        raw = bytearray(data[start : start + 200])
        for at in rng.integers(0, 60, 2).tolist():
            raw[at] = int(rng.integers(256))
        with contextlib.suppress(SampleError):
            walk_pages(memoryview(bytes(raw)), 0, len(raw), 1 << 40)


# -- whole jobs -------------------------------------------------------------------------------------------------------

SPEC = """\
version: 1
name: small
pipeline: {{batch_size: 7, num_threads: 2, device: cpu, seed: 5}}
graph:
  - {{op: readers.parquet, name: Reader, path: "{data}", columns: [image, label, numbers], key: text, nulls: empty,
     shuffle: {shuffle}, cache_size: 20000, out: [images, labels, numbers]}}
outputs: {{image: images, label: labels, numbers: numbers}}
write: {{writer: tfrecord, path: "{out}", shard: {{samples: 10}}, key: key,
         fields: {{image: {{encode: keep}}, label: {{}}, numbers: {{}}}}}}
"""


@pytest.mark.parametrize("shuffle", ["none", "window", "full"])
def test_jobs_in_parts_and_resumed_write_the_same(tmp_path: Path, shuffle: str) -> None:
    data = write(tmp_path, table())

    def job(out: str, **more: Any) -> Any:
        (tmp_path / "spec.yaml").write_text(SPEC.format(data=data, shuffle=shuffle, out=tmp_path / out))
        return run_job(tmp_path / "spec.yaml", **more)

    def shards(out: str) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in (tmp_path / out).glob("*.tfrecord")}

    def stop(progress: Any) -> None:
        if progress.done >= 40:
            raise KeyboardInterrupt

    assert job("whole").exit_code == 0
    assert len(shards("whole")) == 11
    for part in range(3):
        assert job("parts", part=(part, 3)).exit_code == 0
    assert shards("parts") == shards("whole")
    assert job("stopped", progress=stop).exit_code == 130
    assert job("stopped", overrides={"pipeline.batch_size": 3}).report["resumed_from"] >= 30
    assert shards("stopped") == shards("whole")


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False, "data_page_version": "2.0"}])
def test_values_are_in_memory_of_their_own(tmp_path: Path, options: dict[str, Any]) -> None:
    """Delivered data stays as it is when the file is cut short afterwards, so that shards need not look again."""
    path = write(tmp_path, table(), compression="none", store_schema=True, **options)

    @pipeline_def(batch_size=10, num_threads=1)
    def pipe() -> Any:
        return tuple(fn.readers.parquet(path=path, columns=list(COLUMNS), nulls="empty"))

    outputs = pipe().run()
    before = [[x.tolist() for x in o.batch] for o in outputs]
    for file in tmp_path.glob("*.parquet"):
        os.truncate(file, 0)
    assert [[x.tolist() for x in o.batch] for o in outputs] == before
    assert not any(extents.cut_short(o.batch.data.ctypes.data, o.batch.offsets) for o in outputs)


def test_a_file_that_is_cut_short_while_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages read as zeros, which are lengths of empty values: no sample of it is handed on."""
    values = [bytes([1 + i]) * 3000 for i in range(N)]
    options = {"use_dictionary": False, "write_statistics": False, "row_group_size": N, "data_page_size": 1 << 20}
    path = write(tmp_path, pa.table({"blob": pa.array(values)}), compression="none", **options)
    opened = parquet_blocks.Blocks._open
    calls = []

    def open_and_cut(self: parquet_blocks.Blocks, group: int) -> Any:
        made = opened(self, group)
        if not calls:  # of the first file, before anything of it is decoded
            os.truncate(tmp_path / "0.parquet", 5000)
        calls.append(group)
        return made

    monkeypatch.setattr(bus_errors._watched, "lost", set())  # and not for other tests
    monkeypatch.setattr(parquet_blocks.Blocks, "_open", open_and_cut)

    @pipeline_def(batch_size=N, num_threads=1, on_error="skip")
    def pipe() -> Any:
        return fn.readers.parquet(path=path, columns=["blob"])

    assert [x.tobytes() for x in pipe().run()[0].batch] == values[40:]
