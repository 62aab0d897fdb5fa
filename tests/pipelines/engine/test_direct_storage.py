"""readers.numpy with device: gpu: kvikio reads arrays into GPU memory, with the values and rejects of the CPU reader.

With stand-ins for CuPy and kvikio, and with both on a real GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy_format

from dali_run.ops.gpu.device_memory import OutOfMemoryError
from dali_run.pipelines.job.run import run_job
from dali_run.pipelines.python.pipeline import Pipeline
from dali_run.pipelines.show.terminal import plan_view
from dali_run.pipelines.tools.preview import describe_job
from dali_run.readers import npy
from dali_run.readers.fetch import stored_arrays
from tests.kit.engine.small_pieces import shrink
from tests.kit.fake_cupy import faked
from tests.kit.fake_kvikio import Kvikio, installed

SPEC = """
version: 1
name: job
pipeline: {batch_size: 8, num_threads: 2, device: "DEVICE", seed: 3}
graph:
  - {op: random.uniform, range: [0.0, 0.5], shape: [2], out: start}
  - {op: readers.numpy, file_root: IN, READER, out: x}
  - {op: copy, in: x, out: x}
outputs: {x: x}
write: {writer: tfrecord, path: OUT, shard: {samples: 10}, fields: {x: {encode: raw}}}
on_error: {policy: skip, max_errors: 90%}
"""
REGIONS = {
    "whole arrays": "device: gpu",
    "rows": "device: gpu, roi_start: [2], roi_end: [5], roi_axes: [0]",
    "a window": "device: gpu, roi_start: [1, 2], roi_shape: [3, 4]",
    "a window that is padded": "device: gpu, roi_start: [-1, 2], roi_end: [4, 90], out_of_bounds_policy: pad, "
    "fill_value: 7.0",
    "a window that is trimmed": "device: gpu, roi_start: [-1, 2], roi_end: [4, 90], "
    "out_of_bounds_policy: trim_to_shape",
    "a window that not all have": "device: gpu, roi_start: [0, 2], roi_end: [9, 12]",
    "fractions for each sample": "device: gpu, rel_roi_start: $start, rel_roi_shape: [0.4, 0.3]",
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are read in chunks, as large ones are."""
    shrink(monkeypatch, 16 << 10)
    monkeypatch.setattr(npy, "_MIN_DIRECT", 1)
    monkeypatch.setattr(stored_arrays, "_CHUNK", 4096)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arrays of many shapes, in C and Fortran order, with headers of odd lengths, and files that are rejected."""
    root, rng = tmp_path_factory.mktemp("arrays"), np.random.default_rng(4)
    for i in range(24):
        array = rng.standard_normal((int(rng.integers(7, 12)), int(rng.integers(11, 300))), np.float32)
        array = array[:, :0] if i == 9 else np.asfortranarray(array) if i % 5 == 2 else array
        with (root / f"{i:02d}.npy").open("wb") as f:
            npy_format.write_array(f, array, version=(2, 0) if i % 4 == 1 else (1, 0))
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (8, 20), }\n"
    odd = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    assert len(odd) % 4
    (root / "11-odd.npy").write_bytes(odd + rng.standard_normal((8, 20), np.float32).tobytes())
    long = (root / "00.npy").read_bytes()
    size = 6000 + int.from_bytes(long[8:10], "little")
    (root / "12-long.npy").write_bytes(long[:8] + size.to_bytes(2, "little") + long[10:127] + b" " * 6000 + long[127:])
    np.save(root / "05-deep.npy", np.zeros((2, 3, 4), np.float32))
    np.save(root / "06-type.npy", np.zeros((20, 30), np.int32))
    np.save(root / "13-object.npy", np.array([[{}, []]], object), allow_pickle=True)
    (root / "14-short.npy").write_bytes((root / "00.npy").read_bytes()[:-1])
    (root / "15-junk.npy").write_bytes(b"junk" * 500)
    (root / "16-empty.npy").write_bytes(b"")
    os.mkfifo(root / "17-pipe.npy")
    return root


@pytest.fixture
def kvikio() -> Iterator[Kvikio]:
    with installed() as state:
        yield state


def job(folder: Path, reader: str, device: str, out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The files that a job wrote, and its report. A job on a CPU ignores the device of its reader."""
    spec = out.with_suffix(".yaml")
    text = SPEC.replace("IN", str(folder)).replace("OUT", str(out)).replace("READER", reader)
    spec.write_text(text.replace("DEVICE", device))
    run_job(spec, {})
    files = {p.name: p.read_bytes() for p in sorted(out.glob("*.tfrecord"))}
    lost = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
    files["rejects"] = [(r["key"], r["code"], r["message"], r["operator"]) for r in lost]
    return files, json.loads((out / "report.json").read_text())


@pytest.mark.parametrize("region", list(REGIONS))
def test_a_job_writes_what_the_cpu_reader_gives(folder: Path, tmp_path: Path, kvikio: Kvikio, region: str) -> None:
    expected, _ = job(folder, REGIONS[region], "cpu", tmp_path / "cpu")
    gpus = 2 if region == "rows" else 1
    with faked(gpus, memory=True, late=region == "a window") as fake:
        direct, report = job(folder, REGIONS[region], "gpu:0,1" if gpus == 2 else "gpu", tmp_path / "gpu")
        assert fake.blocks == {}
    assert direct == expected
    assert len(expected["rejects"]) >= 6
    assert set(report["uploads"]) == {"by kvikio, compatibility mode"}
    assert all(offset % 4096 == 0 for name, offset, _ in kvikio.reads if name != "11-odd.npy")
    if region == "rows":  # only the rows of a file are read, and the page before them
        assert sum(size for name, _, size in kvikio.reads if name == "20.npy") < (folder / "20.npy").stat().st_size


def test_programs_get_arrays_on_the_gpu(folder: Path, kvikio: Kvikio) -> None:
    from dali_run import fn

    def outputs(device: str) -> list[np.ndarray]:
        pipe = Pipeline(batch_size=9, num_threads=2, device_id=0, prefetch_queue_depth=1)
        files = sorted(str(p) for p in folder.glob("[01]?.npy"))
        with pipe:
            pipe.set_outputs(fn.readers.numpy(device=device, files=files, name="Reader"))
        pipe.build()
        assert pipe.reader_meta("Reader")["epoch_size"] == len(files)
        (batch,) = pipe.run()
        assert type(batch).__name__ == ("TensorListGPU" if device == "gpu" else "TensorListCPU")
        return [np.array(t) for t in (batch.as_cpu() if device == "gpu" else batch)]

    with faked(memory=True):
        for one, other in zip(outputs("gpu"), outputs("cpu"), strict=True):
            np.testing.assert_array_equal(one, other)
    assert kvikio.reads


def test_files_that_change_are_rejected_alone(folder: Path, tmp_path: Path, kvikio: Kvikio) -> None:
    expected, _ = job(folder, "device: gpu", "cpu", tmp_path / "cpu")
    changed = tmp_path / "changed"
    changed.mkdir()
    for path in folder.glob("[0-9][0-9].npy"):
        (changed / path.name).write_bytes(path.read_bytes())

    def cut(path: str) -> None:
        if path.endswith("/03.npy"):
            os.truncate(path, 200)
        if path.endswith("/04.npy") and os.path.exists(path):
            os.remove(path)
            raise OSError("stale file handle")

    kvikio.before_read = cut
    with faked(memory=True):
        direct, report = job(changed, "device: gpu", "gpu", tmp_path / "gpu")
    rejects = direct["rejects"]
    assert [(key, code) for key, code, *_ in rejects] == [("03.npy", "read_failed"), ("04.npy", "read_failed")]
    assert "changed while the job ran" in rejects[0][2]
    assert set(report["uploads"]) == {"by kvikio, compatibility mode"}
    assert len(expected) > 2


def fails(path: str) -> None:
    raise RuntimeError("cuFile: device error")


def test_what_kvikio_cannot_read_the_cpu_reads(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = job(folder, "device: gpu", "cpu", tmp_path / "cpu")
    with faked(memory=True):
        missing, report = job(folder, "device: gpu", "gpu", tmp_path / "missing")
        assert set(report["uploads"]) == {"copied: kvikio is not installed"}
        with installed() as kvikio:
            kvikio.before_read = fails
            failed, report = job(folder, "device: gpu", "gpu", tmp_path / "failed")
            assert {"copied: cuFile: device error", "copied: it failed before"} == set(report["uploads"])
            (tmp_path / "swapped").mkdir()
            np.save(tmp_path / "swapped" / "a.npy", np.ones((20, 300), ">f4"))
            swapped, report = job(tmp_path / "swapped", "device: gpu", "gpu", tmp_path / "big")
            assert set(report["uploads"]) == {"copied: stored in another byte order"}
            monkeypatch.setattr(npy, "_MIN_DIRECT", 1 << 30)
            small, report = job(folder, "device: gpu", "gpu", tmp_path / "small")
            assert set(report["uploads"]) == {"copied: small files"}
            assert not kvikio.reads
    assert failed == small == missing == expected
    assert swapped == job(tmp_path / "swapped", "device: gpu", "cpu", tmp_path / "native")[0]


def test_a_gpu_without_memory_leaves_the_arrays_to_the_cpu(folder: Path, tmp_path: Path, kvikio: Kvikio) -> None:
    """The arrays are on the GPU already when its memory ends: the host fetches them."""
    region = REGIONS["a window that is padded"]
    expected, _ = job(folder, region, "cpu", tmp_path / "cpu")
    with faked(memory=True) as fake:
        alloc = fake.alloc

        def refused(size: int) -> Any:
            if kvikio.reads:
                raise OutOfMemoryError("out of GPU memory")
            return alloc(size)

        fake.allocator = refused
        direct, report = job(folder, region, "gpu", tmp_path / "gpu")
    assert direct == expected
    assert "out of GPU memory: computed on the CPU" in report["fallbacks"]


def test_plans_say_how_arrays_come_to_the_gpu(folder: Path, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    text = SPEC.replace("IN", str(folder)).replace("OUT", str(tmp_path / "o")).replace("DEVICE", "gpu")
    spec.write_text(text.replace("READER", "device: gpu"))
    with faked():
        assert "pip install 'dali-run[gds]'" in str(describe_job(spec)["arrays"])
        with installed() as kvikio:
            kvikio.has_gds = True
            plan = describe_job(spec)
            assert plan["arrays"] == "read into GPU memory by kvikio, GPUDirect Storage"
            assert [o["runs_on"] for o in plan["operators"] if o["name"] == "copy"] == ["gpu"]
            assert plan_view(plan) is not None
    assert describe_job(spec, device="cpu")["arrays"] is None


@pytest.mark.gpu
def test_the_real_kvikio_gives_what_the_cpu_reader_gives(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("kvikio")
    rng = np.random.default_rng(0)
    large = tmp_path / "large"
    large.mkdir()
    for i in range(6):
        array = rng.standard_normal((40 + i, 64, 64), np.float32)
        np.save(large / f"{i}.npy", np.asfortranarray(array) if i == 3 else array)
    volume = "device: gpu, roi_start: [3, 5, 7], roi_shape: [20, 30, 40]"
    cases = [(folder, reader) for reader in REGIONS.values()] + [(large, "device: gpu"), (large, volume)]
    for k, (data, reader) in enumerate(cases):
        expected, _ = job(data, reader, "cpu", tmp_path / f"cpu{k}")
        direct, report = job(data, reader, "gpu", tmp_path / f"gpu{k}")
        assert direct == expected
        assert all(way.startswith("by kvikio, ") for way in report["uploads"])
