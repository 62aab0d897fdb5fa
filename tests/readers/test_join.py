"""`join` of readers: rows of tables in every format, found by the samples' keys; bad and missing rows, twins."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import BatchedOrigins, Samples
from dali_run.ops.errors import JobError, SpecError
from dali_run.ops.storage.inventory import compare
from dali_run.pipelines.job.run import run_job
from dali_run.readers.file import File
from dali_run.readers.join.argument import Join
from dali_run.readers.join.table import Table
from dali_run.readers.listing import Listing
from dali_run.readers.lmdb import LMDB
from dali_run.readers.streaming.mds import Mds
from dali_run.readers.tfrecord import TFRecord
from dali_run.readers.webdataset import WebDataset
from dali_run.writers.shards.left_out import left_out_rows
from tests.kit.readers import content, fetch, open_reader
from tests.kit.writers import JOBS

ROWS = {
    "a/1.jpg": ('quotes "here", and\na line', 3),
    "a/2.jpg": ("é – 😀", -4),
    "b/3.jpg": ("", 7),
    "b/4.jpg": ("tab\tand \\ backslash", 0),
}
HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None


def write_csv(path: Path, rows: Any = ROWS, delimiter: str = ",") -> None:
    with open(path, "w", newline="") as file:
        out = csv.writer(file, delimiter=delimiter)
        out.writerow(["label", "file", "caption"])
        out.writerows([label, key, text] for key, (text, label) in rows.items())


def records() -> list[dict[str, Any]]:
    return [{"skip": {"file": ["x", "}"]}, "file": k, "en": {"text": t}, "label": n} for k, (t, n) in ROWS.items()]


def tables(folder: Path) -> dict[str, dict[str, Any]]:
    """One table in every format, and how each is joined."""
    write_csv(folder / "t.csv")
    write_csv(folder / "t.tsv", delimiter="\t")
    (folder / "p.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + (folder / "t.csv").read_bytes()))
    (folder / "n.csv").write_bytes((folder / "t.csv").read_bytes().partition(b"\n")[2])
    (folder / "t.jsonl").write_text("\n\n".join(json.dumps(r) for r in records()))
    (folder / "u.jsonl").write_text("".join(json.dumps(r, ensure_ascii=False) + "\r\n" for r in records()))
    (folder / "t.json").write_text(json.dumps({"x": [], "rows": records()}, indent=2))
    (folder / "m.json").write_text(json.dumps({r["file"]: {**r, "file": 0} for r in records()}))
    columns = {"key": "file", "fields": {"caption": "text", "label": "int"}}
    paths = {"key": "$.file", "fields": {"$.en.text": "text", "label": "int"}}
    found = {name: {"file": str(folder / name), **columns} for name in ("t.csv", "t.tsv", "p.csv.gz", "n.csv")}
    found["n.csv"]["columns"] = ["label", "file", "caption"]
    found |= {name: {"file": str(folder / name), **paths} for name in ("t.jsonl", "u.jsonl", "t.json", "m.json")}
    found["t.json"]["rows"] = "$.rows"
    del found["m.json"]["key"]
    if HAS_PYARROW:
        import pyarrow as pa
        import pyarrow.parquet as pq

        names, values = list(ROWS), list(ROWS.values())
        table = pa.table({"file": names, "caption": [t for t, _ in values], "label": [n for _, n in values]})
        pq.write_table(table, folder / "t.parquet", row_group_size=2)
        found["t.parquet"] = {"file": str(folder / "t.parquet"), **columns}
    return found


def pictures(folder: Path, names: Any = ROWS) -> Path:
    for name in names:
        (folder / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / "in" / name).exists():
            (folder / "in" / name).write_bytes(name.encode())
    return folder / "in"


def archive(path: Path, names: Any) -> str:
    with tarfile.open(path, "w") as out:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            out.addfile(member, BytesIO(name.encode()))
    return str(path)


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    root = str(pictures(tmp_path))
    tar = archive(tmp_path / "x.tar", ROWS)
    for name, join in tables(tmp_path).items():
        by_stem = WebDataset(paths=tar, ext=("jpg",), join={**join, "match": "stem"})
        for reader in (File(file_root=root, join=join), by_stem):
            source = open_reader(reader)
            batches, rejects = fetch(reader, source, [2, 0, 3, 1, 0])
            assert not rejects, (name, rejects)
            keys = [b.decode() for b in content(batches[0])]
            assert keys == [list(ROWS)[i] for i in (2, 0, 3, 1, 0)]
            assert [b.decode() for b in content(batches[-2])] == [ROWS[k][0] for k in keys], name
            assert batches[-1].dense().ravel().tolist() == [ROWS[k][1] for k in keys]
            assert reader.infer()[-2:] == (reader.infer()[0], reader.infer()[-1])


READERS: dict[str, Any] = {
    "tfrecord_bytes": lambda root: (TFRecord, {"path": f"{root}/*.tfrecord", "features": {"label": "int64"},
                                               "key": "key"}),
    "lmdb_keys": lambda root: (LMDB, {"path": f"{root}/*.lmdb", "schema": "example", "features": {"label": "int64"}}),
    "mds": lambda root: (Mds, {"path": str(root), "columns": ("label",), "key": "key"}),
    "files": lambda root: (Listing, {"path": f"{root}/train-*.jsonl",
                                     "fields": {"image": "bytes", "label": "int", "tensor": "bytes"}}),
}  # fmt: skip


@pytest.mark.parametrize("job", READERS)
def test_readers_of_containers_join_by_their_own_keys(
    tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TFRecord by a feature, LMDB by its keys, MDS by a column, a listing by its line."""
    JOBS[job].run(tmp_path / "out")
    cls, arguments = READERS[job](tmp_path / "out")
    plain = open_reader(cls(**arguments))
    keys = [plain.origin(i).key for i in range(len(plain))]
    write_csv(tmp_path / "t.csv", {k: (f"text {k}", i) for i, k in enumerate(keys)})
    join = {"file": str(tmp_path / "t.csv"), "key": "file", "fields": ["caption"], "duplicates": "first"}
    reader = cls(**arguments, join=join)
    batches, rejects = fetch(reader, open_reader(reader), range(len(keys)))
    assert not rejects
    assert [c.decode() for c in content(batches[-1])] == [f"text {k}" for k in keys]
    source, index = open_reader(reader), np.random.default_rng(0).permutation(len(keys))
    each = [plain.origin(int(i)) for i in index]
    monkeypatch.setattr(Samples, "origin", None)  # lines of left_out.jsonl come from one call for all samples
    lines = left_out_rows(Samples.of_epoch_0(index.astype(np.int32), index * 0, index, source), "keep", "x", {}).lines
    told = [json.loads(line) for line in lines]
    assert isinstance(source, BatchedOrigins)
    assert [t["key"] for t in told] == [keys[i] for i in index]
    assert [(t["source"], t["record"], t["offset"]) for t in told] == [(o.source, o.record, o.offset) for o in each]


def joined(folder: Path, text: str, name: str = "t.csv", names: Any = ROWS, **options: Any) -> tuple[Any, Any]:
    (folder / name).write_text(text, newline="")
    join = {"file": str(folder / name), "key": "file", "fields": ["caption"], **options}
    reader = File(file_root=str(pictures(folder, names)), join=join)
    return reader, open_reader(reader)


def test_keys_that_are_missing(tmp_path: Path) -> None:
    text = "file,caption\na/2.jpg,two\nb/4.jpg,four\nz,last"
    reader, source = joined(tmp_path, text)
    (_, _, captions), rejects = fetch(reader, source, range(4))
    assert [(r.slot, r.code) for r in rejects] == [(0, "missing_feature"), (2, "missing_feature")]
    assert "t.csv has no row for 'a/1.jpg'" in rejects[0].message
    reader, source = joined(tmp_path, text, missing="empty")
    (_, _, captions), rejects = fetch(reader, source, range(4))
    assert (content(captions), rejects) == ([b"", b"two", b"", b"four"], [])
    reader, source = joined(tmp_path, text, missing="leave_out")
    assert len(source) == 2
    (files, labels, captions), rejects = fetch(reader, source, range(2))
    assert (content(captions), content(files), rejects) == ([b"two", b"four"], [b"a/2.jpg", b"b/4.jpg"], [])
    assert labels.dense().ravel().tolist() == [0, 1]
    assert [source.origin(i).key for i in range(2)] == ["a/2.jpg", "b/4.jpg"]
    entries = source.inventory()
    assert entries.names == [*(k.encode() for k in ROWS), b"join:t.csv"]
    assert entries.records.tolist() == [0, 1, 0, 1, 0]
    before = source.fingerprint()
    _, edited = joined(tmp_path, text + "!", missing="leave_out")
    assert edited.fingerprint() != before
    assert "1 edited: join:t.csv" in str(compare(entries, edited.inventory()).lines(edited.inventory()))


def test_groups_of_containers_without_what_is_left_out(tmp_path: Path) -> None:
    paths = tuple(archive(tmp_path / f"{k}.tar", [f"{k}{i}.jpg" for i in range(3)]) for k in "abc")
    (tmp_path / "t.csv").write_text("file,caption\na1,x\nc0,y\nc2,z\n")
    join = {"file": str(tmp_path / "t.csv"), "key": "file", "fields": ["caption"], "missing": "leave_out"}
    reader = WebDataset(paths=paths, ext=("jpg",), join=join)
    source = open_reader(reader)
    assert source.groups is not None
    assert source.groups.tolist() == [1, 0, 2]
    assert content(fetch(reader, source, [0, 1, 2])[0][1]) == [b"x", b"y", b"z"]


@pytest.mark.parametrize(("text", "options", "says"), [
    ("file,caption\na/1.jpg,x\nb,y,z\n", {}, "t.csv:3: has another number of fields than there are columns"),
    ("file,caption\na/1.jpg,\"x\ny\n", {}, "t.csv:2: a quoted field does not end"),
    ("file,caption\na/1.jpg,\"x\"y\n", {}, "t.csv:2: text follows the closing quote"),
    ("file,caption\na/1.jpg,x\n\n\"b\n\",y\na/1.jpg,z\n", {}, "t.csv:2 and"),
    ("file,caption\n,x\n", {}, "t.csv:2: has no key"),
    ("file,caption\n", {}, "the table has no rows"),
    ("file,text\na,x\n", {}, "has no column 'caption'; its columns: file, text"),
    ("file,caption,caption\na,x,y\n", {}, "several columns 'caption'"),
    ("file,caption\nx/1,x\n", {}, "has rows for none of the first 4 samples, whose keys are 'a/1.jpg'"),
    ("file,caption\n1,x\n", {}, "join: match: stem compares them without folders and suffixes"),
    ("file,caption\nz/1.jpg,x\n", {}, "join: match: name compares them without folders"),
    ('{"file": "a/1.jpg"}\n{"file": "b", [}\n', {"name": "t.jsonl"}, "t.jsonl:2: is not JSON, or not an object"),
    ('{"file": "a/1.jpg"}\n{"x": 1}\n', {"name": "t.jsonl"}, "t.jsonl:2: has no key"),
    ('[{"file": "a/1.jpg"},\n{"file": ', {"name": "t.json"}, "t.json:2: is not JSON"),
    ('{"rows": 3}', {"name": "t.json", "rows": "$.rows"}, "needs an array or an object of rows at $.rows"),
    ('{"rows": 3}', {"name": "t.json", "rows": "$.row"}, "has no value at $.row"),
])  # fmt: skip
def test_bad_tables_are_refused(tmp_path: Path, text: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises((JobError, SpecError)) as found:
        joined(tmp_path, text, **options)
    assert says in str(found.value)


def test_malformed_rows_can_be_skipped_and_twins_chosen(tmp_path: Path) -> None:
    rows = 'file,caption\na/1.jpg,one\nb,y,z\na/2.jpg,"two"x\na/1.jpg,other\n'
    for duplicates, caption in (("first", b"one"), ("last", b"other")):
        reader, source = joined(tmp_path, rows, malformed="skip", duplicates=duplicates)
        (_, _, captions), rejects = fetch(reader, source, [0, 1])
        assert content(captions)[0] == caption
        assert [r.slot for r in rejects] == [1]
        assert "(2 malformed rows were skipped, the first: " in rejects[0].message
        assert "t.csv:3: has another number of fields" in rejects[0].message


def test_values_that_are_no_text_and_no_number_cost_their_samples(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"file,a,b\na/1.jpg,\xff,1.5\na/2.jpg,x,-2e3\nb/3.jpg,y,no\nb/4.jpg,z,\n")
    join = {"file": str(tmp_path / "t.csv"), "key": "file", "fields": {"a": "text", "b": "float"}}
    reader = File(file_root=str(pictures(tmp_path)), join=join)
    batches, rejects = fetch(reader, open_reader(reader), range(4))
    assert [(r.slot, r.code) for r in rejects] == [(0, "corrupt_data"), (2, "corrupt_data"), (3, "corrupt_data")]
    assert "'b' of the joined table is 'no', which is not a number" in rejects[1].message
    assert batches[3].dense().ravel().tolist()[:2] == [1.5, -2000]


def test_rows_of_json_without_a_value_cost_their_samples(tmp_path: Path) -> None:
    rows = ('"a/1.jpg", "caption": null', '"a/2.jpg"', '"b/3.jpg", x', '"b/4.jpg", "caption": [1]')
    lines = "\n".join(f'{{"file": {row}}}' for row in rows)
    reader, source = joined(tmp_path, lines, name="t.jsonl")
    (_, _, captions), rejects = fetch(reader, source, range(4))
    assert [(r.slot, r.code) for r in rejects] == [(0, "missing_feature"), (1, "missing_feature"), (2, "corrupt_data")]
    assert "t.jsonl:2: has no value 'caption'" in rejects[1].message
    assert content(captions)[3] == b"[1]"
    reader, source = joined(tmp_path, lines, name="t.jsonl", missing="empty")
    assert [r.slot for r in fetch(reader, source, range(4))[1]] == [2]


@pytest.mark.parametrize("name", ["keep.txt", "keep.csv", "keep.jsonl", "keep.parquet"])
def test_a_list_of_keys_selects_samples(name: str, tmp_path: Path) -> None:
    """It adds no output. Keys may contain what a table would take for delimiters, quotes or headers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    keys = ["a/2.jpg", 'b/x, "y"\t.jpg', "key", "elsewhere"]
    if name == "keep.txt":
        (tmp_path / name).write_text("".join(f"{k}\n" for k in keys))
    elif name == "keep.jsonl":
        (tmp_path / name).write_text("".join(json.dumps({"key": k}) + "\n" for k in keys))
    elif name == "keep.csv":
        (tmp_path / name).write_text('key\na/2.jpg\n"b/x, ""y""\t.jpg"\nkey\n')
    else:
        pq.write_table(pa.table({"key": keys}), tmp_path / name)
    pictures(tmp_path, ["a/1.jpg", "a/2.jpg", 'b/x, "y"\t.jpg', "b/z.jpg"])
    join = {"file": str(tmp_path / name), "missing": "leave_out", **({} if name == "keep.txt" else {"key": "key"})}
    reader = File(file_root=str(tmp_path / "in"), join=join)
    reader.check()
    assert reader.num_outputs == len(reader.infer()) == 2
    source = open_reader(reader)
    assert source.keys(np.arange(len(source))) == [k.encode() for k in keys[:2]]
    outputs, rejects = fetch(reader, source, range(2))
    assert (len(outputs), rejects) == (2, [])


@pytest.mark.parametrize(("join", "says"), [
    ({"file": "x.csv", "key": "k"}, "join needs fields: columns, or paths in JSON; without fields it can only leave"),
    ({"fields": ["a"]}, "join needs file"),
    ({"file": "x.csv", "fields": ["a"]}, "join needs key: the column of"),
    ({"file": "x.jpg", "key": "k", "fields": ["a"]}, "has no suffix that tells its format; give format: csv"),
    ({"file": "x.csv", "key": "k", "fields": ["a"], "mising": "empty"}, "has no 'mising'; did you mean missing?"),
    ({"file": "x.csv", "key": "k", "fields": {"a": "txt"}}, "field 'a' must be text, int, float, got 'txt'"),
    ({"file": "x.csv", "key": "k", "fields": ["a"], "match": "nam"}, "match must be path, name, stem, got 'nam'"),
    ({"file": "x.json", "key": "$.", "fields": ["a"]}, "'$.' is not a path"),
])  # fmt: skip
def test_declarations_are_checked(join: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as found:
        File(file_root="x", join=join).check()
    assert says in str(found.value)


def test_an_index_of_a_large_table_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dali_run.readers.fetch.index_cache.WORTHWHILE", 1)
    write_csv(tmp_path / "t.csv", {f"k{i}": (f"text {i}", i) for i in range(5000)})
    join = Join.of({"file": str(tmp_path / "t.csv"), "key": "file", "fields": ["caption"]})
    first = Table(join)
    assert list(tmp_path.glob(".t.csv.join-*-index"))
    monkeypatch.setattr(Table, "_walk", None)
    second = Table(join)
    keys = [f"k{i}".encode() for i in (0, 4999, 17, 5000)]
    assert second.find(keys).tolist() == first.find(keys).tolist()
    assert (second.find(keys) >= 0).tolist() == [True, True, True, False]


SPEC = """
version: 1
name: x
graph:
  - {op: readers.file, name: Reader, file_root: ROOT/in, shuffle: full,
     join: {file: ROOT/t.csv, key: file, match: name, fields: [caption]}, out: [jpegs, labels, captions]}
outputs: {jpg: jpegs, txt: captions}
write: {writer: webdataset, path: OUT, shard: {samples: 7}, fields: {jpg: {encode: keep}, txt: {encode: keep}}}
"""


def test_a_table_that_is_cut_while_it_is_read_ends_the_job(tmp_path: Path) -> None:
    reader, source = joined(tmp_path, "file,caption\na/1.jpg,one\na/2.jpg,two\n", missing="empty")
    (tmp_path / "t.csv").write_text("file,caption\n")
    with pytest.raises(JobError, match=r"t\.csv: the table was cut"):
        fetch(reader, source, [0, 1])
    (tmp_path / "t.csv").unlink()  # the mapping keeps the bytes of a removed file
    assert len(fetch(reader, source, [])[0][0]) == 0


def test_a_kept_index_does_not_hide_duplicate_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dali_run.readers.fetch.index_cache.WORTHWHILE", 1)
    (tmp_path / "t.csv").write_text("file,caption\na,1\nb,2\na,3\n")
    join = {"file": str(tmp_path / "t.csv"), "key": "file", "fields": ["caption"]}
    Table(Join.of({**join, "duplicates": "first"}))
    assert list(tmp_path.glob(".t.csv.join-*-index"))
    with pytest.raises(JobError, match=r"t\.csv"):
        Table(Join.of({**join, "duplicates": "error"}))


def test_a_job_is_the_same_in_one_piece_and_in_parts(tmp_path: Path) -> None:
    names = {f"{k}.jpg": (f"caption {k}", k) for k in range(40)}
    write_csv(tmp_path / "t.csv", names)
    pictures(tmp_path, [f"x/{n}" for n in names])
    outputs = []
    for workers in ("", "--on processes:2"):
        out = tmp_path / f"out{len(outputs)}"
        text = SPEC.replace("ROOT", str(tmp_path)).replace("OUT", str(out))
        (tmp_path / "s.yaml").write_text(text)
        if workers:
            command = [sys.executable, "-m", "dali_run", "run", str(tmp_path / "s.yaml"), *workers.split()]
            subprocess.run(command, check=True, capture_output=True)
        else:
            run_job(tmp_path / "s.yaml")
        found = {}
        for shard in sorted(out.glob("*.tar")):
            with tarfile.open(shard) as tar:
                found |= {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
        outputs.append(found)
    assert outputs[0] == outputs[1]
    assert outputs[0]["x/3.txt"] == b"caption 3"
    assert len(outputs[0]) == 80


def test_flipped_bytes_of_tables_never_end_the_process(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    outcomes = set()
    for name, join in tables(tmp_path).items():
        if name.endswith(("gz", "parquet")):
            continue
        kept = (tmp_path / name).read_bytes()
        for _ in range(40):
            data = bytearray(kept)
            for _ in range(int(rng.integers(1, 4))):
                data[int(rng.integers(len(data)))] = int(rng.choice([*rng.integers(0, 256, 4), *b'"\\\n,{}[]:\r\xff']))
            (tmp_path / name).write_bytes(data[: int(rng.integers(len(data) // 2, len(data) + 1))])
            reader = File(file_root=str(pictures(tmp_path)), join={**join, "malformed": "skip", "duplicates": "last"})
            try:
                _, rejects = fetch(reader, open_reader(reader), range(4))
                outcomes.add("rejects" if rejects else "values")
            except (JobError, SpecError):
                outcomes.add("refused")
    assert outcomes == {"rejects", "values", "refused"}


@pytest.mark.parametrize("duplicates", ["first", "last"])
def test_a_key_of_many_rows_is_read_once_for_each_sample(tmp_path: Path, duplicates: str) -> None:
    """If each sample read all rows with its key, or with a key beside it, this would take hours."""
    n = 200_000
    (tmp_path / "t.csv").write_text("file,caption\nother,0\n" + "".join(f"same,{i}\n" for i in range(n)))
    join = {"file": str(tmp_path / "t.csv"), "key": "file", "fields": ["caption"], "duplicates": duplicates}
    table = Table(Join.of(join))
    rows = table.find([b"same", b"other", b"none"] * n)
    assert table.place(int(rows[0])).endswith(":3" if duplicates == "first" else f":{n + 2}")
    assert (rows.reshape(n, 3) == rows[:3]).all()
    assert table.place(int(rows[1])).endswith(":2")
    assert rows[2] == -1
