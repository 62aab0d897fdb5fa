"""Remember the jobs that this user has run, by their outputs, in a folder of the user.

So a retry need not trust what an output, which may come from anybody, says about its spec. Called by jobs, `retry` and
`live`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...ops.errors import JobError
from ...ops.storage.urls import is_url, plain_path
from ...writers.bytes import sidecar

_MAX_JOBS = 1000
"""Maximum number of jobs whose commands are stored; the oldest are removed first."""


def state_folder(kind: str) -> Path:
    """Return the folder, among the user's state files, for facts of this ``kind`` about jobs."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(home, "dali-run", kind)


def key_of(out: Path | str) -> str:
    """Return a file name that identifies an output, the same for every spelling of the output's path."""
    place = str(out).rstrip("/") if is_url(out) else os.path.realpath(plain_path(str(out)))
    return hashlib.sha256(os.fsencode(place)).hexdigest()[:40]


def _file(out: Path | str) -> Path:
    return state_folder("jobs") / f"{key_of(out)}.json"


def write_atomically(path: Path, data: Mapping[str, Any]) -> None:
    """Write ``data`` as JSON to ``path``, atomically. Raises OSError."""
    text = json.dumps(data, default=str).encode()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def forget_oldest(folder: Path) -> None:
    """Remove the oldest files of ``folder``, where each is about one job, so that at most `_MAX_JOBS` remain. Raises
    OSError."""
    files = sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime)
    for old in files[:-_MAX_JOBS]:
        old.unlink()


def remember(out: Path | str, command: Mapping[str, Any]) -> None:
    """Store the command that started the job whose output is ``out``, for a later retry. Failures are ignored: the user
    of the retry is then asked for the spec."""
    path = _file(out)
    with contextlib.suppress(OSError):
        write_atomically(path, command)
        forget_oldest(path.parent)


def recall(out: Path | str) -> dict[str, Any] | None:
    """Return the command that `remember` stored for the output ``out``; None if this user has not run the job on this
    machine."""
    with contextlib.suppress(OSError, ValueError, JobError):
        command = sidecar.read_json(_file(out), sidecar.REPORT)
        if isinstance(command.get("spec"), (str, dict)) and isinstance(command.get("overrides"), dict):
            return {"device": None, **command}
    return None
