"""Run jobs in other processes that wait, so that a test can act on them before they end, however busy the machine
is."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[3]

_START = """
import os, re, time
from dali_run.writers.bytes import files_io

def wait(operation, path):
    shard = re.search(r"-([0-9]{5})-of-[0-9]{5}", path) if operation == "rename" else None
    while shard and int(shard[1]) >= AFTER and not os.path.exists(GO):
        time.sleep(0.01)

files_io.set_hook(wait)
"""


def held(folder: Path, after: int) -> tuple[dict[str, str], Path]:
    """Return the environment of a job whose processes publish only the first ``after`` shards until a file exists, and
    the path of that file. Python imports the code that is written to ``folder`` when it starts."""
    place, go = folder / "held", folder / "go"
    place.mkdir()
    (place / "sitecustomize.py").write_text(f"AFTER, GO = {after}, {str(go)!r}\n{_START}")
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(place), str(ROOT)))}, go
