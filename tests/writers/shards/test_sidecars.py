"""An output folder may come from anybody: what it says is data. Nothing outside of it is read or written."""

from __future__ import annotations

import copy
import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Origin, Samples
from dali_run.ops.errors import DaliRunError, JobError
from dali_run.ops.storage.inventory import Inputs, InventoryEntries
from dali_run.writers.base import FieldConfig
from dali_run.writers.bytes.sidecar import inside, read
from dali_run.writers.formats.files import OWN_NAMES
from dali_run.writers.shards import lock
from dali_run.writers.shards.config import WriteConfig
from dali_run.writers.shards.journal import _line, read_journal
from dali_run.writers.shards.lock import Lock
from dali_run.writers.shards.manifest import Addition, OutputFiles
from dali_run.writers.shards.output import Output
from dali_run.writers.shards.retries import next_retry
from dali_run.writers.shards.verify import verify
from tests.kit.writers import JOBS, digest

OWN = [
    Path(p).name
    for files in (
        OutputFiles(Path()),
        OutputFiles(Path(), (0, 2)),
        OutputFiles(Path(), addition=Addition(1, "retry", ())),
    )
    for p in (*files.removable, files.lock)
]


def forged(out: Path, change: Callable[[list[Any]], object]) -> None:
    """The journal's lines as ``change`` makes them, with right checksums."""
    path = out / "journal.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        line.pop("crc32c")
    change(lines)
    path.write_bytes(b"".join(_line(line) for line in lines))


@pytest.mark.parametrize("name", ["tfrecord", "files", "lmdb", "webdataset", "recordio", "numpy"])
@pytest.mark.parametrize(
    "lie", ["../secret", "{secret}", "..", ".", "", "a/../../secret", "/dev/zero", "a//b", "\0", 7, None]
)
def test_names_that_lead_out_are_not_read(tmp_path: Path, name: str, lie: Any) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    out = tmp_path / "out"
    JOBS[name].run(out)
    lie = lie.format(secret=secret) if isinstance(lie, str) else lie
    forged(out, lambda lines: lines[1]["files"][0].update(name=lie))
    with pytest.raises(JobError):
        read_journal(out / "journal.jsonl")
    said = "\n".join(map(str, verify(out).problems))
    assert "not one that dali-run writes" in said
    assert not any(word in said for word in ("sha256", "bytes, "))
    with pytest.raises(DaliRunError):
        JOBS[name].run(out)
    with pytest.raises(DaliRunError):
        JOBS[name].run(out, fresh=True)
    assert secret.read_text() == "mine"


VALUES = (None, -1, 1.5, "x", [], {}, [None], True, 1 << 70, {"positions": 3})


def test_what_no_journal_says_is_a_clear_error(tmp_path: Path) -> None:
    """Every value of a journal in turn is another: no command raises anything but our own errors."""
    out = tmp_path / "out"
    JOBS["tfrecord"].run(out)
    before = [json.loads(line) for line in (out / "journal.jsonl").read_bytes().splitlines()]
    for at, line in enumerate(before):
        for key in [k for k in line if k != "crc32c"]:
            for value in VALUES:
                lines = copy.deepcopy(before)
                for one in lines:
                    one.pop("crc32c")
                lines[at][key] = value
                (out / "journal.jsonl").write_bytes(b"".join(_line(one) for one in lines))
                verify(out)
                for command in (lambda: JOBS["tfrecord"].run(out), lambda: next_retry(out)):
                    try:
                        command()
                    except DaliRunError:
                        continue


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder", "device link", "missing link"])
@pytest.mark.parametrize("name", sorted(set(OWN)))
def test_own_files_that_are_something_else(tmp_path: Path, name: str, kind: str) -> None:
    """Nothing is written through them or waited for; a folder is reported, not fallen over."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    place = out / name
    if kind == "hard link":
        place.hardlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to({"link": precious, "device link": Path("/dev/zero"), "missing link": tmp_path / "no"}[kind])
    part = (0, 2) if "-00000-of-" in name else None
    for again in range(2):
        config = JOBS["tfrecord"].config(out)
        try:
            options: dict[str, Any] = {"part": part, "whole": 40} if part else {}
            with Output.open(config, {"seed": 1}, total=40, fresh=bool(again), **options) as output:
                output.add(0, 5, *JOBS["tfrecord"].batch(0, 5))
        except DaliRunError:
            pass
        verify(out)
        assert precious.read_text() == "mine"
        assert not (tmp_path / "no").exists()


def test_a_lock_that_was_cut_short_is_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_PATIENCE", 0.01)
    for text in ("", '{"ho', '{"host": "gone", "pid": 1}'):
        (tmp_path / ".dali-run.lock").write_text(text)
        Lock(tmp_path / ".dali-run.lock").release()
    (tmp_path / ".dali-run.lock").write_text("a poem")
    with pytest.raises(JobError, match="left alone"):
        Lock(tmp_path / ".dali-run.lock")
    assert (tmp_path / ".dali-run.lock").read_text() == "a poem"


def test_shards_that_are_links_are_not_read(tmp_path: Path) -> None:
    for name in ("tfrecord", "lmdb"):
        out = tmp_path / name
        JOBS[name].run(out)
        shard = sorted(p for p in out.iterdir() if p.name.startswith("train-"))[0]
        shard.rename(tmp_path / f"elsewhere-{name}")
        shard.symlink_to(tmp_path / f"elsewhere-{name}")
        assert any("symbolic link" in str(p) for p in verify(out).problems)


def test_reads_are_bounded(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 40)  # a hole
    with pytest.raises(JobError, match="at most"):
        read(large)
    for lie in (tmp_path / "zero", tmp_path / "pipe"):
        lie.symlink_to("/dev/zero") if lie.name == "zero" else os.mkfifo(lie)
        with pytest.raises(JobError, match=r"symbolic link|not a regular file"):
            read(lie)
    with pytest.raises(JobError, match="not the name of a file"):
        inside(tmp_path, "../x")


def test_lists_of_inputs_unpack_to_what_they_promise() -> None:
    pieces = InventoryEntries(b"a\0b", {"size": np.array([1, 2])}, np.array([1, 1]))
    good = Inputs({"Reader": pieces}).encode()
    assert Inputs.decode(good).readers["Reader"].names == [b"a", b"b"]
    assert good[:10] == bytes.fromhex("1f8b0800000000000403")  # the same header from every version of Python
    head = json.loads(gzip.decompress(good).split(b"\n")[0])
    for key, value in (("names", 1 << 60), ("names", -5), ("pieces", -1), ("pieces", "x"), ("state", 7)):
        told = {**head, "readers": [{**head["readers"][0], key: value}]}
        with pytest.raises(ValueError, match="not a list of inputs"):
            Inputs.decode(gzip.compress(json.dumps(told).encode() + b"\n" + bytes(100)))
    for bad in (gzip.compress(b"") * 3 + good, good + gzip.compress(b""), good[:-1], good[:-8] + bytes(8), b""):
        with pytest.raises(ValueError, match="not a list of inputs"):  # ours are one member, whole
            Inputs.decode(bad)
    bomb = gzip.compress(bytes(1 << 28), 9)  # 260 kB; without a bound 256 MiB are unpacked and searched
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="not a list of inputs"):
            Inputs.decode(bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()


# -- names that samples give -------------------------------------------------------------------------------------------


class _Named:
    def __init__(self, keys: list[str]) -> None:
        self.names = keys

    def origin(self, index: int) -> Origin:
        return Origin(self.names[index], "x")


@pytest.mark.parametrize("extension", ["gz", "json", "lock", "bin"])
def test_no_sample_takes_the_name_of_an_own_file(tmp_path: Path, extension: str) -> None:
    """Keys made of the names of all own files, whole and in parts, in two cases, as files and as folders."""
    keys = []
    for own in sorted({*OWN, "train-00000-of-00001.jsonl"}):
        stem = own.partition(".")[0]
        for key in (own, stem, f"{own}.x", f"{stem}.{extension}", own.upper(), f"{own}/a", f"{stem}/a", f"./{own}"):
            keys.append(key)
    out = tmp_path / "out"
    config = WriteConfig(out, "train", "files", {}, None, None, {"x": FieldConfig("keep", extension=extension)})
    at = np.arange(len(keys))
    samples = Samples(at.astype(np.int32), at, np.zeros(len(at), np.int64), at, _Named(keys))
    data = Batch.from_list([np.frombuffer(k.encode(), np.uint8) for k in keys], "", samples)
    with Output.open(config, {"seed": 1}, total=len(keys), inputs=lambda: Inputs({})) as output:
        output.add(0, len(keys), samples, {"x": data})
        output.finish({})
    assert verify(out).sound
    Inputs.decode((out / "inputs.gz").read_bytes())
    rows = [json.loads(line) for line in next(out.glob("train-*.jsonl")).read_bytes().splitlines()]
    for key, row in zip(keys, rows, strict=True):
        assert (out / row["files"][0]).read_bytes() == key.encode()
    top = {p.name.lower().split(".")[0].split("-")[0] for p in out.iterdir()}
    assert {own.partition(".")[0].partition("-")[0] for own in OWN if own[0] != "."} <= OWN_NAMES
    for path in out.iterdir():
        if path.name.lower().split(".")[0].split("-")[0] in OWN_NAMES:
            assert path.name in OWN
    assert top


# -- dead ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tfrecord", "files", "lmdb"])
def test_fresh_starts_anew_whatever_bit_of_the_journal_is_flipped(tmp_path: Path, name: str) -> None:
    whole = tmp_path / "whole"
    JOBS[name].run(whole)
    out = tmp_path / "out"
    JOBS[name].run(out)
    good = (out / "journal.jsonl").read_bytes()
    lines = good.splitlines(keepends=True)
    starts = np.cumsum([0, *map(len, lines)])[:-1].tolist()
    for at in [s + 3 for s in starts] + [starts[1] - 1, len(good) // 2]:
        damaged = bytearray(good)
        damaged[at] ^= 1
        (out / "journal.jsonl").write_bytes(damaged)
        JOBS[name].run(out, fresh=True)
        assert digest(out) == digest(whole)


def test_fresh_leaves_a_journal_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text("dear diary\nagain\n")
    (tmp_path / "train-00000-of-00004.tfrecord").write_text("mine")
    with pytest.raises(JobError):
        JOBS["tfrecord"].run(tmp_path, fresh=True)
    assert (tmp_path / "train-00000-of-00004.tfrecord").read_text() == "mine"
    assert (tmp_path / "journal.jsonl").read_text() == "dear diary\nagain\n"


@pytest.mark.parametrize("name", ["tfrecord", "files", "lmdb"])
@pytest.mark.parametrize("when", [0, 10, 25, 38])
def test_an_output_that_is_removed_while_it_is_written(tmp_path: Path, name: str, when: int) -> None:
    """The job ends with a word, leaves nothing that no journal tells of, and the same command starts anew."""
    import shutil

    job, out, whole = JOBS[name], tmp_path / "out", tmp_path / "whole"
    job.run(whole)
    with pytest.raises(JobError, match="run the same command again"):  # noqa: PT012, SIM117
        with Output.open(job.config(out), {"seed": 1}, total=job.total) as output:
            for at in range(0, job.total, 5):
                if at <= when < at + 5:
                    shutil.rmtree(out)
                    out.mkdir()
                output.add(at, at + 5, *job.batch(at, at + 5))
            output.finish({"took": 1.5})
    assert not [p for p in out.iterdir() if p.is_file() and not p.name.startswith(".")]
    job.run(out)
    assert digest(out) == digest(whole)
