"""Jobs on file systems that behave like NFS on a bad day: stale handles, short reads and writes, locks that are missing
or lost (tests/kit/nfs_faults.c, preloaded). Whatever happens, the same command finishes with the same bytes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from dali_run.pipelines.job.run import run_job
from dali_run.pipelines.tools.sample_data import make_sample_data
from dali_run.writers.shards.verify import verify
from tests.kit.jobs.small_spec import small_spec
from tests.kit.long import thinned
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
from pathlib import Path
from dali_run.ops.errors import DaliRunError
from dali_run.pipelines.job.run import run_job
specs, log, faults = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
seen = lambda: len(log.read_text().splitlines()) if log.exists() else 0
text = (specs / "spec.yaml").read_text()
day = 0
while seen() < faults:
    (specs / f"{day}.yaml").write_text(text.replace("OUTPUT", f"out/{day}"))
    code = None
    while code not in (0, 3):
        before = seen()
        try:
            result = run_job(specs / f"{day}.yaml")
            code, said = result.exit_code, result.message
        except DaliRunError as e:
            code, said = 1, str(e)
        print(json.dumps([day, code, said, seen() - before]), flush=True)
        if code not in (0, 3) and seen() == before:
            sys.exit("a run failed, and no fault was injected")
    day += 1
"""


class Run(NamedTuple):
    """One run of the command on a bad day."""

    day: int
    code: int
    said: str
    faults: int


def bad_days(spec: str, library: Path, folder: Path, under: Path, *, every: int, faults: int) -> list[list[Run]]:
    """The runs of each day, in one process to save time: a day is one job in an output of its own (``out/DAY`` below
    ``folder``), run until it is done. There are days until ``faults`` faults were seen, and then there are no more of
    either: whichever thread comes first, neither count is left to chance."""
    (folder / "spec.yaml").write_text(spec)
    done = subprocess.run(
        [sys.executable, "-c", REPEATED, str(folder), str(folder / "log"), str(faults)],
        cwd=ROOT, text=True, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(library), "FAULTS_UNDER": str(under),
             "FAULTS_EVERY": str(every), "FAULTS_MOST": str(faults), "FAULTS_SEED": "1",
             "FAULTS_LOG": str(folder / "log")},
    )  # fmt: skip
    runs = [Run(*json.loads(line)) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (done.stderr[-2000:], runs[-1:])
    assert sum(r.faults for r in runs) >= faults
    return [list(days) for _, days in itertools.groupby(runs, lambda r: r.day)]


@pytest.mark.parametrize("writer", thinned(["files", "webdataset"], 2))
def test_an_output_on_a_bad_day_is_finished_by_the_same_command(
    place: Path, library: Path, tmp_path: Path, writer: str
) -> None:
    whole = tmp_path / "whole.yaml"
    whole.write_text(small_spec(place / "data/train", tmp_path / "whole", writer=writer, size=24))
    assert run_job(whole).exit_code == 3
    spec = small_spec(place / "data/train", tmp_path / "OUTPUT", writer=writer, size=24)
    days = bad_days(spec, library, tmp_path, tmp_path / "out", every=25, faults=40)
    for day, runs in enumerate(days):
        for run in runs:
            assert run.code in (1, 3), run.said
            assert "internal" not in run.said, run.said
        # On a good day the command has nothing left to do; what it takes away is a lock whose removal failed.
        assert run_job(tmp_path / f"{day}.yaml").exit_code == 3
        assert digest(tmp_path / f"out/{day}") == digest(tmp_path / "whole")
        assert verify(tmp_path / f"out/{day}").sound
    assert sum(run.code == 1 for runs in days for run in runs) > 2  # few of the 40 faults are borne by trying again


def test_inputs_on_a_bad_day_cost_lines_not_samples(place: Path, library: Path, tmp_path: Path) -> None:
    """A file that cannot be read now is in the reject log, and in the output once it is tried again."""
    spec = small_spec(place / "data/train", tmp_path / "OUTPUT", size=24)
    files = sum(1 for p in (place / "data/train").rglob("*.jpg"))
    for day, runs in enumerate(bad_days(spec, library, tmp_path, place / "data", every=5, faults=40)):
        assert runs[-1].code == 3, runs[-1].said
        rows = [json.loads(line) for line in (tmp_path / f"out/{day}/rejects.jsonl").read_text().splitlines()]
        verdict = verify(tmp_path / f"out/{day}")
        assert verdict.sound, verdict.problems
        assert verdict.samples + len(rows) == files
        assert {r["code"] for r in rows} <= {"read_failed", "not_an_image"}


@pytest.mark.parametrize("locks", thinned(["lost", "none"], 2))
def test_file_systems_without_locks(place: Path, library: Path, tmp_path: Path, locks: str) -> None:
    """Without locks a second job is told who is at work; where locks are granted and lost, two jobs may write at once:
    equal jobs write equal bytes, and what is there in the end is whole."""
    spec, whole = tmp_path / "spec.yaml", tmp_path / "whole.yaml"
    whole.write_text(small_spec(place / "data/train", tmp_path / "whole", size=24))
    assert run_job(whole).exit_code == 3
    spec.write_text(small_spec(place / "data/train", tmp_path / "out", size=24))
    both = [command(spec, library, tmp_path / "out", locks=locks) for _ in range(2)]
    said = [p.communicate()[1] for p in both]
    codes = sorted(p.returncode for p in both)
    assert codes in ([1, 3], [3, 3], [1, 1]), said
    assert not any("Traceback" in s or "internal error" in s for s in said), said
    with command(spec, library, tmp_path / "out", locks=locks) as last:
        _, told = last.communicate()
    assert last.returncode == 3, told
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")
