"""The threads beside the one that delivers: order in each lane, two files at a time, one bound for all, failures."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from dali_run.ops.errors import JobError
from dali_run.pipelines.job.run import run_job
from dali_run.writers import base
from dali_run.writers.bytes import background, files_io
from dali_run.writers.bytes.background import WorkQueue, WriterThreads, waiting_for
from dali_run.writers.shards import output
from dali_run.writers.shards.output import Output
from tests.kit.writers import JOBS, digest
from tests.writers.shards.crash import check_final

PATIENCE = 60


def test_lanes_work_at_the_same_time_each_in_order() -> None:
    line, met, seen = WorkQueue("test", 100, 2), threading.Barrier(2), []
    for k in range(20):
        line.put(lambda k=k: seen.append((0, k)), 1, 0)
        line.put(lambda k=k: seen.append((1, k)), 1, 1)
    line.put(lambda: met.wait(PATIENCE), 1, 0)
    line.put(lambda: met.wait(PATIENCE), 1, 1)
    line.wait()
    line.close()
    for thread in (0, 1):
        assert [k for where, k in seen if where == thread] == list(range(20))


def test_the_lane_with_the_least_to_do_is_next() -> None:
    line, go = WorkQueue("test", 100, 3), threading.Event()
    assert line.least_busy() == 0
    for thread, weight in ((0, 30), (2, 10), (1, 20)):
        line.put(lambda: go.wait(PATIENCE), weight, thread)
    assert line.least_busy() == 2
    line.put(lambda: None, 15, 2)
    assert line.least_busy() == 1
    go.set()
    line.wait()
    assert line.idle
    line.close()


def test_all_lanes_share_a_bound() -> None:
    line, go, put = WorkQueue("test", 100, 2), threading.Event(), threading.Event()

    def deliver() -> None:
        line.put(lambda: None, 41, 1)
        put.set()

    line.put(lambda: go.wait(PATIENCE), 60, 0)
    thread = threading.Thread(target=deliver)
    thread.start()
    assert not put.wait(0.1), "there is no room, though lane 1 is idle"
    go.set()
    assert put.wait(PATIENCE)
    line.put(lambda: None, 1000, 0)  # more than fits: alone
    thread.join()
    line.wait()
    line.close()


def test_a_failure_ends_its_lane_and_what_comes_later() -> None:
    line, go, seen = WorkQueue("test", 100, 2), threading.Event(), []

    def fail() -> None:
        raise OSError("full")

    line.put(lambda: go.wait(PATIENCE), 1, 0)
    line.put(lambda: go.wait(PATIENCE), 1, 1)
    line.put(lambda: seen.append("before"), 1, 1)
    failing = line.put(fail, 1, 0)
    behind = line.put(lambda: seen.append("behind"), 1, 0)
    go.set()
    for future in (failing, behind):
        with pytest.raises(OSError, match="full"):
            future.result()
    with pytest.raises(OSError, match="full"):
        line.put(lambda: seen.append("later"), 1, 0)
    line.put(lambda: seen.append("elsewhere"), 1, 1)
    with pytest.raises(OSError, match="full"):
        line.wait()
    line.close()
    assert seen == ["before", "elsewhere"]


def test_a_failure_is_its_owner_s_alone() -> None:
    """The index of a complete shard may be in the lane in which the next shard's records failed."""
    line = WorkQueue("test", 100, 2)
    with pytest.raises(OSError, match="full"):
        line.put(lambda: _raise(OSError("full")), 1, 0, "one").result()
    line.put(lambda: None, 1, 0, "other").result()
    for thread in (0, 1):
        with pytest.raises(OSError, match="full"):
            line.put(lambda: None, 1, thread, "one")
    line.fail(OSError("all"))
    with pytest.raises(OSError, match="full"):
        line.put(lambda: None, 1, 0, "other")
    line.close()


def _raise(error: Exception) -> None:
    raise error


def test_what_waits_in_any_lane_can_be_dropped() -> None:
    line, go, seen = WorkQueue("test", 100, 2), threading.Event(), []
    futures = []
    for thread in (0, 1):
        line.put(lambda: go.wait(PATIENCE), 1, thread)
        futures.append(line.put(lambda: seen.append(1), 1, thread))
    line.fail(OSError("closed"))
    go.set()
    for future in futures:
        with pytest.raises(OSError, match="closed"):
            future.result()
    line.close()
    assert not seen


@pytest.mark.parametrize("name", ["tfrecord", "webdataset", "lmdb"])
def test_the_next_shard_is_written_while_the_last_one_still_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first shard's file waits in its first write for the second one's; all the same it is published first."""
    JOBS[name].run(tmp_path / "expected")
    monkeypatch.setattr(base, "LARGE", 1)
    monkeypatch.setattr(files_io, "_hook", None)
    second = threading.Event()
    waited: list[bool] = []

    def hook(operation: str, path: str) -> int | None:
        if operation == "write" and not path.endswith(".jsonl"):
            if "00001-of" in path:
                second.set()
            elif "00000-of" in path and ".idx" not in path:
                waited.append(second.wait(PATIENCE))
        return None

    files_io.set_hook(hook)
    JOBS[name].run(tmp_path / "out")
    assert waited
    assert all(waited)
    assert digest(tmp_path / "out") == digest(tmp_path / "expected")
    entries = [json.loads(line) for line in (tmp_path / "out" / "journal.jsonl").read_text().splitlines()]
    assert [e["positions"][0] for e in entries if "shard" in e] == [0, 12, 24, 36]


def test_a_failure_of_the_next_shard_does_not_lose_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second shard cannot be written, while the first one, complete, is still being: that is published."""
    job = JOBS["tfrecord"]
    job.run(tmp_path / "expected")
    monkeypatch.setattr(base, "LARGE", 1)
    monkeypatch.setattr(files_io, "_hook", None)
    failed = threading.Event()

    def hook(operation: str, path: str) -> int | None:
        if operation == "write" and "00001-of" in path:
            failed.set()
            raise OSError(28, "No space left on device", path)
        if operation == "write" and "00000-of" in path and ".idx" not in path:
            assert failed.wait(PATIENCE)
        return None

    files_io.set_hook(hook)
    with pytest.raises(JobError, match="No space left"):
        job.run(tmp_path / "out")
    files_io.set_hook(None)
    assert len(list((tmp_path / "out").glob("train-00000*"))) == 2
    assert not list((tmp_path / "out").glob("train-00001*"))
    job.run(tmp_path / "out")
    assert digest(tmp_path / "out") == digest(tmp_path / "expected")


@pytest.mark.parametrize(
    ("budget", "waiting"), [(1 << 20, 128 << 20), (4 << 30, 128 << 20), (16 << 30, 512 << 20), (1 << 40, 1 << 30)]
)
def test_what_may_wait_follows_the_memory_budget(budget: int, waiting: int) -> None:
    assert waiting_for(budget) == waiting


def test_a_job_lets_as_much_wait_as_its_budget_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process, and one of several: each from its own budget."""
    (tmp_path / "in" / "a").mkdir(parents=True)
    for k in range(4):
        (tmp_path / "in" / "a" / f"{k}.jpg").write_bytes(b"bytes")
    reader = {"op": "readers.file", "file_root": str(tmp_path / "in"), "out": ["x", "label"]}
    write = {"writer": "tfrecord", "path": "", "shard": {"samples": 2}, "fields": {"x": {"encode": "keep"}}}
    spec = {"version": 1, "name": "job", "pipeline": {"device": "cpu", "num_threads": 1, "memory": {"host": "16GiB"}},
            "graph": [reader], "outputs": {"x": "x"}, "write": write}  # fmt: skip
    asked: list[int] = []
    plain = WriterThreads.__init__
    monkeypatch.setattr(
        WriterThreads, "__init__", lambda self, waiting: (asked.append(waiting), plain(self, waiting))[1]
    )
    for k, part in enumerate((None, (0, 2))):
        file = tmp_path / f"{k}.json"
        file.write_text(json.dumps(spec | {"write": write | {"path": str(tmp_path / f"out{k}")}}))
        assert run_job(file, part=part).exit_code == 0
    assert asked == [512 << 20] * 2


ALONE = ["tfrecord", "webdataset", "lmdb", "recordio", "numpy"]


@pytest.mark.parametrize("name", ALONE)
def test_large_records_are_framed_while_the_next_batches_are_delivered(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Framing waits until all batches are delivered; the output is the same."""
    JOBS[name].run(tmp_path / "expected")
    monkeypatch.setattr(base, "LARGE", 1)
    delivered, who = threading.Event(), set()
    put = output._put

    def waiting(*given: Any) -> None:
        assert delivered.wait(PATIENCE)
        who.add(threading.current_thread())
        put(*given)

    monkeypatch.setattr(output, "_put", waiting)
    finish = output.Output._finish_shards
    monkeypatch.setattr(output.Output, "_finish_shards", lambda self: (delivered.set(), finish(self)))
    monkeypatch.setattr(background, "_SHARDS", 10)
    JOBS[name].run(tmp_path / "out")
    assert threading.current_thread() not in who
    assert len(who) == background.FRAMERS
    assert digest(tmp_path / "out") == digest(tmp_path / "expected")


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("when", range(0, 9, 2))
def test_a_failure_while_records_are_framed_ends_the_job_which_can_go_on(
    name: str, when: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not intact. What is published is part of what is expected; a rerun ends in the same bytes."""
    JOBS[name].run(tmp_path / "expected")
    monkeypatch.setattr(base, "LARGE", 1)
    put, calls = output._put, iter(range(1000))

    def failing(shard: Any, records: Any, intact: Any) -> None:
        def cut_short() -> None:
            raise JobError("the input was cut short")

        put(shard, records, cut_short if next(calls) == when else intact)

    with monkeypatch.context() as patch:
        patch.setattr(output, "_put", failing)
        with pytest.raises(JobError, match="cut short"):
            JOBS[name].run(tmp_path / "out")
    check_final(tmp_path / "out", digest(tmp_path / "expected"))
    JOBS[name].run(tmp_path / "out")
    assert digest(tmp_path / "out") == digest(tmp_path / "expected")


def test_who_stops_first_gets_the_complete_shards_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that still wait to be framed, too; what is left of the open one is removed."""
    job = JOBS["tfrecord"]
    monkeypatch.setattr(base, "LARGE", 1)
    with Output.open(job.config(tmp_path), {"seed": 1}, total=job.total) as out:
        for start in (0, 5, 10, 15, 20, 25):
            out.add(start, start + 5, *job.batch(start, start + 5))
    entries = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert [e["positions"] for e in entries if "shard" in e] == [[0, 12], [12, 24]]
    assert not [p for p in tmp_path.iterdir() if ".tmp" in p.name]


def test_shards_that_end_by_bytes_are_framed_where_they_are_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames decide where a shard ends."""
    monkeypatch.setattr(base, "LARGE", 1)
    monkeypatch.setattr(output, "_put", lambda *_: pytest.fail("framed apart"))
    for name in ("tfrecord_bytes", "numpy_bytes", "files"):
        JOBS[name].run(tmp_path / name)
