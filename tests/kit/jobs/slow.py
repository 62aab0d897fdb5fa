"""Run slow jobs in other processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


SLOW = """
import sys, time
from pathlib import Path
from dali_run.writers.bytes import files_io
from tests.kit.writers import JOBS
hold = len(sys.argv) > 3
files_io.set_hook(lambda operation, path: time.sleep(600 if hold and "manifest" in path else 0.002))
print("ready", flush=True)
JOBS[sys.argv[1]].run(Path(sys.argv[2]))
"""


def start_slow(name: str, path: Path, *, hold: bool = False) -> subprocess.Popen[str]:
    """Start a slow job in another process; with ``hold`` it does not finish before it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, name, str(path), *["hold"] * hold], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process
