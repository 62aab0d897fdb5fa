"""Whole jobs over good and bad containers mixed: the bad ones cost lines in rejects.jsonl and nothing else."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dali_run.pipelines.job.run import REJECTS, run_job
from dali_run.readers.fetch import extents
from dali_run.readers.mxnet import MXNet
from dali_run.readers.tfrecord import TFRecord
from dali_run.readers.webdataset import WebDataset
from tests.kit.files.containers import FORMATS, tfrecord
from tests.kit.readers import content, fetch, open_reader

READERS: dict[str, Any] = {"tfrecord": TFRecord, "webdataset": WebDataset}


def bad_files(kind: str, folder: Path, shared_data: Path) -> list[str]:
    """Files found in the world, and damaged ones of the format."""
    make, _ = FORMATS[kind]
    rng = np.random.default_rng(0)
    found = sorted(p for p in (shared_data / "corpus" / kind).rglob("*") if p.is_file() and p.name != "lock.mdb")
    out = [str(p) for p in found if p.suffix != ".txt"]
    for k in range(10):
        path = folder / f"bad-{k}"
        make(path, [b"damaged-%d-%d" % (k, i) for i in range(4)])
        raw = bytearray(path.read_bytes())
        if (
            k % 2
        ):  # the cut ones are refused for sure; an LMDB has much room that holds nothing, where damage is no damage
            del raw[int(rng.integers(1, len(raw))) :]
        for place in rng.integers(0, len(raw), 1 + 20 * (k % 3)).tolist():
            raw[place] = int(rng.integers(0, 256))
        path.write_bytes(raw)
        out.append(str(path))
    (folder / "bad-empty").write_bytes(b"")
    (folder / "bad-jpeg").write_bytes(b"\xff\xd8\xff" + rng.bytes(5000))
    return [*out, str(folder / "bad-empty"), str(folder / "bad-jpeg")]


def run(
    folder: Path, step: dict[str, Any], files: list[str], batch: int
) -> tuple[int, list[bytes], list[dict[str, Any]]]:
    name = next(k for k in ("path", "paths") if k in step)
    out = folder / f"out-{len(files)}-{batch}"
    spec = {
        "version": 1,
        "name": "job",
        "pipeline": {"batch_size": batch, "num_threads": 2, "device": "cpu", "seed": 1},
        "graph": [{**step, name: files, "out": "data"}],
        "outputs": {"data": "data"},
        "write": {"writer": "tfrecord", "path": str(out), "fields": {"data": {"encode": "keep"}}},
        "on_error": {"policy": "skip", "max_errors": "100%"},
    }
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    result = run_job(path)
    rejects = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
    reader = TFRecord(path=str(out / "*.tfrecord"), features={"data": "string"})
    source = open_reader(reader)
    (written,), refused = fetch(reader, source, range(len(source)))
    assert not refused
    return result.exit_code, content(written), rejects


@pytest.mark.parametrize("kind", list(FORMATS))
def test_good_samples_are_untouched_by_bad_ones(
    kind: str, tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make, step = FORMATS[kind]
    bad = bad_files(kind, tmp_path, shared_data)
    good, expected = [], []
    for k in range(len(bad)):
        values = [b"good-%d-%d" % (k, i) * (1 + k % 5) for i in range(3)]
        make(tmp_path / f"good-{k}", values)
        good.append(str(tmp_path / f"good-{k}"))
        expected += values
    mixed = [path for pair in zip(good, bad, strict=True) for path in pair]
    outcomes = []
    for batch in (1, 8, 64):
        code, written, rejects = run(tmp_path, step, mixed, batch)
        assert code == REJECTS
        assert [w for w in written if w.startswith(b"good")] == expected
        assert all(r["source"] in bad and r["code"] and len(r["message"]) > 10 for r in rejects)
        outcomes.append((written, [(r["source"], r["record"], r["code"], r["message"]) for r in rejects]))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    refused = {source for source, *_ in outcomes[0][1]}
    assert str(tmp_path / "bad-jpeg") in refused
    if kind == "lmdb":
        assert refused >= {str(tmp_path / f"bad-{k}") for k in [*range(1, 10, 2), "empty"]}
    else:
        assert len(refused) >= 8


def recordio(path: Path, values: list[bytes]) -> None:
    records = [struct.pack("<IfQQ", 0, 0, 0, 0) + value for value in values]
    path.write_bytes(b"".join(struct.pack("<II", 0xCED7230A, len(r)) + r + bytes(-len(r) % 4) for r in records))


@pytest.mark.parametrize(
    ("make", "reader"),
    [
        (tfrecord, lambda path: TFRecord(path=path, features={"data": "string"})),
        (recordio, lambda path: MXNet(path=path)),
    ],
)
def test_a_packed_file_of_more_records_than_bytes_is_left_early(
    make: Any, reader: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that hold nothing take no bytes, but time: 14 million of them came out of 560 kB. (A member of a tar
    archive has 512 bytes at least: there bytes are the lower limit.)"""
    path = tmp_path / "many"
    make(path, [b"x"] * 900)
    data = path.read_bytes()
    for free, found in ((900, 900), (899, 899), (700, 700), (10, None)):
        monkeypatch.setattr(extents, "FREE_RECORDS", free)
        path.write_bytes(packed := gzip.compress(data, 9))
        source = open_reader(made := reader(str(path)))
        most = max(free, len(packed)) if found is None else found
        assert len(source) == min(900, most) + (most < 900)
        batches, rejects = fetch(made, source, range(len(source)))
        assert content(batches[0])[:most] == [b"x"] * min(900, most)
        assert [r.slot for r in rejects] == ([most] if most < 900 else [])
        assert all(f"more than {most} records" in r.message and "gunzip" in r.message for r in rejects)
    path.write_bytes(data)  # as it is: its bytes are there
    source = open_reader(made := reader(str(path)))
    assert len(source) == 900


@pytest.mark.parametrize("kind", READERS)
def test_a_file_that_grows_while_it_is_read(kind: str, tmp_path: Path) -> None:
    """Records that the file held when it was opened are read; one that was incomplete then is a reject."""
    make, step = FORMATS[kind]
    values = [b"%d" % i * 100 for i in range(6)]
    make(tmp_path / "whole", values)
    whole = (tmp_path / "whole").read_bytes()
    path, rng, shorter = tmp_path / "growing", np.random.default_rng(2), 0
    for size in rng.integers(len(whole) // 3, len(whole), 12).tolist():
        path.write_bytes(whole[:size])
        arguments = {k: v for k, v in step.items() if k != "op"} | {"path" if "path" in step else "paths": str(path)}
        reader = READERS[kind](**arguments)
        source = open_reader(reader)
        with path.open("ab") as file:
            file.write(whole[size:])
        (data,), rejects = fetch(reader, source, range(len(source)))
        lost = {r.slot for r in rejects}
        found = [c for i, c in enumerate(content(data)) if i not in lost]
        assert found == values[: len(found)]
        assert len(lost) <= 1
        shorter += len(found) < len(values)
        source = open_reader(reader)
        assert content(fetch(reader, source, range(len(source)))[0][0]) == values
    assert shorter > 3
