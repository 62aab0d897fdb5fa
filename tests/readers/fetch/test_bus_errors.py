"""Files that are cut short while they are mapped cost their samples, not the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import yaml

from dali_run.ops.codecs import host_decode
from dali_run.pipelines.job.run import REJECTS, run_job
from dali_run.readers.fetch.bus_errors import lost_files
from dali_run.readers.fetch.extents import Mapped
from tests.kit.files.containers import FORMATS

PAGE = os.sysconf("SC_PAGE_SIZE")


def test_lost_pages_read_as_zeros_and_the_file_is_remembered(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "abc"]
    for k, path in enumerate(paths):
        Path(path).write_bytes(bytes([k + 1]) * 4 * PAGE)
    before = lost_files()  # by tests that this process ran earlier
    mapped = Mapped(paths, named=["first", "second", "third"])
    os.truncate(paths[1], PAGE)
    seen: list[bytes] = []
    threads = [threading.Thread(target=lambda: seen.append(mapped.data.tobytes())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = np.repeat(np.array([1, 2, 3], np.uint8), 4 * PAGE)
    expected[5 * PAGE : 8 * PAGE] = 0
    assert seen == [expected.tobytes()] * 2
    assert lost_files() - before == {"second"}
    assert mapped.truncated(mapped.starts).tolist() == [False, True, False]
    Path(paths[1]).write_bytes(b"whole again")
    again = Mapped([paths[1]], named=["second"])
    assert lost_files() == before, "what is opened anew is what it is now"
    assert again.data[:5].tobytes() == b"whole"


def test_bus_errors_of_others_go_to_whom_they_went_before(tmp_path: Path) -> None:
    program = """
import faulthandler, mmap, os, sys
from dali_run.readers.fetch.extents import Mapped
faulthandler.enable()
for name in "ab":
    open(name, "wb").write(bytes(20000))
mapped = Mapped(["a"])
with open("b", "r+b") as file:
    other = mmap.mmap(file.fileno(), 20000)
os.truncate("a", 0)
os.truncate("b", 0)
assert mapped.data[10000] == 0
print("so far", flush=True)
other[10000]
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "so far\n"
    assert done.returncode == -7
    assert "Bus error" in done.stderr, "faulthandler had its turn"


@pytest.mark.parametrize("kind", ["webdataset", "lmdb"])
@pytest.mark.parametrize("isolation", ["none", "all"])
def test_a_container_that_is_cut_short_in_the_midst_of_a_job(
    kind: str, isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It happens between reading a batch (which only maps it) and decoding it: the moment that nothing checks."""
    make, step = FORMATS[kind]
    rng = np.random.default_rng(0)
    pictures = [
        simplejpeg.encode_jpeg(rng.integers(0, 256, (80, 96, 3)).astype(np.uint8), 95, colorsubsampling="444")
        for _ in range(40)
    ]
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    make(cut, pictures)
    make(whole, pictures[:20])
    size = cut.stat().st_size
    calls = 0
    real = host_decode.read_headers

    def read_headers(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:  # the first is the warm-up's
            os.truncate(cut, size // 3 // PAGE * PAGE)
        return real(*args)

    monkeypatch.setattr(host_decode, "read_headers", read_headers)
    name = next(k for k in ("path", "paths") if k in step)
    step = {k: v for k, v in step.items() if k != "keys"}
    spec = {
        "version": 1,
        "pipeline": {"batch_size": 8, "num_threads": 1, "device": "cpu", "isolation": isolation},
        "graph": [
            {**step, name: [str(cut), str(whole)], "out": "data"},
            {"op": "decoders.image", "in": "data", "out": "images"},
        ],
        "outputs": {"images": "images"},
        "write": {"writer": "numpy", "path": str(tmp_path / "out")},
        "on_error": {"policy": "skip", "max_errors": "100%"},
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    result = run_job(tmp_path / "spec.yaml")
    assert result.exit_code == REJECTS
    rejects = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert {r["code"] for r in rejects} == {"read_failed"}
    assert {Path(r["source"]).name for r in rejects} == {"cut"}
    written = result.report["samples"]["written"]
    assert written + len(rejects) == 60
    assert written >= 20, "the other container is whole"
    assert len(rejects) >= 20
