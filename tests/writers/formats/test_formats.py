"""Every format read back by the field's own readers, sample for sample."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
import tfrecord
from PIL import Image
from tfrecord import example_pb2
from webdataset.tariterators import group_by_keys, tar_file_expander

from dali_run.ops.base import Spec
from dali_run.ops.batch import Batch, Origin, Samples
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType
from dali_run.writers.base import FieldConfig, find_writer, make_writer, writers
from dali_run.writers.formats.columns import from_values
from dali_run.writers.formats.lmdb import _order
from dali_run.writers.formats.names import make_unique, safe_path, webdataset_key
from dali_run.writers.shards.config import WriteConfig
from dali_run.writers.shards.output import Output
from tests.kit.jobs.read_back import read_lmdb, read_recordio
from tests.kit.writers import (
    JOBS,
    PARQUET,
    Job,
    digest,
    label,
    label_batch,
    payload,
    samples_of,
    tensor,
    tensor_batch,
    walk,
)


def written(name: str, path: Path) -> Job:
    JOBS[name].run(path)
    return JOBS[name]


def shards(path: Path, suffix: str) -> list[Path]:
    return sorted(path.glob(f"*{suffix}"))


@pytest.mark.parametrize("writer", ["tfrecord", "lmdb", "webdataset", "files", PARQUET])
def test_lists_of_any_length_do_not_depend_on_batches(tmp_path: Path, writer: str) -> None:
    """Some samples have one number, some several: what is written for each is its own matter."""
    counts = [1, 1, 2, 1, 0, 3, 1, 1, 1, 1, 5]
    values = {
        "boxes": [np.arange(k, k + n, dtype=np.int32) for k, n in enumerate(counts)],
        "scores": [np.arange(n, dtype=np.float32) for n in reversed(counts)],
        "tensor": [np.full((2, 1 + k), k, np.float32) for k in range(len(counts))],
    }
    options = {"lists": ["boxes", "scores"]} if writer == "parquet" else {}
    found = []
    for size in (1, 2, 11):
        config = WriteConfig(tmp_path / str(size), "x", writer, options, fields=dict.fromkeys(values, FieldConfig()))
        with Output.open(config, {}, total=len(counts)) as out:
            for at in range(0, len(counts), size):
                samples = samples_of(np.arange(at, min(at + size, len(counts))))
                fields = {k: Batch.from_list(v[at : at + size], "", samples) for k, v in values.items()}
                out.add(at, at + len(samples), samples, fields)
            out.finish()
        found.append(digest(tmp_path / str(size)))
    assert found[0] == found[1] == found[2]
    if writer == "files":
        rows = [json.loads(line) for line in (tmp_path / "1/x-00000-of-00001.jsonl").read_text().splitlines()]
        for k, row in enumerate(rows):
            arrays = {f.removeprefix(row["name"] + "."): np.load(tmp_path / "1" / f) for f in row["files"]}
            for name in ("boxes", "scores"):
                array = arrays.get(f"{name}.npy", np.atleast_1d(row.get(f"field:{name}", [])))
                assert array.tolist() == values[name][k].tolist()
            np.testing.assert_array_equal(arrays["npy"], values["tensor"][k])


def test_tfrecord_by_the_tfrecord_package(tmp_path: Path) -> None:
    job = written("tfrecord", tmp_path)
    names = [p.name for p in shards(tmp_path, ".tfrecord")]
    assert names == [f"train-{k:05d}-of-00004.tfrecord" for k in range(4)]
    description = {"image": "byte", "label": "int", "tensor": "byte", "tensor/shape": "int", "tensor/dtype": "byte"}
    rows = []
    for shard in shards(tmp_path, ".tfrecord"):
        index = shard.with_suffix(".idx")
        offsets = [tuple(map(int, line.split())) for line in index.read_text().splitlines()]
        data = shard.read_bytes()
        assert sum(length for _, length in offsets) == len(data)
        found = list(tfrecord.tfrecord_loader(str(shard), str(index), description, shard=(0, 1)))
        assert len(found) == len(offsets)
        rows += found
    assert len(rows) == len(job.survivors())
    for position, row in zip(job.survivors(), rows, strict=True):
        assert bytes(row["image"]) == payload(position).tobytes()
        assert row["label"].tolist() == [label(position)]
        restored = np.frombuffer(row["tensor"], bytes(row["tensor/dtype"]).decode()).reshape(row["tensor/shape"])
        np.testing.assert_array_equal(restored, tensor(position))


def crc32c_reference(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_tfrecord_checksums(tmp_path: Path) -> None:
    Job("tfrecord", total=4).run(tmp_path)
    data = shards(tmp_path, ".tfrecord")[0].read_bytes()

    def masked(part: bytes) -> int:
        crc = crc32c_reference(part)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    at = count = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        assert int.from_bytes(data[at + 8 : at + 12], "little") == masked(data[at : at + 8])
        body = data[at + 12 : at + 12 + length]
        assert int.from_bytes(data[at + 12 + length : at + 16 + length], "little") == masked(body)
        at += 16 + length
        count += 1
    assert count == 4


def test_example_features_of_every_type(tmp_path: Path) -> None:
    samples = samples_of([0, 1])
    ragged = [np.array([1, -2, 2**40], np.int64), np.zeros(0, np.int64)]
    fields = {
        "ints": Batch.from_list(ragged, "", samples),
        "flag": Batch.from_dense(np.array([True, False]), "", samples),
        "floats": Batch.from_list([np.array([1.5, -2.0], np.float16), np.array([3.0], np.float16)], "", samples),
        "double": Batch.from_dense(np.array([0.1, 1e300]), "", samples),
        "npy": Batch.from_list([np.zeros((2, 1), np.int16), np.ones((1, 3), np.int16)], "", samples),
    }
    configs = {name: FieldConfig() for name in fields} | {"npy": FieldConfig("npy")}
    config = WriteConfig(tmp_path, "x", "tfrecord", {"key": "key", "index": False}, fields=configs)
    with Output.open(config, {}, total=2) as out:
        out.add(0, 2, samples, fields)
        out.finish()
    raw = tmp_path.joinpath("x-00000-of-00001.tfrecord").read_bytes()
    examples, at = [], 0
    while at < len(raw):
        length = int.from_bytes(raw[at : at + 8], "little")
        examples.append(example_pb2.Example.FromString(raw[at + 12 : at + 12 + length]))
        at += length + 16
    features = [e.features.feature for e in examples]
    assert list(features[0]["ints"].int64_list.value) == [1, -2, 2**40]
    assert list(features[1]["ints"].int64_list.value) == []
    assert [list(f["flag"].int64_list.value) for f in features] == [[1], [0]]
    assert list(features[0]["floats"].float_list.value) == [1.5, -2.0]
    assert np.frombuffer(features[1]["double"].bytes_list.value[0], "<f8") == 1e300
    assert features[1]["double/dtype"].bytes_list.value[0] == b"float64"
    assert list(features[1]["double/shape"].int64_list.value) == []
    array = np.load(io.BytesIO(features[1]["npy"].bytes_list.value[0]), allow_pickle=False)
    np.testing.assert_array_equal(array, np.ones((1, 3), np.int16))
    assert features[0]["key"].bytes_list.value[0] == b"n00/img.0000.JPEG"


def read_webdataset(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as stream:  # webdataset leaves it to the garbage collector to close what it opens
        return list(group_by_keys(tar_file_expander([{"url": str(path), "stream": stream}])))


def test_webdataset_by_the_webdataset_package(tmp_path: Path) -> None:
    job = written("webdataset", tmp_path)
    rows = [r for p in shards(tmp_path, ".tar") for r in read_webdataset(p)]
    assert len(rows) == len(job.survivors())
    assert len({(r["__url__"], r["__key__"]) for r in rows}) == len(rows)
    for position, row in zip(job.survivors(), rows, strict=True):
        extension = "jpg" if len(payload(position)) >= 3 else "bin"
        assert row[extension] == payload(position).tobytes()
        assert int(row["cls"]) == label(position)
        np.testing.assert_array_equal(np.load(io.BytesIO(row["npy"])), tensor(position))
    assert rows[0]["__key__"] == "n00/img_0000"


JPEG, TEXT = FieldConfig("jpeg"), FieldConfig("keep")
MEMBERS: dict[str, tuple[FieldConfig, str]] = {
    "jpg": (JPEG, "jpg"), "jpeg": (TEXT, "jpeg"), "png": (TEXT, "png"), "txt": (TEXT, "txt"), "json": (TEXT, "json"),
    "cls": (FieldConfig(), "cls"), "npy": (FieldConfig("npy"), "npy"), "wav": (TEXT, "wav"), "mp4": (TEXT, "mp4"),
    "orig": (TEXT, "orig.jpg"), "thumb": (FieldConfig("keep", extension="jpg"), "thumb.jpg"),
    "label": (FieldConfig(), "label.cls"), "vector": (FieldConfig("npy"), "vector.npy"),
}  # fmt: skip
"""Fields, how they are stored, and their members' extensions in one archive with all of them."""


@pytest.mark.parametrize("writer", ["webdataset", "files"])
def test_fields_named_as_extensions_keep_their_names(tmp_path: Path, writer: str) -> None:
    """Whatever the other fields are: their extensions are what readers look for. Nothing comes twice."""
    samples = samples_of(np.arange(3))
    jpegs = Batch.from_list([np.frombuffer(b"\xff\xd8\xff%d" % i, np.uint8) for i in range(3)], "", samples)
    numbers, arrays = label_batch(samples), tensor_batch(samples)
    content = {"cls": numbers, "label": numbers, "npy": arrays, "vector": arrays}
    names = (
        set(MEMBERS) if writer == "webdataset" else set(MEMBERS) - {"cls", "label"}
    )  # the listing holds single numbers
    pairs = [{a, b} for a in sorted(names) for b in sorted(names) if a < b]
    for k, chosen in enumerate([names, *pairs]):
        batches = {f: content.get(f, jpegs) for f in MEMBERS if f in chosen}
        out = tmp_path / str(k)
        config = WriteConfig(out, "x", writer, {"key": "position"}, 10, None, {f: MEMBERS[f][0] for f in batches})
        with Output.open(config, {}, total=3) as output:
            output.add(0, 3, samples, batches, [])
            output.finish()
        if writer == "webdataset":
            (row, *_) = read_webdataset(out / "x-00000-of-00001.tar")
            found = {name for name in row if not name.startswith("__")}
        else:
            line = json.loads((out / "x-00000-of-00001.jsonl").read_text().splitlines()[0])
            found = {name.partition(".")[2] for name in line["files"]}
        assert len(found) == len(chosen), chosen
        held = {MEMBERS[f][1] for f in chosen if f == MEMBERS[f][1]}
        assert held <= found, chosen
        if chosen == names:
            assert found == {MEMBERS[f][1] for f in chosen}


def test_tar_headers_and_index(tmp_path: Path) -> None:
    written("webdataset", tmp_path)
    for shard in shards(tmp_path, ".tar"):
        lines = shard.with_suffix(".idx").read_text().splitlines()
        with tarfile.open(shard) as tar:
            members = tar.getmembers()
        assert {(m.mtime, m.uid, m.gid, m.mode, m.isreg()) for m in members} == {(0, 0, 0, 0o644, True)}
        assert lines[0] == f"v1.2 {len(members) // 3}"
        listed = [tuple(line.split()[k : k + 4]) for line in lines[1:] for k in range(0, 12, 4)]
        assert listed == [(m.name.rpartition(".")[2], str(m.offset_data), str(m.size), m.name) for m in members]
        assert shard.stat().st_size % 512 == 0
        assert shard.read_bytes().endswith(bytes(1024))


@pytest.mark.parametrize("length", [90, 96, 97, 120, 199])
@pytest.mark.parametrize("folder", ["", "some/folder/", "f" * 120 + "/", "d" * 190 + "/"])
def test_tar_takes_long_names(tmp_path: Path, length: int, folder: str) -> None:
    class Long:
        def origin(self, index: int) -> Origin:
            return Origin(folder + "k" * (length - 1) + str(index), "")

    base = samples_of([0, 1])
    samples = type(base)(base.slot, base.position, base.epoch, base.index, Long())
    fields = {"label": Batch.from_dense(np.array([7, 8], np.int64), "", samples)}
    config = WriteConfig(tmp_path, "x", "webdataset", fields={"label": FieldConfig()})
    with Output.open(config, {}, total=2) as out:
        out.add(0, 2, samples, fields)
        out.finish()
    with tarfile.open(tmp_path / "x-00000-of-00001.tar") as tar:
        names = tar.getnames()
        assert [tar.extractfile(m).read() for m in tar.getmembers()] == [b"7", b"8"]  # type: ignore[union-attr]
    assert names == [f"{folder}{'k' * (length - 1)}{i}.cls" for i in range(2)]


def test_lmdb_by_the_lmdb_library(tmp_path: Path) -> None:
    job = written("lmdb", tmp_path)
    rows = {k: v for p in shards(tmp_path, ".lmdb") for k, v in read_lmdb(p).items()}
    assert rows == {b"%010d" % p: payload(p).tobytes() for p in job.survivors()}


def test_lmdb_by_sample_key(tmp_path: Path) -> None:
    job = written("lmdb_keys", tmp_path)
    rows = [kv for p in shards(tmp_path, ".lmdb") for kv in read_lmdb(p).items()]
    assert len(rows) == len(job.survivors())
    found = {}
    for key, value in rows:
        features = example_pb2.Example.FromString(value).features.feature
        found[features["image"].bytes_list.value[0]] = (key, features["label"].int64_list.value[0])
    for position in job.survivors():
        assert found[payload(position).tobytes()][1] == label(position)
    assert found[payload(0).tobytes()][0] == b"n00/img.0000.JPEG"


def test_lmdb_orders_keys_by_their_bytes() -> None:
    rng = np.random.default_rng(0)
    keys = [bytes(rng.choice([0, 1, 65, 127, 128, 255], rng.integers(1, 6)).astype(np.uint8)) for _ in range(500)]
    keys = [b"a", b"a\0", b"a\0\0", b"a\0b", b"a\xff", b"", *keys]
    rng.shuffle(keys)
    order = _order(from_values(keys))
    assert [keys[i] for i in order] == sorted(keys)


def test_lmdb_keys_that_are_not_utf8(tmp_path: Path) -> None:
    names = ["caf\udce9", "caf\udce9", "x"]  # as Python has names of files that are not UTF-8

    class Odd:
        def origin(self, index: int) -> Origin:
            return Origin(names[index], "")

    at = np.arange(3)
    samples = Samples(at.astype(np.int32), at, np.zeros(3, np.int64), at, Odd())
    config = WriteConfig(tmp_path, "x", "lmdb", {"key": "sample"}, fields={"v": FieldConfig("keep")})
    with Output.open(config, {}, total=3) as out:
        values = Batch.from_list([np.full(3, i, np.uint8) for i in range(3)], "", samples)
        out.add(0, 3, samples, {"v": values})
        out.finish()
    expected = {b"caf\xe9": bytes(3), b"caf\xe9~1": b"\1" * 3, b"x": b"\2" * 3}
    assert read_lmdb(tmp_path / "x-00000-of-00001.lmdb") == expected


@pytest.mark.parametrize(("n", "size", "width"), [
    (0, 10, 8), (1, 10, 8), (1, 50000, 8), (300, 10, 8), (300, 2014, 8), (300, 2022, 8), (40, 4080, 8), (40, 4081, 8),
    (3000, 1, 480), (1000, 0, 60), (5000, 30, 12),
])  # fmt: skip
def test_lmdb_trees_of_every_shape(tmp_path: Path, n: int, size: int, width: int) -> None:
    """The library walks, searches, edits and empties what we built."""
    rng = np.random.default_rng(n + size)
    sizes = rng.integers(max(0, size - 8), size + 9, n) if size else np.zeros(n, np.int64)
    order = rng.permutation(n)

    class Named:
        def origin(self, index: int) -> Origin:
            return Origin(f"{order[index]:0{width}d}", "")

    base = samples_of(np.arange(n))
    samples = type(base)(base.slot, base.position, base.epoch, base.index, Named())
    data = rng.integers(0, 256, int(sizes.sum()), np.uint8)
    batch = Batch(data, np.cumsum(sizes) - sizes, sizes.astype(np.int32)[:, None], "", samples)
    config = WriteConfig(tmp_path, "x", "lmdb", {"key": "sample"}, fields={"v": FieldConfig("keep")})
    with Output.open(config, {}, total=n) as out:
        for at in range(0, n, 777):
            part = slice(at, min(at + 777, n))
            out.add(part.start, part.stop, samples.take(part), {"v": batch.take(part)})
        out.finish()
    path = tmp_path / "x-00000-of-00001.lmdb"
    expected = {f"{order[i]:0{width}d}".encode(): batch.sample(i).tobytes() for i in range(n)}
    assert read_lmdb(path) == expected
    dropped = set(sorted(expected)[::2])
    with lmdb.open(str(path), map_size=1 << 28) as env:
        with env.begin(write=True) as txn:
            for key in dropped:
                assert txn.delete(key)
            for k in range(200):
                assert txn.put(f"new{k:04d}".encode(), bytes(k * 40))
        with env.begin() as txn:
            kept = {k: v for k, v in expected.items() if k not in dropped}
            assert dict(txn.cursor()) == {**kept, **{f"new{k:04d}".encode(): bytes(k * 40) for k in range(200)}}
        with env.begin(write=True) as txn:
            for key in [*kept, *(f"new{k:04d}".encode() for k in range(200))]:
                assert txn.delete(key)
        assert env.stat()["entries"] == 0


def test_numpy_shards(tmp_path: Path) -> None:
    job = written("numpy", tmp_path)
    labels = np.concatenate([np.load(p) for p in shards(tmp_path, ".label.npy")])
    tensors = np.concatenate([np.load(p, mmap_mode="r") for p in shards(tmp_path, ".tensor.npy")])
    np.testing.assert_array_equal(labels, [[label(p)] for p in job.survivors()])
    np.testing.assert_array_equal(tensors, [tensor(p) for p in job.survivors()])
    assert [np.load(p).shape[0] for p in shards(tmp_path, ".label.npy")] == [11, 11, 11, 4]


def test_numpy_rejects_other_shapes(tmp_path: Path) -> None:
    samples = samples_of(np.arange(5))
    batch = Batch.from_list([np.full((2, 2 + (i == 3)), i, np.int16) for i in range(5)], "HW", samples)
    config = WriteConfig(tmp_path, "x", "numpy", samples=2, fields={"a": FieldConfig()})
    with Output.open(config, {}, total=5) as out:
        out.add(0, 5, samples, {"a": batch})
        out.finish()
    (row,) = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert (row["position"], row["code"], row["operator"]) == (3, "bad_shape", "write.numpy")
    assert "2x3" in row["message"]
    assert "2x2" in row["message"]
    kept = np.concatenate([np.load(p) for p in shards(tmp_path, ".npy")])
    np.testing.assert_array_equal(kept[:, 0, 0], [0, 1, 2, 4])


def test_files(tmp_path: Path) -> None:
    job = written("files", tmp_path / "out")
    rows = [json.loads(line) for p in shards(tmp_path / "out", ".jsonl") if p.name.startswith("train")
            for line in p.read_text().splitlines()]  # fmt: skip
    assert [r["position"] for r in rows] == job.survivors()
    for row in rows:
        image, array = (tmp_path / "out" / f for f in row["files"])
        assert image.read_bytes() == payload(row["position"]).tobytes()
        np.testing.assert_array_equal(np.load(array), tensor(row["position"]))
        assert row["field:label"] == label(row["position"])
    assert (tmp_path / "out/n00/img.0000.jpg").exists()
    assert [p for p in walk(tmp_path) if not p.is_relative_to(tmp_path / "out")] == []


def test_recordio(tmp_path: Path) -> None:
    job = written("recordio", tmp_path)
    records = [r for p in shards(tmp_path, ".rec") for r in read_recordio(p)]
    assert len(records) == len(job.survivors())
    for position, record in zip(job.survivors(), records, strict=True):
        head = np.frombuffer(record[:24], np.dtype([("flag", "<u4"), ("label", "<f4"), ("id", "<u8"), ("id2", "<u8")]))
        assert head["flag"][0] == 0
        assert head["label"][0] == label(position)
        assert record[24:] == payload(position).tobytes()
    magics = sum(p.read_bytes().count((0xCED7230A).to_bytes(4, "little")) for p in shards(tmp_path, ".rec"))
    assert magics > len(records)  # some records were split
    for shard in shards(tmp_path, ".rec"):
        pairs = [tuple(map(int, line.split("\t"))) for line in shard.with_suffix(".idx").read_text().splitlines()]
        assert [k for k, _ in pairs] == list(range(len(read_recordio(shard))))
        assert all(shard.read_bytes()[o : o + 4] == (0xCED7230A).to_bytes(4, "little") for _, o in pairs)


def test_recordio_with_several_labels(tmp_path: Path) -> None:
    samples = samples_of([0, 1])
    fields = {
        "image": Batch.from_list([np.arange(5, dtype=np.uint8), np.arange(7, dtype=np.uint8)], "", samples),
        "boxes": Batch.from_list([np.array([1, 2, 3], np.float32), np.array([4], np.float32)], "", samples),
    }
    config = WriteConfig(tmp_path, "x", "recordio", fields={"image": FieldConfig("keep"), "boxes": FieldConfig()})
    with Output.open(config, {}, total=2) as out:
        out.add(0, 2, samples, fields)
        out.finish()
    first, second = read_recordio(tmp_path / "x-00000-of-00001.rec")
    assert int.from_bytes(first[:4], "little") == 3
    assert np.frombuffer(first[24:36], "<f4").tolist() == [1, 2, 3]
    assert first[36:] == bytes(range(5))
    assert int.from_bytes(second[:4], "little") == 0
    assert np.frombuffer(second[4:8], "<f4")[0] == 4
    assert second[24:] == bytes(range(7))


@pytest.mark.parametrize("name", ["tfrecord", "lmdb", "webdataset", "files"])
def test_real_images_are_kept_to_the_byte(tmp_path: Path, imagenet: list[Path], name: str) -> None:
    chosen = imagenet[:9]
    samples = samples_of(np.arange(len(chosen)))
    contents = [np.frombuffer(p.read_bytes(), np.uint8) for p in chosen]
    config = WriteConfig(tmp_path, "x", name, samples=4, fields={"image": FieldConfig("keep")})
    with Output.open(config, {}, total=len(chosen)) as out:
        out.add(0, len(chosen), samples, {"image": Batch.from_list(contents, "", samples)})
        out.finish()
    if name == "lmdb":
        found = [v for p in shards(tmp_path, ".lmdb") for v in read_lmdb(p).values()]
    elif name == "files":
        rows = [json.loads(line) for p in shards(tmp_path, ".jsonl") if p.name.startswith("x-")
                for line in p.read_text().splitlines()]  # fmt: skip
        found = [(tmp_path / r["files"][0]).read_bytes() for r in rows]
        assert {r["files"][0].rpartition(".")[2] for r in rows} == {"jpg"}
    elif name == "webdataset":
        found = [r["jpg"] for p in shards(tmp_path, ".tar") for r in read_webdataset(p)]
    else:
        found = [bytes(r["image"]) for p in shards(tmp_path, ".tfrecord")
                 for r in tfrecord.tfrecord_loader(str(p), None, {"image": "byte"})]  # fmt: skip
    assert found == [p.read_bytes() for p in chosen]
    with Image.open(io.BytesIO(found[0])) as image:
        image.load()


@pytest.mark.parametrize("key", [
    "../../etc/passwd", "/etc/passwd", "a/../../b", "..", ".", "", "a//b", "x\0y", "new\nline", "a\\..\\..\\b",
    "k" * 5000, "/".join("d" * 50 for _ in range(100)), ".hidden/.x", "\u202egnp.exe", "con\x1b[31m", "é" * 300,
    "\udcff\udcfe", "~", "-rf",
])  # fmt: skip
def test_names_stay_inside(tmp_path: Path, key: str) -> None:
    for name in (safe_path(key), webdataset_key(key)):
        target = (tmp_path / name).resolve()
        assert target != tmp_path.resolve()
        assert target.is_relative_to(tmp_path.resolve())
        assert name.isprintable()
        target.parent.mkdir(parents=True, exist_ok=True)
        (target.parent / (target.name + ".jpg")).write_bytes(b"x")  # the file system takes it


def test_unique_names() -> None:
    assert make_unique(["a", "b", "a", "c", "a"], [10, 11, 12, 13, 14], {"c"}) == ["a", "b", "a~12", "c~13", "a~14"]
    assert make_unique(["a~12", "a", "a"], [10, 11, 12], set()) == ["a~12", "a", "a~12-1"]


def test_options_are_checked() -> None:
    assert set(writers()) >= {"tfrecord", "lmdb", "webdataset", "numpy", "files", "recordio"}
    with pytest.raises(SpecError, match="did you mean tfrecord"):
        find_writer("tfrecords")
    with pytest.raises(SpecError, match="no option 'indx'; did you mean index"):
        make_writer("tfrecord", {"indx": True})
    with pytest.raises(SpecError, match=r"option 'key'.*'sample', 'position'"):
        make_writer("lmdb", {"key": "name"})


IMAGE = Spec((None, None, 3), DALIDataType.UINT8, "HWC")
ENCODED = Spec((None,), DALIDataType.UINT8)


@pytest.mark.parametrize(("writer", "fields", "specs", "message"), [
    ("tfrecord", {"a": FieldConfig("keep")}, {"a": IMAGE}, "needs encoded bytes"),
    ("tfrecord", {"a": FieldConfig("jpg")}, {"a": IMAGE}, "encode must be one of auto, raw"),
    ("numpy", {"a": FieldConfig("jpeg")}, {"a": ENCODED}, "arrays of one shape"),
    ("recordio", {"a": FieldConfig(), "b": FieldConfig()}, {"a": IMAGE, "b": IMAGE}, "one field of encoded bytes"),
    ("webdataset", {"a.b": FieldConfig()}, {"a.b": IMAGE}, "avoid dots"),
    ("files", {"a": FieldConfig(extension="../x")}, {"a": IMAGE}, "letters, digits and dots"),
])  # fmt: skip
def test_fields_are_checked(
    writer: str, fields: dict[str, FieldConfig], specs: dict[str, Spec], message: str
) -> None:  # fmt: skip
    with pytest.raises(SpecError, match=message):
        make_writer(writer, {}).check(fields, specs)


def test_lmdb_raw_takes_one_field() -> None:
    check: Callable[..., None] = make_writer("lmdb", {"value": "raw"}).check
    check({"a": FieldConfig("keep")}, {})
    with pytest.raises(SpecError, match="stores one field, got 2"):
        check({"a": FieldConfig("keep"), "b": FieldConfig()}, {})


def test_lmdb_branches_have_two_children(tmp_path: Path) -> None:
    """Long keys make small branches: every number of leaves around the sizes of a branch and of two."""
    for n in range(60, 160, 4):
        keys = [f"{k:0480d}" for k in range(n)]

        class Named:
            def __init__(self, names: list[str]) -> None:
                self.names = names

            def origin(self, index: int) -> Origin:
                return Origin(self.names[index], "")

        base = samples_of(np.arange(n))
        samples = type(base)(base.slot, base.position, base.epoch, base.index, Named(keys))
        batch = Batch.from_dense(np.arange(n, dtype=np.uint8)[:, None], "", samples)
        config = WriteConfig(tmp_path / str(n), "x", "lmdb", {"key": "sample"}, fields={"v": FieldConfig("keep")})
        with Output.open(config, {}, total=n) as out:
            out.add(0, n, samples, {"v": batch})
            out.finish()
        path = tmp_path / str(n) / "x-00000-of-00001.lmdb"
        assert read_lmdb(path) == {k.encode(): bytes([i]) for i, k in enumerate(keys)}
        data = np.frombuffer((path / "data.mdb").read_bytes(), np.uint8).reshape(-1, 4096)
        branches = data[data[:, 10] == 1]
        assert len(branches)
        children = (branches[:, 12:14].copy().view("<u2")[:, 0].astype(int) - 16) // 2
        assert children.min() >= 2
