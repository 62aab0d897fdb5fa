"""Conversions between all containers: every payload arrives to the byte, with its key and label."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import json
import os
import shutil
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from dali_run.cli import main as cli
from dali_run.ops.errors import DaliRunError, JobError, SpecError
from dali_run.pipelines.fleet.run import run as run_by_many
from dali_run.pipelines.job.convert import ConvertOptions, conversion, convert, is_conversion
from dali_run.pipelines.job.data_layout import MAX_EXAMINED_BYTES, find_data, first_records, look
from dali_run.pipelines.job.retry import retry_failed
from dali_run.pipelines.job.run import FAILED, run_job
from dali_run.pipelines.show.terminal import report_view
from dali_run.pipelines.tools.datasets import Record, inspect_data, open_data, read_through
from dali_run.readers.fetch import bus_errors
from dali_run.writers.shards.output import Output
from dali_run.writers.shards.verify import verify
from tests.kit.writers import HAS_ARRAY_RECORD, HAS_LANCE, HAS_PYARROW

FORMATS = ("tfrecord", "lmdb", "webdataset", "recordio", "files", *["parquet"] * HAS_PYARROW)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of five pictures, and none twice."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for k in range(10):
        folder = root / f"class{k % 2}"
        folder.mkdir(exist_ok=True)
        pixels = rng.integers(0, 256, (40 + k, 60, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"picture.{k}.jpg", quality=60)
    return root


@pytest.fixture(scope="module")
def converted(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("converted")
    for to in FORMATS:
        assert convert(pictures, root / to, ConvertOptions(to, samples=4)).exit_code == 0
    return {to: root / to for to in FORMATS}


def originals(pictures: Path) -> Counter[bytes]:
    return Counter(p.read_bytes() for p in pictures.rglob("*.jpg"))


def payloads(path: Path) -> Counter[bytes]:
    """Everything that looks like a JPEG in an output, read by walking its files."""
    return Counter(data for data, _ in records(path))


def records(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    if any(p.is_file() for p in path.glob("*.rec")):
        from tests.kit.jobs.read_back import read_recordio

        raw = [r for p in sorted(path.glob("*.rec")) for r in read_recordio(p)]
        return [(r[24:], {"label": int(np.frombuffer(r[4:8], "<f4")[0])}) for r in raw]
    if list(path.rglob("*.jpg")):
        return [(p.read_bytes(), {}) for p in sorted(path.rglob("*.jpg"))]
    rows = [r.fields for r in open_data(path).records]
    found = []
    for row in rows:
        (data,) = (v for v in row.values() if isinstance(v, bytes) and v[:3] == b"\xff\xd8\xff")
        found.append((data, {k: v for k, v in row.items() if v is not data}))
    return found


@pytest.mark.parametrize(("source", "to"), list(itertools.product(FORMATS, FORMATS)))
def test_every_pair_keeps_every_byte(
    pictures: Path, converted: dict[str, Path], tmp_path: Path, source: str, to: str
) -> None:  # fmt: skip
    result = convert(converted[source], tmp_path / "out", ConvertOptions(to, samples=3))
    assert result.exit_code == 0, result.message
    assert payloads(tmp_path / "out") == originals(pictures)
    assert verify(tmp_path / "out").sound


def cut_short_late(root: Path, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the files under ``root`` be cut short between the delivery of a batch and its writing; ``left`` bytes stay,
    or all but some where it is negative."""
    add = Output.add

    def late(self: Output, *args: Any) -> None:
        for path in root.rglob("*.*"):
            if path.is_file() and path.suffix != ".json":
                os.truncate(path, left if left >= 0 else max(path.stat().st_size + left, 0))
        add(self, *args)

    monkeypatch.setattr(bus_errors._watched, "lost", set())  # and not for other tests
    monkeypatch.setattr(Output, "add", late)


@pytest.mark.parametrize(("to", "left"), [*((to, 0) for to in FORMATS), ("tfrecord", -50)])
@pytest.mark.parametrize("source", ["tfrecord", "lmdb", "webdataset", "recordio"])
def test_input_that_is_cut_short_before_it_is_written_is_not_published(
    converted: dict[str, Path], tmp_path: Path, source: str, to: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages read as zeros, which the shard's checksums would call sound; the rest of the last one that is still
    there does so without a word."""
    if (source, to) == ("webdataset", "recordio"):
        pytest.skip("both members are bytes")
    shutil.copytree(converted[source], tmp_path / "in")
    cut_short_late(tmp_path / "in", left, monkeypatch)
    result = convert(tmp_path / "in", tmp_path / "out", ConvertOptions(to, samples=3))
    assert result.exit_code == FAILED, result.message
    assert "cut short" in result.message
    assert not list((tmp_path / "out").glob("*0000*"))


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("source", ["files", *["parquet"] * HAS_PYARROW])
def test_input_that_was_copied_may_be_cut_short_before_it_is_written(
    converted: dict[str, Path], pictures: Path, tmp_path: Path, source: str, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are read, and the row groups of Parquet decoded, into memory of our own."""
    shutil.copytree(converted[source], tmp_path / "in")
    cut_short_late(tmp_path / "in", 0, monkeypatch)
    result = convert(tmp_path / "in", tmp_path / "out", ConvertOptions(to, samples=3))
    assert result.exit_code == 0, result.message
    assert payloads(tmp_path / "out") == originals(pictures)


def test_labels_arrive(pictures: Path, converted: dict[str, Path]) -> None:
    by_content = {p.read_bytes(): int(p.parent.name[-1]) for p in pictures.rglob("*.jpg")}
    for to, key in (("tfrecord", "label"), ("lmdb", "label"), ("recordio", "label"), ("webdataset", "cls")):
        for data, rest in records(converted[to]):
            assert int(rest[key]) == by_content[data], to


def test_there_and_back_is_the_same_archive(converted: dict[str, Path], tmp_path: Path) -> None:
    """Keys survive: a tar of an LMDB of a tar is that tar."""
    convert(converted["webdataset"], tmp_path / "lmdb", ConvertOptions("lmdb"))
    convert(tmp_path / "lmdb", tmp_path / "tar", ConvertOptions("webdataset", samples=4))
    again = sorted((tmp_path / "tar").glob("*.tar"))
    first = sorted(converted["webdataset"].glob("*.tar"))

    def names(paths: list[Path]) -> list[str]:
        found: list[str] = []
        for path in paths:
            with tarfile.open(path) as tar:
                found += tar.getnames()
        return found

    assert names(again) == sorted(names(first), key=lambda n: (n.partition(".")[0], n.endswith("cls")))


def contents(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The samples of a data set as a conversion reads them: key, and fields with their types, sorted by key."""
    found = find_data(str(path))
    arguments = {k: v for k, v in found.step.items() if k != "op"}
    rows = read_through("", found.step["op"], arguments, lambda outputs: dict(zip(found.fields, outputs, strict=True)))
    out = []
    for record in rows.records:
        assert not record.problem
        fields: dict[str, Any] = {}
        for name, value in record.fields.items():
            data = value.tobytes()
            if name in found.arrays:
                value = np.load(io.BytesIO(data))
            if name in found.numerals:
                fields[name] = [int(data)]
            elif found.fields[name] == "bytes" and name not in found.arrays:
                fields[name] = data.decode() if name in found.text else data
            else:
                fields[name] = (value.astype(np.int64) if name in found.whole else value).tolist()
        out.append((record.key, fields))
    return sorted(out, key=lambda row: (row[0], str(row[1])))


def chains(formats: Sequence[str]) -> list[tuple[str, str, str]]:
    """Chains of three with every pair of neighbours, and every first and last."""
    n = len(formats)
    return [(formats[i], formats[j], formats[(i + j) % n]) for i in range(n) for j in range(n)]


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples with a field of every type, keys with folders, and a picture of no bytes."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    rng = np.random.default_rng(2)
    stored = []
    for k in range(7):
        out = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (9 + k, 12, 3), np.uint8)).save(out, "png" if k % 2 else "jpeg")
        stored.append(b"" if k == 5 else out.getvalue())
    rows = pa.table({
        "picture": pa.array(stored, pa.binary()),
        "cls": pa.array(range(7), pa.int64()),
        "score": pa.array([k / 8 for k in range(7)], pa.float32()),
        "caption": [f"Bild {k}: größer" for k in range(7)],
        "boxes": pa.array([[k] * (k % 3 + 1) for k in range(7)], pa.list_(pa.int64())),
        "key": [f"folder/sample{k}" for k in range(7)],
    })  # fmt: skip
    path = tmp_path_factory.mktemp("rich")
    pq.write_table(rows, path / "rows.parquet", row_group_size=3)
    return path


@pytest.mark.parametrize("first", FORMATS)
def test_chains_of_conversions_end_in_what_they_began_with(
    pictures: Path, rich: Path, converted: dict[str, Path], tmp_path: Path, first: str
) -> None:
    """Count, keys, fields, types and bytes; RecordIO, which has no keys and no names, says so before, or refuses."""
    for source, formats in ((pictures, FORMATS), (rich, tuple(f for f in FORMATS if f != "recordio"))):
        if first not in formats:
            with pytest.raises(SpecError, match="takes one field of encoded bytes"):
                convert(rich, tmp_path / "refused", ConvertOptions(first, samples=3))
            assert not (tmp_path / "refused").exists()
            continue
        begun = contents(source)
        for n, chain in enumerate(c for c in chains(formats) if c[0] == first):
            at, said = source, list[str]()
            for k, to in enumerate(chain):
                last, at = at, tmp_path / f"{source.name}-{n}-{k}"
                result = convert(last, at, ConvertOptions(to, samples=3), note=said.append)
                assert result.exit_code == 0, (chain, result.message)
            if "recordio" in chain:
                assert any("cannot store the samples' keys" in line for line in said) or chain[0] == "recordio"
                payload = [sorted(str(list(f.values())) for _, f in rows) for rows in (begun, contents(at))]
                assert payload[0] == payload[1], chain
                continue
            stems = [(key.rpartition(".")[0] if source is pictures else key, fields) for key, fields in begun]
            ended = [(key.removesuffix(".jpg").replace("_", "."), f) if source is pictures else (key, f)
                     for key, f in contents(at)]  # fmt: skip
            assert sorted(ended, key=str) == sorted(stems, key=str), chain


@pytest.mark.parametrize("source", [f for f in FORMATS if f != "recordio"])
def test_streaming_formats_keep_everything(rich: Path, tmp_path: Path, source: str) -> None:
    """MDS, litData and Lance between two other formats: keys, fields, types, bytes; `inspect` shows them."""
    convert(rich, tmp_path / "0", ConvertOptions(source, samples=3))
    begun, at = contents(tmp_path / "0"), tmp_path / "0"
    for k, to in enumerate(
        ("mds", "litdata", "lance" if HAS_LANCE else "mds", *["array_record"] * HAS_ARRAY_RECORD, source), 1
    ):
        last, at = at, tmp_path / str(k)
        result = convert(last, at, ConvertOptions(to, samples=3 if k % 2 else None, bytes=None if k % 2 else "900"))
        assert result.exit_code == 0, (to, result.message)
        assert verify(at).sound
        if to != source:
            shown = inspect_data(at, 3)
            assert shown["records"] == 7
            assert len(shown["samples"][0]["fields"]) == len(begun[0][1]) + (
                to == "array_record"
            )  # which shows the key
    assert contents(at) == begun
    for k in (2, 3):  # by their indexes alone
        (tmp_path / f"{k}/manifest.json").unlink()
        (tmp_path / f"{k}/journal.jsonl").unlink()
        assert [key for key, _ in contents(tmp_path / str(k))] == [key for key, _ in begun]


def test_labels_are_numbers_again_behind_a_tar(converted: dict[str, Path], tmp_path: Path) -> None:
    convert(converted["webdataset"], tmp_path / "tfrecord", ConvertOptions("tfrecord"))
    convert(tmp_path / "tfrecord", tmp_path / "lmdb", ConvertOptions("lmdb"))
    convert(converted["webdataset"], tmp_path / "recordio", ConvertOptions("recordio"))
    for to, key in (("tfrecord", "label"), ("recordio", "label")):
        found = [rest[key] for _, rest in records(tmp_path / to)]
        assert sorted({int(v) for v in found}) == sorted({int(r["cls"]) for _, r in records(converted["webdataset"])})
        assert not any(isinstance(v, bytes) for v in found)


def test_the_first_records_only(pictures: Path, tmp_path: Path) -> None:
    convert(pictures, tmp_path / "out", ConvertOptions("tfrecord", limit=3))
    assert len(list(records(tmp_path / "out"))) == 3


def huggingface(path: Path, pictures: Path) -> Any:
    """A table as Hugging Face's datasets write it, with other columns beside."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files = sorted(pictures.rglob("*.jpg"))
    rows = pa.table({
        "image": [{"bytes": p.read_bytes(), "path": p.name} for p in files],
        "caption": [f"Bild {k} größer" for k in range(len(files))],
        "score": pa.array([k / 7 for k in range(len(files))], pa.float64()),
        "boxes": pa.array([[k] * (k % 3 + 1) for k in range(len(files))], pa.list_(pa.int16())),
        "__key__": [f"some/picture{k}" for k in range(len(files))],
    })  # fmt: skip
    path.mkdir()
    pq.write_table(rows, path / "train-00000-of-00001.parquet", row_group_size=3)
    return rows


def test_columns_keep_their_values_types_and_keys(pictures: Path, tmp_path: Path) -> None:
    rows = huggingface(tmp_path / "in", pictures)
    import pyarrow.parquet as pq

    assert convert(tmp_path / "in", tmp_path / "out", ConvertOptions("parquet", samples=4)).exit_code == 0
    again = pq.read_table(sorted((tmp_path / "out").glob("*.parquet")))
    told = {f.name: str(f.type).replace("element: ", "").replace("item: ", "") for f in again.schema}
    wanted = {"image": "binary", "caption": "string", "score": "double", "boxes": "list<int16>"}
    assert told == {"__key__": "string", **wanted}
    for name in ("__key__", "caption", "score", "boxes"):
        assert again[name].to_pylist() == rows[name].to_pylist()
    assert again["image"].to_pylist() == [v["bytes"] for v in rows["image"].to_pylist()]
    assert convert(tmp_path / "in", tmp_path / "tar", ConvertOptions("webdataset")).exit_code == 0
    first = next(open_data(tmp_path / "tar").records)
    assert (first.key, first.fields["txt"].decode()) == ("some/picture0", "Bild 0 größer")
    assert sorted(first.fields) == ["boxes.npy", "jpg", "score.npy", "txt"]
    assert convert(tmp_path / "in", tmp_path / "records", ConvertOptions("tfrecord")).exit_code == 0
    first = next(open_data(tmp_path / "records").records)
    assert (first.fields["__key__"], first.fields["caption"]) == (b"some/picture0", "Bild 0 größer".encode())


def test_fields_that_would_have_one_name_are_refused(pictures: Path, tmp_path: Path) -> None:
    rows = huggingface(tmp_path / "in", pictures)
    import pyarrow.parquet as pq

    (file,) = (tmp_path / "in").glob("*.parquet")
    pq.write_table(rows.append_column("a.b", rows["score"]).append_column("a_b", rows["score"]), file)
    with pytest.raises(SpecError, match=r"fields 'a.b' and 'a_b' would both be 'a_b' in webdataset; .*--columns"):
        conversion(tmp_path / "in", tmp_path / "out", ConvertOptions("webdataset"))


@pytest.mark.parametrize("to", ["tfrecord", "lmdb", "webdataset", "parquet", "files"])
def test_names_that_nothing_takes_are_changed_and_told(to: str, pictures: Path, tmp_path: Path) -> None:
    rows = huggingface(tmp_path / "in", pictures)
    import pyarrow.parquet as pq

    (file,) = (tmp_path / "in").glob("*.parquet")
    odd = rows.select(["image", "score"]).rename_columns(["my image", "größe"])
    pq.write_table(odd.append_column("a/b", rows["score"]).append_column("../c", rows["score"]), file)
    notes: list[str] = []
    result = convert(tmp_path / "in", tmp_path / "out", ConvertOptions(to), note=notes.append)
    assert result.exit_code == 0
    assert payloads(tmp_path / "out") == originals(pictures)
    (said,) = notes
    archive = to in ("webdataset", "files")
    names = {"my image": "my_image", "größe": "gr__e", "../c": "___c"}
    assert all(f"{old!r} as {new!r}" in said for old, new in names.items())
    assert ("'a/b' as 'a_b'" in said) == archive
    pq.write_table(odd.append_column("my_image", rows["score"]), file)
    with pytest.raises(SpecError, match="fields 'my image' and 'my_image' would both be 'my_image'"):
        conversion(tmp_path / "in", tmp_path / "again", ConvertOptions(to))


def test_chosen_columns(pictures: Path, tmp_path: Path) -> None:
    rows = huggingface(tmp_path / "in", pictures)
    import pyarrow as pa
    import pyarrow.parquet as pq

    (file,) = (tmp_path / "in").glob("*.parquet")
    pq.write_table(rows.append_column("price", rows["score"].cast(pa.decimal128(12, 6), safe=False)), file)
    with pytest.raises(SpecError, match=r"column 'price' is of type decimal128.*--columns"):
        conversion(tmp_path / "in", tmp_path / "out", ConvertOptions("recordio"))
    wanted = ConvertOptions("recordio", columns=("image", "score"))
    assert convert(tmp_path / "in", tmp_path / "out", wanted).exit_code == 0
    assert payloads(tmp_path / "out") == originals(pictures)
    with pytest.raises(SpecError, match="did you mean image"):
        conversion(tmp_path / "in", tmp_path / "out", ConvertOptions("recordio", columns=("images",)))
    with pytest.raises(SpecError, match="only from Parquet files"):
        conversion(pictures, tmp_path / "out", ConvertOptions("recordio", columns=("image",)))
    row = next(open_data(tmp_path / "in").records).fields
    assert row["score"] == 0
    assert "decimal128" in row["(column 0)"]


def test_shuffled_over_the_whole_set(pictures: Path, tmp_path: Path) -> None:
    orders = []
    for seed in (1, 1, 2):
        out = tmp_path / str(len(orders))
        convert(pictures, out, ConvertOptions("tfrecord", shuffle=True, seed=seed))
        orders.append([data for data, _ in records(out)])
    assert orders[0] == orders[1] != orders[2]
    assert Counter(orders[2]) == originals(pictures)


def shown(report: Mapping[str, Any]) -> str:
    console = Console(width=300, file=io.StringIO())
    console.print(report_view(report))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_resized_and_encoded_anew(pictures: Path, tmp_path: Path) -> None:
    result = convert(pictures, tmp_path / "out", ConvertOptions("webdataset", resize=20, format="webp", quality=80))
    assert result.exit_code == 0, result.message
    rows = [r.fields for r in open_data(tmp_path / "out").records]
    assert len(rows) == 10
    for row in rows:
        with Image.open(io.BytesIO(row["webp"])) as image:
            assert min(image.size) == 20
            assert image.format == "WEBP"


def test_what_is_as_asked_for_keeps_its_bytes(pictures: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(pictures, source)
    small = source / "class0" / "small.jpg"
    with Image.open(sorted(source.rglob("*.jpg"))[0]) as image:
        image.resize((20, 31)).save(small, quality=30)
        image.resize((31, 20)).save(source / "class0" / "other.png")
    (source / "class0" / "broken.jpg").write_bytes(b"no picture")
    count = sum(p.is_file() for p in source.rglob("*"))
    result = convert(source, tmp_path / "resized", ConvertOptions("webdataset", resize=20))
    assert result.exit_code == 3
    assert result.report["samples"] == {"read": count, "written": count - 1, "rejected": 1, "kept": 1}
    assert json.loads((tmp_path / "resized/report.json").read_bytes())["samples"]["kept"] == 1
    assert "1 image copied unchanged (already as requested)" in shown(result.report)
    rows = {r.key: r.fields["jpg"] for r in open_data(tmp_path / "resized").records}
    assert len(rows) == count - 1
    assert rows["class0/small"] == small.read_bytes()
    for data in rows.values():
        with Image.open(io.BytesIO(data)) as image:
            assert (image.format, min(image.size)) == ("JPEG", 20)
    again = convert(tmp_path / "resized", tmp_path / "again", ConvertOptions("webdataset", resize=20, format="jpeg"))
    assert again.report["samples"]["kept"] == count - 1
    assert {r.key: r.fields["jpg"] for r in open_data(tmp_path / "again").records} == rows
    pngs = convert(source, tmp_path / "pngs", ConvertOptions("tfrecord", format="png"))
    assert pngs.report["samples"]["kept"] == 1
    assert "kept" not in convert(source, tmp_path / "kept", ConvertOptions("tfrecord")).report["samples"]
    anew = convert(source, tmp_path / "anew", ConvertOptions("tfrecord", resize=20, quality=30))
    assert anew.report["samples"]["kept"] == 0  # a quality was asked for


@pytest.mark.parametrize("quality", [None, 80])
def test_small_pictures_are_not_enlarged_unless_asked_for(tmp_path: Path, quality: int | None) -> None:
    """Shorter sides below, at and above what is asked for, of the format and of another, upright and turned."""
    source = tmp_path / "in"
    (source / "a").mkdir(parents=True)
    rng = np.random.default_rng(3)
    sides = {"below": (12, 30), "at": (20, 25), "above": (48, 32), "turned": (31, 14)}
    for name, (w, h) in sides.items():
        image = Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8))
        image.save(source / "a" / f"{name}_jpg.jpg", quality=90)
        image.save(source / "a" / f"{name}_png.png")
    result = convert(source, tmp_path / "out", ConvertOptions("webdataset", resize=20, quality=quality))
    assert result.report["samples"]["written"] == 8
    assert result.report["samples"]["kept"] == (3 if quality is None else 0)
    rows = {r.key: r.fields["jpg"] for r in open_data(tmp_path / "out").records}
    for name, size in sides.items():
        for kind in ("jpg", "png"):
            data = rows[f"a/{name}_{kind}"]
            kept = kind == "jpg" and name != "above" and quality is None
            assert (data == (source / "a" / f"{name}_jpg.jpg").read_bytes()) == kept
            with Image.open(io.BytesIO(data)) as image:
                assert image.format == "JPEG"
                assert image.size == ((30, 20) if name == "above" else size)
    result = convert(source, tmp_path / "large", ConvertOptions("webdataset", resize=20, enlarge=True, quality=quality))
    assert result.report["samples"]["kept"] == (1 if quality is None else 0)
    for record in open_data(tmp_path / "large").records:
        with Image.open(io.BytesIO(record.fields["jpg"])) as image:
            assert min(image.size) == 20


def test_the_pictures_are_found_among_other_bytes(pictures: Path, tmp_path: Path) -> None:
    """Texts and names stand before the image in many a data set."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files = sorted(pictures.rglob("*.jpg"))
    rows = pa.table({
        "caption": [p.name for p in files],
        "id": pa.array([p.name.encode() for p in files], pa.binary()),
        "jpeg": pa.array([p.read_bytes() for p in files], pa.binary()),
    })  # fmt: skip
    (tmp_path / "in").mkdir()
    pq.write_table(rows, tmp_path / "in/a.parquet")
    source = tmp_path / "in"
    for to in ("tfrecord", "parquet"):
        assert convert(source, tmp_path / to, ConvertOptions(to, resize=20)).exit_code == 0
        for k, record in enumerate(open_data(tmp_path / to).records):
            assert record.fields["id"] == files[k].name.encode()
            with Image.open(io.BytesIO(record.fields["jpeg"])) as image:
                assert min(image.size) == 20
        source = tmp_path / "tfrecord"


def test_files_that_cannot_be_read_are_not_kept(pictures: Path, tmp_path: Path) -> None:
    assert convert(pictures, tmp_path / "tar", ConvertOptions("tfrecord")).exit_code == 0
    (shard,) = (tmp_path / "tar").glob("*.tfrecord")
    raw = bytearray(shard.read_bytes())
    raw[200] ^= 1
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.tfrecord").write_bytes(raw)
    samples = convert(tmp_path / "in", tmp_path / "out", ConvertOptions("tfrecord", format="jpeg")).report["samples"]
    assert samples == {"read": 10, "written": 9, "rejected": 1, "kept": 9}


def test_rejects_are_tried_again(pictures: Path, tmp_path: Path) -> None:
    """The spec of a conversion is in its report: there is no file of it."""
    source = tmp_path / "in"
    shutil.copytree(pictures, source)
    victim = source / "class0" / "picture.0.jpg"
    good = victim.read_bytes()
    victim.write_bytes(good[:300])
    assert convert(source, tmp_path / "out", ConvertOptions("webdataset", resize=20)).exit_code == 3
    victim.write_bytes(good)
    assert retry_failed(tmp_path / "out").exit_code == 0
    assert verify(tmp_path / "out").sound
    assert verify(tmp_path / "out").samples == 10
    assert "no rejects" in retry_failed(tmp_path / "out").message


def test_a_report_of_somebody_s_executes_nothing(pictures: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(pictures, source)
    (source / "class0/bad.jpg").write_bytes(b"no picture")
    assert convert(source, tmp_path / "out", ConvertOptions("tfrecord", resize=20)).exit_code == 3
    (tmp_path / "plugin.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    report = tmp_path / "out/report.json"
    sound = json.loads(report.read_bytes())
    call = {"op": "python_function", "function": f"{tmp_path}/plugin.py:f", "in": "field0", "out": "field0"}
    for change in (
        {"plugins": [str(tmp_path / "plugin.py")]},
        {"graph": [*sound["command"]["spec"]["graph"], call]},
        {"graph": [{"if": "$kept", "then": [call], "else": []}]},
        {"graph": "x"},
    ):
        spec = {**sound["command"]["spec"], **change}
        report.write_text(json.dumps({**sound, "command": {**sound["command"], "spec": spec}}))
        with pytest.raises(JobError, match="not a conversion"):
            retry_failed(tmp_path / "out")
    assert not (tmp_path / "executed").exists()


def test_damaged_row_groups_are_tried_again(pictures: Path, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    source = tmp_path / "in"
    assert convert(pictures, source, ConvertOptions("parquet", options={"row_group": 3})).exit_code == 0
    (file,) = source.glob("*.parquet")
    for name in ("journal.jsonl", "manifest.json"):
        (source / name).unlink()
    good = file.read_bytes()
    bad = bytearray(good)
    bad[pq.read_metadata(file).row_group(1).column(1).data_page_offset + 500] ^= 1
    file.write_bytes(bad)
    assert convert(source, tmp_path / "out", ConvertOptions("webdataset", samples=4)).exit_code == 3
    rejects = [json.loads(line) for line in (tmp_path / "out/rejects.jsonl").read_text().splitlines()]
    assert [(r["position"], r["record"], r["code"]) for r in rejects] == [(k, k, "corrupt_record") for k in (3, 4, 5)]
    file.write_bytes(good)
    assert retry_failed(tmp_path / "out").exit_code == 0
    assert verify(tmp_path / "out").sound
    assert payloads(tmp_path / "out") == originals(pictures)
    (source / "other.parquet").write_bytes(good[:-100])  # no footer
    assert convert(source, tmp_path / "more", ConvertOptions("webdataset")).exit_code == 3
    (source / "other.parquet").write_bytes(good)
    with pytest.raises(JobError, match=r"other\.parquet has another number of records"):
        retry_failed(tmp_path / "more")


def test_a_bad_picture_costs_a_line_only_when_it_is_decoded(pictures: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(pictures, source)
    victim = source / "class0" / "picture.0.jpg"
    victim.write_bytes(victim.read_bytes()[:300])
    assert convert(source, tmp_path / "kept", ConvertOptions("tfrecord")).exit_code == 0
    assert payloads(tmp_path / "kept") == originals(source)
    result = convert(source, tmp_path / "resized", ConvertOptions("tfrecord", resize=20))
    assert result.exit_code == 3
    assert (tmp_path / "resized/rejects.jsonl").read_text().count("picture.0.jpg") >= 1


def test_fields_get_names_that_fit(tmp_path: Path, converted: dict[str, Path]) -> None:
    spec = conversion(converted["tfrecord"], tmp_path, ConvertOptions("files"))
    assert spec["graph"][0]["features"] == {"image": "string", "label": {"dtype": "int64", "var_len": True}}
    spec = conversion(converted["webdataset"], tmp_path, ConvertOptions("webdataset"))
    members = {"image": "jpg", "label": "cls"}
    assert spec["write"]["fields"] == {f: {"encode": "keep", "extension": e} for f, e in members.items()}


@pytest.mark.parametrize(("make", "words"), [
    (lambda p: (p / "class0/deep").mkdir(), "class0/deep is a folder in a folder"),
    (lambda p: (p / "other.JPG").write_bytes(b"x") and None, r"holds images \(other.JPG\) next to folders"),
    (lambda p: unfinished(p), r"not finished \(journal.jsonl\); finish it first"),
    (lambda p: mixed(p), "containers of several kinds"),
    (lambda p: torn(p), r"data-00001-of-00003\.tar is missing, though the manifest lists it"),
])  # fmt: skip
def test_what_would_be_left_out_is_refused(tmp_path: Path, make: Any, words: str, pictures: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(pictures, source)
    with pytest.raises(SpecError, match=words):
        convert(make(source) or source, tmp_path / "out", ConvertOptions("tfrecord"))
    assert not (tmp_path / "out").exists()


def unfinished(source: Path) -> Path:
    out = source.parent / "shards"
    convert(source, out, ConvertOptions("webdataset", samples=4))
    (out / "manifest.json").unlink()
    lines = (out / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (out / "journal.jsonl").write_bytes(b"".join(lines[:-2]))
    return out


def test_a_manifest_of_somebody_else_is_none_of_ours(pictures: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(pictures, source)
    for text in ('{"audio_filepath": "a.wav"}\n{"audio_filepath": "b.wav"}\n', "[1]", "no JSON", '{"shards": []}'):
        (source / "manifest.json").write_text(text)
        assert look(source).step["op"] == "readers.file"
    convert(pictures, tmp_path / "out", ConvertOptions("files"))
    (tmp_path / "out" / "manifest.json").write_text("{")
    with pytest.raises(SpecError, match=r"manifest\.json: is not a manifest of dali-run"):
        look(tmp_path / "out")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all values in JSON; of a list, only the first."""
    for key in value if isinstance(value, dict) else range(min(len(value), 1)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(value[key], (*path, key))


def test_a_manifest_that_lacks_an_entry_is_an_error_of_the_data_set(
    tmp_path: Path, converted: dict[str, Path]
) -> None:  # fmt: skip
    for kind, place in converted.items():
        whole = (place / "manifest.json").read_text()
        shutil.copytree(place, tmp_path / kind)
        fine = 0
        for path in places(json.loads(whole)):
            for wrong in ("gone", None, 3, [[]], {"a": "b"}):
                manifest = holder = json.loads(whole)
                for key in path[:-1]:
                    holder = holder[key]
                if wrong == "gone":
                    del holder[path[-1]]
                else:
                    holder[path[-1]] = wrong
                (tmp_path / kind / "manifest.json").write_text(json.dumps(manifest))
                with contextlib.suppress(DaliRunError):
                    look(tmp_path / kind)
                    fine += 1
        assert fine > 20


def torn(source: Path) -> Path:
    out = source.parent / "shards"
    convert(source, out, ConvertOptions("webdataset", samples=4))
    (out / "data-00001-of-00003.tar").unlink()
    return out


def mixed(source: Path) -> Path:
    out = source.parent / "shards"
    convert(source, out, ConvertOptions("webdataset"))
    convert(source, source.parent / "more", ConvertOptions("tfrecord"))
    shutil.copy(source.parent / "more/data-00000-of-00001.tfrecord", out)
    return out


@pytest.mark.parametrize("inside", ["", "out", "class0/out"])
def test_the_output_is_no_part_of_the_source(pictures: Path, tmp_path: Path, inside: str) -> None:
    source = tmp_path / "in"
    shutil.copytree(pictures, source)
    with pytest.raises(SpecError, match="the output would be read the next time"):
        convert(source, source / inside, ConvertOptions("tfrecord"))
    (tmp_path / "link").symlink_to(source)
    with pytest.raises(SpecError, match="the output would be read the next time"):
        convert(source, tmp_path / "link" / inside, ConvertOptions("tfrecord"))
    assert {p.name for p in source.iterdir()} == {"class0", "class1"}


def test_files_of_any_kind(tmp_path: Path) -> None:
    content = {"a/x.txt": b"text", "a/y.gif": b"GIF89a", "a/noextension": b"\0", "b/x.json": b"{}", "b/.hidden": b"h"}
    for name, data in content.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    assert convert(tmp_path / "in", tmp_path / "out", ConvertOptions("tfrecord")).exit_code == 0
    rows = [(r.fields["image"], r.fields["label"]) for r in open_data(tmp_path / "out").records]
    assert rows == [(b"\0", 0), (b"text", 0), (b"GIF89a", 0), (b"{}", 1)]


def test_flat_outputs_of_ours_are_their_files(pictures: Path, tmp_path: Path) -> None:
    """Neither the manifest nor the list of inputs is a sample; what is called .json may be one."""
    flat = tmp_path / "flat"
    flat.mkdir()
    for k in range(3):
        (flat / f"{k}.json").write_bytes(b"[%d]" % k)
    wanted = ConvertOptions("files", options={"key": "position"})
    assert convert(flat, tmp_path / "a", wanted).exit_code == 0
    assert convert(tmp_path / "a", tmp_path / "b", ConvertOptions("tfrecord")).exit_code == 0
    assert [r.fields["image"] for r in open_data(tmp_path / "b").records] == [b"[0]", b"[1]", b"[2]"]


def test_wrong_options_are_named_without_the_spec_that_nobody_wrote(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^step 3 \(encoders.image\): argument 'quality': must be at least 1, got 0$"):
        convert(pictures, tmp_path / "out", ConvertOptions("tfrecord", quality=0))
    with pytest.raises(SpecError, match=r"^write: writer tfrecord has no option 'indx'; did you mean index"):
        convert(pictures, tmp_path / "out", ConvertOptions("tfrecord", options={"indx": True}))


def test_options_of_the_writer_are_values(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers, switches and lists, as --set takes them; what was done is shown as a table."""
    pq = pytest.importorskip("pyarrow.parquet")
    options = ("row_group=3", "lists=[label]", "compression=zstd", 'key="name"')
    command = ["convert", str(pictures), str(tmp_path / "out"), "--to", "parquet"]
    assert cli.main([*command, *(a for o in options for a in ("--option", o))]) == 0
    shown = capsys.readouterr().out
    assert "10 samples read" in shown
    assert shown.splitlines()[-1].startswith("wrote 10 samples")
    (file,) = (tmp_path / "out").glob("*.parquet")
    meta = pq.read_metadata(file)
    assert [meta.row_group(k).num_rows for k in range(meta.num_row_groups)] == [3, 3, 3, 1]
    assert pq.read_table(file)["label"].to_pylist()[:2] == [[0], [0]]
    assert pq.read_schema(file).names == ["name", "image", "label"]
    assert cli.main([*command, "--option", "row_group=many"]) == 2
    assert "needs an integer, got 'many'" in capsys.readouterr().err


def test_without_pyarrow_the_remedy_is_named(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "pyarrow" else known(n, *a))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.parquet").write_bytes(b"PAR1")
    for source, to in ((tmp_path / "in", "tfrecord"), (pictures, "parquet")):
        with pytest.raises(SpecError, match=r"needs pyarrow: pip install 'dali-run\[parquet\]'"):
            convert(source, tmp_path / "out", ConvertOptions(to))


@pytest.mark.parametrize(("make", "words"), [
    (lambda p: p / "nowhere", "no such file"),
    (lambda p: p, "is empty"),
    (lambda p: (p / "a.zip").write_bytes(b"PK") and p / "a.zip", "not a known container"),
    (lambda p: (p / "a.npy").write_bytes(b"x") and p, "readers.numpy"),
])  # fmt: skip
def test_what_cannot_be_converted_is_said(tmp_path: Path, make: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        conversion(make(tmp_path), tmp_path.parent / "elsewhere", ConvertOptions("tfrecord"))
    with pytest.raises(SpecError, match="no writer 'tfrecords'"):
        conversion(tmp_path, tmp_path.parent / "elsewhere", ConvertOptions("tfrecords"))
    with pytest.raises(SpecError, match=r"^format must be jpeg, png, webp, got 'jpg'; did you mean jpeg"):
        conversion(tmp_path, tmp_path.parent / "elsewhere", ConvertOptions("tfrecord", format="jpg"))
    (tmp_path / "none" / "a").mkdir(parents=True)
    with pytest.raises(JobError, match=r"^file_root .*none has no files <folder>/<file>"):
        convert(tmp_path / "none", tmp_path.parent / "elsewhere", ConvertOptions("tfrecord"))


@pytest.mark.skipif(not HAS_PYARROW, reason="needs pyarrow")
def test_columns_that_differ_are_named_and_the_odd_one_costs_its_rows(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = tmp_path / "in"
    source.mkdir()
    pq.write_table(pa.table({"a": [1], "extra": [2]}), source / "0.parquet")
    pq.write_table(pa.table({"a": [3]}), source / "1.parquet")
    with pytest.raises(SpecError, match=r"0\.parquet has a, extra and .*1\.parquet has a; .*--columns"):
        conversion(source, tmp_path / "out", ConvertOptions("tfrecord"))
    assert conversion(source, tmp_path / "out", ConvertOptions("tfrecord", columns=("a",)))["outputs"] == {
        "a": "field0"
    }
    pq.write_table(pa.table({"b": [4]}), source / "0.parquet")
    pq.write_table(pa.table({"a": [5]}), source / "2.parquet")
    result = convert(source, tmp_path / "out", ConvertOptions("tfrecord"))
    assert result.exit_code == 3
    assert result.report["samples"]["written"] == 2
    assert "0.parquet" in (tmp_path / "out/rejects.jsonl").read_text()


@pytest.mark.parametrize("resize", [None, 30])
def test_several_processes_give_the_files_of_one(pictures: Path, tmp_path: Path, resize: int | None) -> None:
    wanted = ConvertOptions("webdataset", samples=2, shuffle=True, resize=resize)
    one, several = (
        convert(pictures, tmp_path / name, wanted, by=by)
        for name, by in (("one", run_job), ("several", partial(run_by_many, on="processes:2")))
    )
    assert one.exit_code == several.exit_code == 0
    files = {p.name: p.read_bytes() for p in (tmp_path / "one").iterdir() if p.name != "report.json"}
    assert {p.name: p.read_bytes() for p in (tmp_path / "several").iterdir() if p.name != "report.json"} == files
    assert several.report["samples"] == one.report["samples"]
    assert len(several.report["workers"]) == 2
    assert is_conversion(several.report["command"]["spec"])
    assert convert(pictures, tmp_path / "several", wanted).ran is False


def test_a_conversion_is_divided_by_samples_only(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="samples"):
        convert(pictures, tmp_path / "out", ConvertOptions("tfrecord"), by=partial(run_by_many, on="processes:2"))


def test_pictures_on_a_device(pictures: Path, tmp_path: Path) -> None:
    """As for a GPU, without one: the kernels of the CPU, in a GPU's places."""
    wanted = ConvertOptions("webdataset", samples=5, resize=30)
    for device in ("cpu", "null"):
        assert convert(pictures, tmp_path / device, wanted, device=device).exit_code == 0
    files = {p.name: p.read_bytes() for p in (tmp_path / "cpu").glob("*.tar")}
    assert {p.name: p.read_bytes() for p in (tmp_path / "null").glob("*.tar")} == files


@pytest.mark.parametrize("to", FORMATS)
def test_data_sets_without_samples_are_refused(pictures: Path, tmp_path: Path, to: str) -> None:
    """Of every container: with the manifest of the job that wrote it, and without."""
    source = tmp_path / "in"
    shutil.copytree(pictures, source)
    for path in source.rglob("*.jpg"):
        path.write_bytes(b"")
    assert run_job(reencoding(source, tmp_path / "empty", to)).exit_code == 3  # all are rejected
    for keep in (True, False):
        for path in tmp_path.glob("empty/*.json*") if not keep and to != "files" else ():
            path.unlink()
        with pytest.raises((SpecError, JobError), match=r"is empty|holds no samples|no such"):
            convert(tmp_path / "empty", tmp_path / "out", ConvertOptions("tfrecord"))
        assert not (tmp_path / "out").exists()


def reencoding(source: Path, out: Path, to: str) -> Path:
    """A spec that decodes the pictures of ``source``, and writes them as JPEGs with their labels."""
    spec = {
        "version": 1,
        "graph": [
            {"op": "readers.file", "file_root": str(source), "out": ["x", "label"]},
            {"op": "decoders.image", "in": "x", "out": "image"},
        ],
        "outputs": {"image": "image", "label": "label"},
        "write": {"writer": to, "path": str(out), "fields": {"image": {"encode": "jpeg"}, "label": {}}},
    }
    path = out.parent / "spec.json"
    path.write_text(json.dumps(spec))
    return path


def test_few_large_records_are_looked_at() -> None:
    """All that are looked at lie in memory at once, outside of any budget."""
    taken: list[int] = []

    def records() -> Iterator[Record]:
        for i in range(1000):
            taken.append(i)
            yield Record(str(i), "x", i, {"value": bytes(MAX_EXAMINED_BYTES // 2)})

    assert len(first_records(records())) == len(taken) == 2
