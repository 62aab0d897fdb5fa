"""Jobs in other processes that wait, so that what is done to them is done before they end, however busy the machine."""

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
    """The environment of a job whose processes publish no shard but the first ``after`` until a file is there, and that
    file. Python imports what is written to ``folder`` when it starts."""
    place, go = folder / "held", folder / "go"
    place.mkdir()
    (place / "sitecustomize.py").write_text(f"AFTER, GO = {after}, {str(go)!r}\n{_START}")
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(place), str(ROOT)))}, go
