"""A device that fails for good while a job runs (a kernel that writes outside, a GPU that falls off the bus): the job
ends with that reason, and the same command continues it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.gpu import watchdog
from dali_run.pipelines.job.run import CLEAN, FAILED, run_job
from tests.kit.engine.short_of_memory import picture, shards
from tests.kit.fake_cupy import Stream, Work, faked

SPEC = """
version: 1
name: lost
pipeline: {batch_size: 4, num_threads: 2, device: gpu, seed: 3}
graph:
  - {op: readers.file, file_root: IN, out: [x, label]}
  - {op: decoders.image, in: x, out: x}
  - {op: resize, in: x, size: [16, 16], out: x}
outputs: {x: x, label: label}
write: {writer: tfrecord, path: OUT, shard: {samples: 5}, fields: {x: {encode: raw}, label: {}}}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    rng = np.random.default_rng(4)
    (tmp_path / "in" / "a").mkdir(parents=True)
    for i in range(24):
        (tmp_path / "in" / "a" / f"{i:02d}.jpg").write_bytes(picture(rng, 24 + i % 5, 40 - i % 7))
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("IN", str(tmp_path / "in")).replace("OUT", str(tmp_path / "out")))
    return file


class CUDARuntimeError(RuntimeError):
    """As CuPy's."""


class Sticky:
    """From the ``first`` call of ``what`` on, the device answers everything with the same error."""

    def __init__(self, what: str, first: int) -> None:
        self.what, self.left, self.lost = what, first, False

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if name == self.what and not self.lost:
                self.left -= 1
                self.lost = self.left <= 0
            if self.lost:
                raise CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")
            return call(*args, **kwargs)

        return called


@pytest.mark.parametrize("what", ["synchronize", "submit", "alloc"])
@pytest.mark.parametrize("first", [1, 2])
def test_a_job_whose_device_is_lost_continues_later(
    spec: Path, monkeypatch: pytest.MonkeyPatch, what: str, first: int
) -> None:
    with faked(memory=True):
        assert run_job(spec, {"write.path": str(spec.parent / "whole")}).exit_code == CLEAN
    with faked(memory=True) as fake, monkeypatch.context() as patch:
        sticky = Sticky(what, first)
        for module, name in ((Work, "submit"), (Stream, "synchronize")):
            patch.setattr(module, name, sticky.wrap(name, getattr(module, name)))
        fake.allocator = sticky.wrap("alloc", fake.alloc)
        result = run_job(spec)
    assert result.exit_code == FAILED
    assert "the GPU failed: cudaErrorIllegalAddress: an illegal memory access was encountered; " in result.message
    assert result.message.endswith("Run the same command again: it continues after the last finished shard")
    assert result.report["samples"]["read"] < 24
    with faked(memory=True):
        assert run_job(spec).exit_code == CLEAN
    assert shards(spec.parent / "out") == shards(spec.parent / "whole")


class Endless:
    """The ``first``th wait for the device does not end before `over`. Rounds of the watchdog begin after its start."""

    def __init__(self, first: int) -> None:
        self.left, self.begun, self.over = first, threading.Event(), threading.Event()

    def wrap(self, synchronize: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                self.begun.set()
                self.over.wait()
            return synchronize(*args, **kwargs)

        return called


@pytest.mark.parametrize("first", [1, 3])
def test_a_job_whose_gpu_hangs_ends_with_that_reason_and_continues(
    spec: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    with faked(memory=True):
        assert run_job(spec, {"write.path": str(spec.parent / "whole")}).exit_code == CLEAN
    endless = Endless(first)
    monkeypatch.setattr(watchdog, "_watchdog", watchdog._Watchdog())
    with faked(memory=True), monkeypatch.context() as patch:
        patch.setattr(Stream, "synchronize", endless.wrap(Stream.synchronize))
        patch.setattr(watchdog, "_pause", lambda seconds: endless.begun.wait() and time.sleep(0.001))
        result = run_job(spec, {"pipeline.gpu_timeout": 1})
        endless.over.set()
    assert result.exit_code == FAILED
    assert "GPU 0 hangs: a batch did not finish within 1 s (pipeline.gpu_timeout)" in result.message
    assert result.message.endswith("Run the same command again: it continues after the last finished shard")
    assert watchdog.any_hung()
    with faked(memory=True):
        assert run_job(spec).exit_code == CLEAN
    assert shards(spec.parent / "out") == shards(spec.parent / "whole")


PROGRAM = """
import json, sys
from dali_run.ops.gpu.lane import Lane
from dali_run.pipelines.job.run import run_job
if sys.argv[2] == "astray":
    import cupy
    kernel = cupy.RawKernel('extern "C" __global__ void astray(int *at) { at[threadIdx.x] = 1; }', "astray")
    enter, calls = Lane.__enter__, []
    def entered(lane):
        enter(lane)
        calls.append(1)
        if len(calls) == 2:
            kernel((1,), (32,), (cupy.uint64(64),))
        return lane
    Lane.__enter__ = entered
result = run_job(sys.argv[1])
print(json.dumps([result.exit_code, result.message]))
"""


@pytest.mark.gpu(emulated=False)
def test_a_kernel_that_goes_astray_on_a_real_gpu(spec: Path) -> None:
    """In a process of its own: nothing else can use the GPU in it afterwards."""

    def job(how: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(spec), how], capture_output=True, text=True,
                              timeout=280, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        code, message = json.loads(done.stdout.splitlines()[-1])
        return code, message

    assert run_job(spec, {"write.path": str(spec.parent / "whole")}).exit_code == CLEAN
    code, message = job("astray")
    assert code == FAILED
    assert "the GPU failed" in message
    assert "Run the same command again" in message
    assert job("sound")[0] == CLEAN
    assert shards(spec.parent / "out") == shards(spec.parent / "whole")
