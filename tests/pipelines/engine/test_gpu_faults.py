"""Faults of a real GPU: no memory at any allocation, kernels that go astray, a device that is gone. Nothing
is lost: the job is right, or it ends with the reason and the same command finishes it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_run.ops.gpu.lane import gpu_count
from dali_run.pipelines.job.run import CLEAN, FAILED, REJECTS
from dali_run.writers.shards.verify import verify

pytestmark = pytest.mark.gpu(emulated=False)  # in processes of their own

SPEC = """
version: 1
name: faults
pipeline: {batch_size: 8, num_threads: 2, device: DEVICE, seed: 3}
graph:
  - {op: readers.file, file_root: IN, file_filters: ["*"], out: [x, label]}
  - {op: decoders.image, in: x, out: x}
  - {op: resize, in: x, size: [24, 24], out: x}
outputs: {x: x}
write: {writer: files, path: OUT, shard: {samples: 10}, fields: {x: {encode: npy}}}
"""

PROGRAM = """
import faulthandler, json, sys
faulthandler.dump_traceback_later(LIMIT, exit=True)
import cupy
from dali_run.pipelines.job.run import run_job
what, device, jobs = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
calls, fault = 0, 0
pool = cupy.get_default_memory_pool()
pinned = cupy.cuda.PinnedMemoryPool()
def now():
    global calls
    calls += 1
    return calls == fault
def astray():
    with cupy.cuda.Device(device):
        kernel = cupy.RawKernel('extern "C" __global__ void astray(int *at) { at[threadIdx.x] = 1; }', "astray")
        kernel((1,), (32,), (cupy.uint64(64),))
def allocate(size):
    if what == "memory" and now():
        raise cupy.cuda.memory.OutOfMemoryError(size, 0, 0)
    if what == "astray" and now():
        astray()
    return pool.malloc(size)
def lock(size):
    if what == "page-locked" and now():
        raise cupy.cuda.runtime.CUDARuntimeError(2)
    return pinned.malloc(size)
cupy.cuda.set_allocator(allocate)
cupy.cuda.set_pinned_memory_allocator(lock)
for spec, fault in jobs:
    calls = 0
    result = run_job(spec)
    print(json.dumps([result.exit_code, result.message, calls]), flush=True)
    if calls < fault:
        break
"""
LIMIT = 280
"""Seconds until a process that hangs says where it does, and ends."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files for every decoder: baseline and progressive JPEGs, PNG, WebP, one damaged."""
    folder = tmp_path_factory.mktemp("faults") / "in" / "a"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(4)
    for i in range(40):
        image = Image.fromarray(rng.integers(0, 256, (30 + i % 7, 50 - i % 5, 3)).astype(np.uint8))
        file = io.BytesIO()
        kind = ("JPEG", "JPEG", "JPEG", "PNG", "WEBP")[i % 5]
        image.save(file, kind, **({"progressive": True} if i % 5 == 2 else {}))
        data = file.getvalue()
        (folder / f"{i:02d}.{kind.lower()}").write_bytes(data[: len(data) // 2] if i == 17 else data)
    return folder.parents[1]


def specs(place: Path, outs: list[str], device: str) -> list[Path]:
    """A spec that writes to each of ``outs``."""
    text = SPEC.replace("DEVICE", device).replace("IN", str(place / "in"))
    for out in outs:
        (place / f"{out}.yaml").write_text(text.replace("OUT", str(place / out)))
    return [place / f"{out}.yaml" for out in outs]


def jobs(
    place: Path, outs: dict[str, int], what: str = "", device: str = "gpu", of: int = 0
) -> list[tuple[int, str, int]]:
    """Of jobs that write to ``outs``, one after the other in a process of their own: exit code, message, and how often
    the fault could have happened. Each has its fault at the number that it is given, and the last is the first that
    ends before its fault."""
    given = [[str(spec), number] for spec, number in zip(specs(place, list(outs), device), outs.values(), strict=True)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("LIMIT", str(LIMIT)), what, str(of), json.dumps(given)],
        capture_output=True, text=True, timeout=LIMIT + 20, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [(code, message, calls) for code, message, calls in found]


def job(
    place: Path, out: str, what: str = "", number: int = 0, device: str = "gpu", of: int = 0
) -> tuple[int, str, int]:
    """`jobs`, of one."""
    return jobs(place, {out: number}, what, device, of)[0]


def same(out: Path, want: Path, levels: int) -> None:
    names = sorted(p.relative_to(want) for p in want.rglob("*.npy"))
    assert sorted(p.relative_to(out) for p in out.rglob("*.npy")) == names
    assert len(names) == 39
    for name in names:
        found: Any = np.load(out / name).astype(int)
        assert np.abs(found - np.load(want / name)).max() <= levels, name
    assert (out / "rejects.jsonl").read_bytes() == (want / "rejects.jsonl").read_bytes()
    assert verify(out).sound


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    code, message, _ = job(place, "whole")
    assert code == REJECTS, message
    return place / "whole"


@pytest.mark.parametrize("what", ["memory", "page-locked"])
def test_every_allocation_of_a_job_fails_in_turn(place: Path, whole: Path, what: str) -> None:
    """Until the number of the failing one is larger than there are: in one process, one job after the other."""
    outs = {f"{what}-{number}": number for number in [*range(1, 12), *range(12, 400, 7)]}
    found = jobs(place, outs, what)
    for (out, number), (code, message, _) in zip(outs.items(), found, strict=False):
        assert code == REJECTS, (number, message)
        same(place / out, whole, 1)  # the CPU may have stood in
    assert found[-1][2] < outs[list(outs)[len(found) - 1]]  # past the last
    sys.stdout.write(f"| GPU: the i-th allocation ({what}) of a job fails | {len(found)} | 0 |\n")


@pytest.mark.parametrize("what", ["memory", "page-locked"])
@pytest.mark.parametrize("number", [1, 3, 7])
def test_an_allocation_of_the_first_job_of_a_process_fails(place: Path, whole: Path, what: str, number: int) -> None:
    """Whatever is made once a process is made there."""
    code, message, _ = job(place, f"first-{what}-{number}", what, number)
    assert code == REJECTS, message
    same(place / f"first-{what}-{number}", whole, 1)


@pytest.mark.parametrize("number", [1, 4, 9, 20])
def test_a_kernel_that_goes_astray(place: Path, whole: Path, number: int) -> None:
    out = f"astray-{number}"
    code, message, calls = job(place, out, "astray", number)
    if calls >= number:
        assert code == FAILED
        assert "the GPU failed" in message
        assert "Run the same command again" in message
    code, message, _ = job(place, out)
    assert code in (CLEAN, REJECTS), message
    same(place / out, whole, 0)


@pytest.mark.skipif(gpu_count() < 2, reason="needs two GPUs")
def test_one_of_two_gpus_is_lost(place: Path, whole: Path) -> None:
    """The second one, in the midst of a job that deals its batches to both; one of them finishes it."""
    code, message, _ = job(place, "lost", "astray", 6, "gpu:all", of=1)
    assert code == FAILED, message
    assert "the GPU failed" in message
    code, message, _ = job(place, "lost")
    assert code == REJECTS, message
    same(place / "lost", whole, 0)
