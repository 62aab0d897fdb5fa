"""readers.mds and readers.litdata: data sets of our writers, and of the libraries themselves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.errors import JobError, SpecError
from dali_run.pipelines.job.run import run_job
from dali_run.readers.base import Reader
from dali_run.readers.streaming import records
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


CASTS = (
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float",
    "float64",
)


@pytest.mark.parametrize("writer", ["mds", "litdata"])
def test_every_type_that_is_written_is_read(tmp_path: Path, writer: str) -> None:
    values = [np.array(v, np.float32) for v in ([[0, 1], [2, 3], [0, 5]], [[7, 0]])]
    (tmp_path / "in").mkdir()
    for i, value in enumerate(values):
        np.save(tmp_path / "in" / f"{i}.npy", value)
    steps, columns = [f"{{op: readers.numpy, name: Reader, file_root: {tmp_path}/in, out: x}}"], []
    for t in CASTS:
        steps += [
            f"{{op: cast, in: x, dtype: {t}, out: {t}_2}}",
            f"{{op: reshape, in: {t}_2, shape: [-1], out: {t}_1}}",
        ]
        columns += [f"{t}_2", f"{t}_1"]
    (tmp_path / "s.yaml").write_text(
        "version: 1\nname: x\ngraph:\n" + "".join(f"  - {s}\n" for s in steps)
        + f"outputs: {{{', '.join(f'{c}: {c}' for c in columns)}}}\n"
        + f"write: {{writer: {writer}, path: {tmp_path}/out, shard: {{samples: 9}}, fields: "
        + f"{{{', '.join(f'{c}: {{encode: raw}}' for c in columns)}}}}}\n"
    )  # fmt: skip
    run_job(tmp_path / "s.yaml")
    reader = READERS[writer](path=str(tmp_path / "out"), columns=tuple(columns))
    batches, rejects = fetch(reader, open_reader(reader), [0, 1])
    assert not rejects
    for name, batch in zip(columns, batches, strict=True):
        dtype = np.dtype({"float": "float32"}.get(name[:-2], name[:-2]))
        for i, value in enumerate(values):
            expected = value.astype(dtype).reshape(value.shape if name.endswith("2") else -1)
            assert batch.dtype == dtype or (writer, dtype, batch.dtype) == ("mds", np.bool_, np.uint8)
            np.testing.assert_array_equal(batch.sample(i), expected)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of each format, to be copied and damaged."""
    place = tmp_path_factory.mktemp("outputs")
    for name in READERS:
        JOBS[name].run(place / name)
    return place


DEEP = "[" * 100_000


@pytest.mark.parametrize(("name", "edit"), [
    ("mds", lambda i: i["shards"][0]["column_encodings"].__setitem__(0, f"ndarray:int64:{1 << 70}")),
    ("mds", lambda i: i["shards"][0]["column_encodings"].__setitem__(0, "ndarray:int64:-1,-1")),
    ("mds", lambda i: i["shards"][0]["column_encodings"].__setitem__(0, "ndarray:int64:" + "1," * 62 + "1")),
    ("mds", lambda i: i["shards"][0]["column_sizes"].__setitem__(0, 1 << 70)),
    ("mds", lambda i: i["shards"][0].update(samples=1 << 70)),
    ("litdata", lambda i: i["chunks"][0].update(chunk_size=1 << 70)),
    ("litdata", lambda i: i["config"]["data_format"].__setitem__(0, f"no_header_numpy:{1 << 70}")),
    ("litdata", lambda i: i["config"].update(data_spec=DEEP)),
    ("litdata", lambda i: i["config"].update(data_spec=json.dumps([1, {"context": DEEP, "type": "builtins.dict",
                                                                      "children_spec": [{"children_spec": []}]}]))),
])  # fmt: skip
def test_absurd_counts_and_depths_of_an_index_are_refused(
    tmp_path: Path, outputs: Path, name: str, edit: Any
) -> None:  # fmt: skip
    shutil.copytree(outputs / name, tmp_path, dirs_exist_ok=True)
    kept = json.loads((tmp_path / "index.json").read_text())
    damaged(tmp_path, lambda i: i.get("shards", [{}]).__setitem__(slice(1, None), []))
    damaged(tmp_path, edit)
    with pytest.raises((JobError, SpecError), match=r"index\.json: "):
        open_reader(READERS[name](path=str(tmp_path), columns=tuple(names_of(kept))))


def names_of(index: dict[str, Any]) -> list[str]:
    if "shards" in index:
        return list(index["shards"][0]["column_names"])
    return list(json.loads(json.loads(index["config"]["data_spec"])[1]["context"]))


@pytest.mark.parametrize("name", ["mds", "litdata"])
def test_damaged_records_decide_nothing_for_the_others(
    tmp_path: Path, outputs: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those whose sizes do not add up, as many as they are, nor those whose array is damaged."""
    shutil.copytree(outputs / name, tmp_path, dirs_exist_ok=True)
    reader = READERS[name](path=str(tmp_path), columns=("tensor",))
    source = open_reader(reader)
    files = source._files.files(np.arange(len(source)))
    places = source._places(np.arange(len(source)))[0][:, source._columns[0]] - source._mapped.starts[files]
    starts, paths = source._starts - source._mapped.starts[files], [source._mapped.paths[f] for f in files]

    def change(record: int, at: int, content: bytes) -> None:
        raw = bytearray(Path(paths[record]).read_bytes())
        raw[at : at + len(content)] = content
        Path(paths[record]).write_bytes(raw)

    def absurd(record: int) -> None:
        at = int(places[record])
        change(record, at, bytes([63 << 2])) if name == "mds" else change(record, at + 4, (63).to_bytes(4, "little"))

    monkeypatch.setattr(records, "_MODELS", 4)
    for record in range(5):
        change(record, int(starts[record]), b"\xff" * 4)
    absurd(5)
    source = open_reader(reader)
    (tensors,), rejects = fetch(reader, source, range(len(source)))
    assert [(r.slot, r.code) for r in rejects] == [*((k, "corrupt_record") for k in range(5)), (5, "bad_shape")]
    for k in range(6, len(source)):
        assert tensors.sample(k).ndim == 2
    for record in range(6, len(source)):
        absurd(record)
    with pytest.raises(JobError, match="has 63 dimensions; at most 32 are read"):
        open_reader(reader)
