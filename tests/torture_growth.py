"""Faults while inputs are added to an output, and while an output goes to a store: every file operation is the last one
in turn. Part of `make torture`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.torture_isolation import Row

SPEC = """\
version: 1
name: small
vars: {data: "", out: ""}
pipeline: {batch_size: 5, num_threads: 2, device: cpu, seed: 3}
graph:
  - {op: readers.file, name: Reader, file_root: "${data}", shuffle: full, out: [jpegs, labels]}
  - {op: decoders.image_random_crop, in: jpegs, out: images}
  - {op: resize, in: images, size: [24, 24], out: images}
outputs: {image: images, label: labels}
write: {writer: WRITER, path: "${out}", shard: {samples: 5}, fields: {image: {encode: png}, label: {}}}
on_error: {policy: skip}
"""


def rows(work: Path, quick: bool) -> Iterator[Row]:
    """Additions for three formats; uploads."""
    from tests.torture import sample_data

    data = sample_data(work, 3)
    for writer in ("tfrecord", "webdataset", "files"):
        spec = work / f"{writer}.yaml"
        spec.write_text(SPEC.replace("WRITER", writer))
        yield _additions(work / writer, spec, data, 9 if quick else 1)
    yield _uploads(work / "store", work / "tfrecord.yaml", data, 9 if quick else 1)


def die_at(act: Callable[[], Any], at: int) -> bool:
    """``act`` in a child that ends before its ``at``-th file operation; False where it came to its end."""
    from dali_run.writers.bytes import files_io

    left = [at]

    def hook(operation: str, path: str) -> None:
        left[0] -= 1
        if left[0] <= 0:
            os._exit(77)

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            files_io.set_hook(hook)
            act()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (0, 77):
        raise AssertionError(f"the child ended with {code}")
    return code == 77


def _additions(place: Path, spec: Path, data: Path, step: int) -> Row:
    """Every third picture comes later."""
    from dali_run.pipelines.job.run import run_job
    from tests.torture import content

    place.mkdir()
    shutil.copytree(data, place / "data")
    held = sorted((place / "data").rglob("*.jpg"))[::3]
    later = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in held}
    for path in held:
        path.unlink()

    def run(append: bool) -> int:
        changes = {"data": str(place / "data"), "out": str(place / "out")}
        return run_job(spec, changes, append=append).exit_code

    run(False)
    shutil.copytree(place / "out", place / "first")
    for path, (text, time) in later.items():
        path.write_bytes(text)
        os.utime(path, ns=(time, time))
    run(True)
    expected = content(place / "out")
    bad: list[str] = []
    tried = 0
    for at in range(1, 100_000, step):
        shutil.rmtree(place / "out")
        shutil.copytree(place / "first", place / "out")
        if not die_at(lambda: run(True), at):
            break
        tried += 1
        if run(True) not in (0, 3) or content(place / "out") != expected:
            bad.append(f"killed at operation {at}")
    return Row(f"{spec.stem}: killed at each file operation of run --append, then again", tried, bad)


def _uploads(place: Path, spec: Path, data: Path, step: int) -> Row:
    """A store on disk, so that it outlives its writers; every second time the staging folder is lost, too."""
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    from dali_run.pipelines.job.run import run_job
    from tests.torture import content

    class Disk(LocalFileSystem):
        protocol = "torture"

        @classmethod
        def _strip_protocol(cls, path: Any) -> Any:
            return super()._strip_protocol(path.removeprefix("torture://") if isinstance(path, str) else path)

    fsspec.register_implementation("torture", Disk, clobber=True)
    place.mkdir()
    before = os.environ.get("DALI_RUN_STAGING")
    os.environ["DALI_RUN_STAGING"] = str(place / "staging")

    def run(out: Path) -> int:
        return run_job(spec, {"data": str(data), "out": f"torture://{out}"}).exit_code

    try:
        run(place / "expected")
        expected = content(place / "expected")
        bad: list[str] = []
        tried = 0
        for at in range(1, 100_000, step):
            out = place / f"out-{at}"
            if not die_at(lambda out=out: run(out), at):  # type: ignore[misc]
                break
            tried += 1
            if at % 2:
                shutil.rmtree(place / "staging", ignore_errors=True)
            if run(out) not in (0, 3) or content(out) != expected:
                bad.append(f"killed at operation {at}")
            shutil.rmtree(out)
    finally:
        os.environ.pop("DALI_RUN_STAGING")
        if before is not None:
            os.environ["DALI_RUN_STAGING"] = before
    return Row("an output in a store: killed at each operation, staging kept or lost, then again", tried, bad)
