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


def _folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(home, "dali-run", "jobs")


def _file(out: Path | str) -> Path:
    place = str(out).rstrip("/") if is_url(out) else os.path.realpath(plain_path(str(out)))
    return _folder() / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:40]}.json"


def remember(out: Path | str, command: Mapping[str, Any]) -> None:
    """How the job that writes ``out`` was started. Failure is no error: a retry then asks for the spec."""
    path = _file(out)
    text = json.dumps(command, default=str).encode()
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
        known = sorted(path.parent.iterdir(), key=lambda p: p.stat().st_mtime)
        for old in known[:-_MOST]:
            old.unlink()


def recall(out: Path | str) -> dict[str, Any] | None:
    """The command that `remember` kept; None where this user has not run the job here."""
    with contextlib.suppress(OSError, ValueError, JobError):
        found = sidecar.read_json(_file(out), sidecar.REPORT)
        if isinstance(found.get("spec"), (str, dict)) and isinstance(found.get("overrides"), dict):
            return {"device": None, **found}
    return None
