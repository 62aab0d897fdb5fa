"""readers.mds and readers.litdata: data sets of our writers, and of the libraries themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.errors import JobError, SpecError
from dali_run.readers.base import Reader
from dali_run.readers.streaming.litdata import LitData
from dali_run.readers.streaming.mds import Mds
from tests.kit.readers import content, fetch, open_reader
from tests.kit.writers import JOBS, ORIGINS, label, payload, tensor

READERS: dict[str, Callable[..., Reader]] = {"mds": Mds, "litdata": LitData}


@pytest.mark.parametrize("name", ["mds", "mds_bytes", "litdata"])
def test_what_our_writers_wrote(tmp_path: Path, name: str) -> None:
    job = JOBS[name]
    job.run(tmp_path)
    reader = READERS[job.writer](path=str(tmp_path), columns=("tensor", "image", "label"), key="key")
    source = open_reader(reader)
    positions = job.survivors()
    order = np.random.default_rng(0).permutation(len(positions))
    (tensors, images, labels), rejects = fetch(reader, source, order)
    assert not rejects
    assert [source.origin(int(i)).key for i in order] == [ORIGINS.origin(positions[i]).key for i in order]
    for i, array, image, number in zip(order, tensors, content(images), labels, strict=True):
        np.testing.assert_array_equal(array, tensor(positions[i]))
        assert image == payload(positions[i]).tobytes()
        assert number.tolist() == [label(positions[i])]


def damaged(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    index = json.loads((folder / "index.json").read_text())
    edit(index)
    (folder / "index.json").write_text(json.dumps(index))


def bad_name(index: dict[str, Any]) -> None:
    if "shards" in index:
        index["shards"][0]["raw_data"]["basename"] = "../x"
    else:
        index["chunks"][0]["filename"] = "/etc/passwd"


def pickles(index: dict[str, Any]) -> None:
    if "shards" in index:
        for shard in index["shards"]:
            shard["column_encodings"][shard["column_names"].index("image")] = "pkl"
    else:
        index["config"]["data_format"][1] = "pickle"


@pytest.mark.parametrize("name", ["mds", "litdata"])
def test_what_is_damaged(tmp_path: Path, name: str) -> None:
    JOBS[name].run(tmp_path)
    shard = sorted(tmp_path.glob("train-00001*"))[0]
    raw = bytearray(shard.read_bytes())
    reader = READERS[name](path=str(tmp_path), columns=("image",))
    first = int(np.frombuffer(raw[4:8], "<u4")[0])
    shard.write_bytes(raw[:first] + b"\xff" * 4 + raw[first + 4 :])  # a size
    source = open_reader(reader)
    _, rejects = fetch(reader, source, range(len(source)))
    assert [(r.slot, r.code) for r in rejects] == [(11, "corrupt_record")]
    for cut in (2, 20, first, len(raw) - 1):
        shard.write_bytes(raw[:cut])
        with pytest.raises(JobError, match=r"train-00001-of-00004\.\w+: (does not begin with|its table of offsets)"):
            open_reader(reader)
    shard.write_bytes(raw)
    for edit, says in ((bad_name, "is not the name of a file in its folder"), (pickles, "pkl|pickle"),
                       (lambda i: i.clear(), "is not an index of")):  # fmt: skip
        kept = (tmp_path / "index.json").read_bytes()
        damaged(tmp_path, edit)
        with pytest.raises((JobError, SpecError), match=says):
            open_reader(reader)
        (tmp_path / "index.json").write_bytes(kept)
    with pytest.raises(SpecError, match="has no column 'imag'; did you mean image"):
        open_reader(READERS[name](path=str(tmp_path), columns=("imag",)))


def samples() -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [{"name": f"é{i}", "image": bytes(rng.integers(0, 256, i * 40, np.uint8)), "n": i - 3, "x": i / 7,
             "list": np.arange(i + 1, dtype=np.float32), "grid": rng.standard_normal((i + 1, 300 * (i % 2) + 1))}
            for i in range(9)]  # fmt: skip


def check(reader: Reader) -> None:
    source = open_reader(reader)
    (image, n, x, lists, grids), rejects = fetch(reader, source, range(9))
    assert not rejects
    for i, sample in enumerate(samples()):
        assert source.origin(i).key == sample["name"]
        assert bytes(image.sample(i)) == sample["image"]
        assert (n.sample(i).item(), x.sample(i).item()) == (sample["n"], sample["x"])
        np.testing.assert_array_equal(lists.sample(i), sample["list"])
        np.testing.assert_array_equal(grids.sample(i), sample["grid"])


NAMES = ("image", "n", "x", "list", "grid")


def test_what_streaming_wrote_and_reads(tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming")
    columns = {
        "name": "str",
        "image": "bytes",
        "n": "int",
        "x": "float64",
        "list": "ndarray:float32",
        "grid": "ndarray",
    }
    with streaming.MDSWriter(out=str(tmp_path / "mds"), columns=columns, size_limit=9000) as out:
        for sample in samples():
            out.write(sample)
    check(Mds(path=str(tmp_path / "mds"), columns=NAMES, key="name"))
    job = JOBS["mds"]
    job.run(tmp_path / "ours")
    read = streaming.StreamingDataset(local=str(tmp_path / "ours"), shuffle=False, batch_size=1)
    assert len(read) == len(job.survivors())
    for i, position in enumerate(job.survivors()):
        assert (read[i]["key"], read[i]["image"]) == (ORIGINS.origin(position).key, payload(position).tobytes())
        assert read[i]["label"] == label(position)
        np.testing.assert_array_equal(read[i]["tensor"], tensor(position))


@pytest.mark.filterwarnings("ignore")
def test_what_litdata_wrote_and_reads(tmp_path: Path) -> None:
    litdata = pytest.importorskip("litdata")
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(tmp_path / "lit"), chunk_bytes=9000)
    for i, sample in enumerate(samples()):
        writer[i] = sample
    writer.done()
    writer.merge()
    check(LitData(path=str(tmp_path / "lit"), columns=NAMES, key="name"))
    job = JOBS["litdata"]
    job.run(tmp_path / "ours")
    read = litdata.StreamingDataset(str(tmp_path / "ours"))
    assert len(read) == len(job.survivors())
    for i, position in enumerate(job.survivors()):
        assert (read[i]["key"], bytes(read[i]["image"])) == (ORIGINS.origin(position).key, payload(position).tobytes())
        assert read[i]["label"] == label(position)
        np.testing.assert_array_equal(read[i]["tensor"], tensor(position))


@pytest.mark.parametrize("name", ["mds", "litdata"])
def test_flipped_bytes_cost_records_or_the_data_set_never_the_process(tmp_path: Path, name: str) -> None:
    """Bytes and numbers anywhere in shards and index: an error of ours, a reject, or other values."""
    JOBS[name].run(tmp_path)
    rng = np.random.default_rng(3)
    files = [tmp_path / "index.json", *sorted(tmp_path.glob("train-*"))]
    outcomes = set()
    for k in range(160):
        path = files[0] if k % 4 == 0 else files[int(rng.integers(1, len(files)))]
        kept = path.read_bytes()
        data = bytearray(kept)
        if k % 3:
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        else:  # a word of the table, of the sizes or of a shape
            at = 4 * int(rng.integers(min(64, len(data) // 4)))
            data[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x80", b"9999"])
        path.write_bytes(data)
        reader = READERS[name](path=str(tmp_path), columns=("tensor", "image", "label"), key="key")
        try:
            source = open_reader(reader)
            _, rejects = fetch(reader, source, range(len(source)))
            outcomes.add("rejects" if rejects else "values")
        except (JobError, SpecError):
            outcomes.add("refused")
        path.write_bytes(kept)
    assert outcomes == {"rejects", "values", "refused"}
