"""Jobs that this user has run, by their outputs: kept in the user's own folder, so that a retry need not believe what
an output, which may come from anybody, says about its spec."""

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

_MOST = 1000
"""Jobs that are remembered; the oldest are forgotten first."""


def state_folder(kind: str) -> Path:
    """The user's own folder for what is known of jobs."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(home, "dali-run", kind)


def key_of(out: Path | str) -> str:
    """A file name for an output, the same however its path is written."""
    place = str(out).rstrip("/") if is_url(out) else os.path.realpath(plain_path(str(out)))
    return hashlib.sha256(os.fsencode(place)).hexdigest()[:40]


def _file(out: Path | str) -> Path:
    return state_folder("jobs") / f"{key_of(out)}.json"


def keep(path: Path, found: Mapping[str, Any]) -> None:
    """Write ``found`` to ``path`` in the user's own folder, all of it or nothing. Raises OSError."""
    text = json.dumps(found, default=str).encode()
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
    """Leave the newest files of the user's own folder. Raises OSError."""
    known = sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime)
    for old in known[:-_MOST]:
        old.unlink()


def remember(out: Path | str, command: Mapping[str, Any]) -> None:
    """How the job that writes ``out`` was started. Failure is no error: a retry then asks for the spec."""
    path = _file(out)
    with contextlib.suppress(OSError):
        keep(path, command)
        forget_oldest(path.parent)


def recall(out: Path | str) -> dict[str, Any] | None:
    """The command that `remember` kept; None where this user has not run the job here."""
    with contextlib.suppress(OSError, ValueError, JobError):
        found = sidecar.read_json(_file(out), sidecar.REPORT)
        if isinstance(found.get("spec"), (str, dict)) and isinstance(found.get("overrides"), dict):
            return {"device": None, **found}
    return None
