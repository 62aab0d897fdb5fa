"""Jobs on file systems that behave like NFS on a bad day: stale handles, short reads and writes, locks that are missing
or lost (tests/kit/nfs_faults.c, preloaded). Whatever happens, the same command finishes with the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dali_run.pipelines.job.run import run_job
from dali_run.pipelines.tools.sample_data import make_sample_data
from dali_run.writers.shards.verify import verify
from tests.kit.small_spec import small_spec
from tests.kit.writers import digest

ROOT = Path(__file__).parents[1]
COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs a C compiler, and Linux")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("faults") / "faults.so"
    source = Path(__file__).parent / "kit" / "nfs_faults.c"
    assert COMPILER is not None
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", str(made), str(source), "-ldl"], check=True)
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nfs")
    make_sample_data(folder / "data", 24)
    sorted((folder / "data/train").rglob("*.jpg"))[3].write_bytes(b"no picture")
    return folder


def command(spec: Path, library: Path, under: Path, **faults: object) -> subprocess.Popen[str]:
    variables = {f"FAULTS_{k.upper()}": str(v) for k, v in faults.items()}
    return subprocess.Popen(
        [sys.executable, "-m", "dali_run.cli.main", "run", str(spec), "-q"],
        cwd=ROOT, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(library),
             "FAULTS_UNDER": str(under), **variables},
    )  # fmt: skip


REPEATED = """
import json, sys
from dali_run.ops.errors import DaliRunError
from dali_run.pipelines.job.run import run_job
for k in range(200):
    try:
        result = run_job(sys.argv[1])
        code, said = result.exit_code, result.message
    except DaliRunError as e:
        code, said = 1, str(e)
    print(json.dumps([code, said]), flush=True)
    if code in (0, 3):
        break
"""


def until_done(spec: Path, library: Path, under: Path, log: Path, every: int) -> list[tuple[int, str]]:
    """Exit code and what was said of each run of the same job, until it is done; in one process, to save time."""
    done = subprocess.run(
        [sys.executable, "-c", REPEATED, str(spec)], cwd=ROOT, text=True, capture_output=True, check=False, timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(library), "FAULTS_UNDER": str(under),
             "FAULTS_EVERY": str(every), "FAULTS_LOG": str(log)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    runs = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    assert runs[-1][0] in (0, 3), "200 runs were not enough"
    return runs


@pytest.mark.parametrize("writer", ["webdataset", "files"])
def test_an_output_on_a_bad_day_is_finished_by_the_same_command(
    place: Path, library: Path, tmp_path: Path, writer: str
) -> None:
    spec, whole = tmp_path / "spec.yaml", tmp_path / "whole.yaml"
    whole.write_text(small_spec(place / "data/train", tmp_path / "whole", writer=writer, size=24))
    assert run_job(whole).exit_code == 3
    spec.write_text(small_spec(place / "data/train", tmp_path / "out", writer=writer, size=24))
    log = tmp_path / "log"
    runs = until_done(spec, library, tmp_path / "out", log, every=25)
    for code, said in runs:
        assert code in (1, 3), said
        assert "internal" not in said, said
    assert len(runs) > 2
    assert len(log.read_text().splitlines()) > 3
    # On a good day the command has nothing left to do; what it takes away is a lock whose removal failed.
    assert run_job(spec).exit_code == 3
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")
    assert verify(tmp_path / "out").sound


def test_inputs_on_a_bad_day_cost_lines_not_samples(place: Path, library: Path, tmp_path: Path) -> None:
    """A file that cannot be read now is in the reject log, and in the output once it is tried again."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(small_spec(place / "data/train", tmp_path / "out", size=24))
    log = tmp_path / "log"
    *_, (code, said) = until_done(spec, library, place / "data", log, every=5)
    assert code == 3, said
    rows = [json.loads(line) for line in (tmp_path / "out/rejects.jsonl").read_text().splitlines()]
    verdict = verify(tmp_path / "out")
    assert verdict.sound, verdict.problems
    files = sum(1 for p in (place / "data/train").rglob("*.jpg"))
    assert verdict.samples + len(rows) == files
    assert {r["code"] for r in rows} <= {"read_failed", "not_an_image"}
    assert len(log.read_text().splitlines()) > 3


@pytest.mark.parametrize("locks", ["none", "lost"])
def test_file_systems_without_locks(place: Path, library: Path, tmp_path: Path, locks: str) -> None:
    """Without locks a second job is told who is at work; where locks are granted and lost, two jobs may write at once:
    equal jobs write equal bytes, and what is there in the end is whole."""
    spec, whole = tmp_path / "spec.yaml", tmp_path / "whole.yaml"
    whole.write_text(small_spec(place / "data/train", tmp_path / "whole", size=24))
    assert run_job(whole).exit_code == 3
    spec.write_text(small_spec(place / "data/train", tmp_path / "out", size=24))
    both = [command(spec, library, tmp_path / "out", locks=locks) for _ in range(2)]
    said = [p.communicate(timeout=300)[1] for p in both]
    codes = sorted(p.returncode for p in both)
    assert codes in ([1, 3], [3, 3], [1, 1]), said
    assert not any("Traceback" in s or "internal error" in s for s in said), said
    with command(spec, library, tmp_path / "out", locks=locks) as last:
        _, told = last.communicate(timeout=300)
    assert last.returncode == 3, told
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")
