"""A state machine over the shard protocol: any sequence of opening, adding, leaving, failing and intruding."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dali_run.ops.errors import JobError
from dali_run.writers.bytes import files_io
from dali_run.writers.shards.output import Output
from dali_run.writers.shards.rejects import RejectLimit
from tests.kit.writers import JOBS, Job, digest

_SEEN: dict[Job, dict[str, str]] = {}


def finished(job: Job) -> dict[str, str]:
    """The files of an uninterrupted run."""
    if job not in _SEEN:
        root = Path(tempfile.mkdtemp())
        job.run(root)
        _SEEN[job] = digest(root)
        shutil.rmtree(root)
    return _SEEN[job]


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.out: Output | None = None
        self.at = 0
        self.safe = 0
        """Positions that no interruption may take back."""

    @initialize(name=st.sampled_from(["tfrecord", "tfrecord_both", "lmdb", "numpy", "webdataset_bytes", "files"]))
    def choose(self, name: str) -> None:
        self.job = JOBS[name]
        self.expected = finished(self.job)

    def start(self, **options: object) -> Output:
        total = self.job.total if self.job.known_total else None
        return Output.open(self.job.config(self.root), {"seed": 1}, total=total, **options)  # type: ignore[arg-type]

    @precondition(lambda self: self.out is None)
    @rule()
    def open(self) -> None:
        self.out = self.start()
        self.at = self.out.resume_from
        assert self.at >= self.safe
        if self.out.finished:
            assert digest(self.root).keys() >= self.expected.keys()

    @precondition(lambda self: self.out is not None and not self.out.finished)
    @rule(n=st.integers(1, 15))
    def add(self, n: int) -> None:
        assert self.out is not None
        stop = min(self.at + n, self.job.total)
        self.out.add(self.at, stop, *self.job.batch(self.at, stop))
        self.at = stop
        assert self.out.written + self.out.rejected == stop

    @precondition(lambda self: self.out is not None)
    @rule()
    def leave(self) -> None:
        assert self.out is not None
        self.out.abort()
        self.out = None

    @precondition(lambda self: self.out is not None and not self.out.finished)
    @rule(n=st.integers(1, 15), after=st.integers(0, 12), code=st.sampled_from([errno.ENOSPC, errno.EIO]))
    def fail(self, n: int, after: int, code: int) -> None:
        """The disk fails while samples are added; perhaps only later than that."""
        left = after

        def hook(operation: str, path: str) -> int | None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(code, os.strerror(code), path)
            return 4000

        files_io.set_hook(hook)
        message = ""
        try:
            self.add(n)
        except JobError as e:
            message = str(e)
            self.out = None
        finally:
            files_io.set_hook(None)
        assert not message or errno.errorcode[code] in message

    @precondition(lambda self: self.out is not None and (self.out.finished or self.at == self.job.total))
    @rule()
    def finish(self) -> None:
        assert self.out is not None
        self.out.finish({})
        self.out = None
        self.safe = self.job.total
        assert digest(self.root) == self.expected

    @precondition(lambda self: self.out is not None)
    @rule()
    def intrude(self) -> None:
        with pytest.raises(JobError, match="another job of this process"):
            self.start()

    @precondition(lambda self: self.out is None and self.safe > 0)
    @rule()
    def change(self) -> None:
        with pytest.raises(JobError, match=r"identity\.seed: was 1, now 2"):
            Output.open(self.job.config(self.root), {"seed": 2}, total=self.job.total if self.job.known_total else None)

    @precondition(lambda self: self.out is None)
    @rule()
    def anew(self) -> None:
        self.out = self.start(fresh=True, reject_limit=RejectLimit(count=100))
        self.at = self.safe = 0
        assert self.out.resume_from == 0

    @invariant()
    def final_names_mean_final_content(self) -> None:
        for name, content in digest(self.root).items():
            if not name.startswith(".") and name not in ("journal.jsonl", "rejects.jsonl"):
                assert self.expected.get(name) == content, name

    def teardown(self) -> None:
        if self.out is not None:
            self.out.abort()
        if hasattr(self, "job"):
            self.job.run(self.root)  # whatever happened, it can be finished
            assert digest(self.root) == self.expected
        shutil.rmtree(self.root)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=25, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow])
