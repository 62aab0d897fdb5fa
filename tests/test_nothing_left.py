"""Work that cannot have a file, a thread or a process, or that is interrupted while it asks for one: an error in words,
and nothing stays open. See tests/kit/refused.py."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dali_run.fn as fn
from dali_run.ops.codecs.format import Header
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.isolation.processes import Isolation
from dali_run.ops.compiled import ahead
from dali_run.ops.compiled.signatures import Loop
from dali_run.ops.errors import DaliRunError, JobError
from dali_run.pipeline import pipeline_def
from dali_run.pipelines.fleet.job_message import JobMessage, WorkerResources
from dali_run.pipelines.fleet.processes import Processes
from dali_run.pipelines.job.run import run_job
from dali_run.pipelines.tools.sample_data import make_sample_data
from dali_run.writers.shards.lock import Lock

from .fuzz.jobs import picture
from .kit import refused
from .kit.jobs.small_spec import small_spec

Work = Callable[[], object]


def checked(work: Work, folder: Path, error: Any, step: int = 1, expected: tuple[type[BaseException], ...] = ()) -> int:
    """How many requests of ``work`` were refused, one after the other. Nothing may stay of any, and what is raised is
    an error for people, or the refusal itself."""
    work()  # what is made once and kept is there
    count = 0
    for what, raised, left in refused.each_refused(work, folder / "temporary", error, step):
        assert not left, f"{what}: {left}"
        wanted = (KeyboardInterrupt,) if error is refused.interrupted else (DaliRunError, OSError, *expected)
        assert raised is None or isinstance(raised, (*wanted, StoppedError)), f"{what}: {raised!r}"
        count += 1
    return count


class StoppedError(Exception):
    """A job that ended with an error, as it should."""


ERRORS = pytest.mark.parametrize("error", [refused.too_many, refused.interrupted], ids=["refused", "interrupted"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_sample_data(folder / "all", 8)
    return folder / "all"


class Numbers:
    """A source for worker processes."""

    def __call__(self, info: Any) -> Any:
        return np.array([info.idx_in_epoch], np.int32)


@ERRORS
def test_processes_of_external_source(error: Any, tmp_path: Path) -> None:
    @pipeline_def(batch_size=4, num_threads=1, device_id=None, py_num_workers=2, py_start_method="fork")
    def numbers() -> Any:
        return fn.external_source(source=Numbers(), parallel=True, batch=False)

    def work() -> None:
        numbers().build()  # and dropped

    assert checked(work, tmp_path, error) >= 4


@ERRORS
def test_a_pipeline_that_is_dropped(error: Any, tmp_path: Path, data: Path) -> None:
    @pipeline_def(batch_size=4, num_threads=2, device_id=None)
    def images() -> Any:
        encoded, _ = fn.readers.file(file_root=str(data / "train"))
        return fn.resize(fn.decoders.image(encoded), size=[20, 20])

    def work() -> None:
        images().run()

    assert checked(work, tmp_path, error, expected=(RuntimeError,)) >= 4


@ERRORS
def test_processes_of_decoders(error: Any, tmp_path: Path) -> None:
    path = tmp_path / "one.png"
    picture(random.Random(1)).save(path)
    encoded = np.frombuffer(path.read_bytes(), np.uint8)

    def work() -> None:
        with Isolation() as isolation:
            isolation.decode(memoryview(encoded), _header(encoded), True, 1 << 20)

    assert checked(work, tmp_path, error, step=2) >= 4


def _header(encoded: Any) -> Header:
    return probe(memoryview(encoded))


@ERRORS
def test_processes_of_a_job(error: Any, tmp_path: Path, data: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(small_spec(data / "train", tmp_path / "out"))
    job = JobMessage(str(spec), spec.read_text(), {}, "cpu", None, str(tmp_path))

    def work() -> None:
        with Processes(job, [WorkerResources("one", 1, 1.0, (), None)]):
            pass

    assert checked(work, tmp_path, error) >= 4


@pytest.mark.skipif(sys.version_info < (3, 11, 5), reason="this Python's Popen leaves pipes open if it fails")
@ERRORS
def test_processes_that_compile(error: Any, tmp_path: Path) -> None:
    loops = [Loop("no_such_module", "f", ())] * 2

    def work() -> None:
        ahead.compile_all(loops, 2, lambda *_: None)

    assert checked(work, tmp_path, error, step=2, expected=(RuntimeError,)) >= 2


@ERRORS
@pytest.mark.parametrize("format", ["tfrecord", "webdataset", "lmdb", "recordio", "parquet", "numpy"])
def test_readers(error: Any, format: str, written: Path, tmp_path: Path) -> None:
    reader = {
        "tfrecord": lambda path: fn.readers.tfrecord(path=path),
        "webdataset": lambda path: fn.readers.webdataset(paths=path, ext=["npy"])[0],
        "lmdb": lambda path: fn.readers.lmdb(path=path),
        "recordio": lambda path: fn.readers.mxnet(path=path)[0],
        "parquet": lambda path: fn.readers.parquet(path=path, columns=["label"]),
        "numpy": lambda path: fn.readers.numpy(files=[path]),
    }[format]
    path = str(next(p for p in sorted(written.rglob("*")) if f"out-{format}" in p.parts and p.suffix in ENDINGS))

    @pipeline_def(batch_size=2, num_threads=1, device_id=None)
    def records() -> Any:
        return reader(path)

    def work() -> None:
        records().run()

    assert checked(work, tmp_path, error, expected=(RuntimeError,)) >= 1


ENDINGS = (".tfrecord", ".tar", ".mdb", ".rec", ".parquet", ".npy")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A data set of each format that is written."""
    folder = tmp_path_factory.mktemp("written")
    for writer in ("tfrecord", "webdataset", "lmdb", "recordio", "parquet", "numpy"):
        encode = {"webdataset": "npy", "recordio": "png"}.get(writer, "raw")
        spec = folder / f"{writer}.yaml"
        spec.write_text(small_spec(data / "train", folder / f"out-{writer}", writer=writer, encode=encode))
        result = run_job(spec)
        assert result.exit_code == 0, result.message
    return folder


@ERRORS
@pytest.mark.parametrize(("writer", "encode"), [("webdataset", "png"), ("parquet", "raw")])
def test_jobs(error: Any, writer: str, encode: str, tmp_path: Path, data: Path) -> None:
    spec, out = tmp_path / "spec.yaml", tmp_path / "out"
    spec.write_text(small_spec(data / "train", out, writer=writer, encode=encode))

    def work() -> None:
        shutil.rmtree(out, ignore_errors=True)
        result = run_job(spec)
        assert "taken the output over" not in result.message
        if result.exit_code:
            raise StoppedError(result.message)

    assert checked(work, tmp_path, error, step=3, expected=(RuntimeError,)) >= 10


def test_what_could_not_be_opened_may_be_tried_again(tmp_path: Path, data: Path) -> None:
    """It gave a bare AssertionError, and worker processes that had not started were forgotten."""
    root = tmp_path / "later"

    @pipeline_def(batch_size=2, num_threads=1, device_id=None)
    def labels() -> Any:
        return fn.readers.file(file_root=str(root))[1]

    pipe = labels()
    for attempt in (pipe.build, pipe.build, pipe.run, pipe.reader_meta):
        with pytest.raises(JobError, match="later"):
            attempt()
    root.symlink_to(data / "train")
    assert len(pipe.run()[0]) == 2


def test_a_checkpoint_that_does_not_fit_is_refused_each_time(data: Path) -> None:
    @pipeline_def(batch_size=2, num_threads=1, device_id=None, enable_checkpointing=True)
    def labels(names: list[str]) -> Any:
        return tuple(fn.readers.file(file_root=str(data / "train"), name=n)[1] for n in names)

    state = labels(["a"]).checkpoint()
    pipe = labels(["a", "b"], checkpoint=state)
    for _ in range(2):
        with pytest.raises((DaliRunError, ValueError), match="checkpoint"):
            pipe.run()


def test_a_lock_stays_its_owners_whatever_the_machine_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs ended with "process N has taken the output over", N being their own."""
    lock = Lock(tmp_path / "lock")
    monkeypatch.setattr("socket.gethostname", lambda: "another-name")
    with refused.refusing(1, refused.too_many):
        lock.check()
    lock.release()
    assert not (tmp_path / "lock").exists()


def test_a_log_that_is_too_short_is_not_left_open(tmp_path: Path, data: Path) -> None:
    spec, out, mine = tmp_path / "spec.yaml", tmp_path / "out", tmp_path / "data"
    shutil.copytree(data / "train", mine)
    (mine / "landscape" / "bad.jpg").write_bytes(b"no picture")
    spec.write_text(small_spec(mine, out))
    assert run_job(spec).exit_code == 3
    (out / "rejects.jsonl").write_bytes(b"")
    (out / "manifest.json").unlink()
    with refused.Left(tmp_path / "temporary") as left, pytest.raises(JobError, match="shorter than the journal"):
        run_job(spec)
    assert not left.found
