"""An output at a URL: shards are made in a local folder and uploaded under their final names once complete.

The store is authoritative, the folder only scratch: a job starts by downloading journals and logs from the store. Each
shard is uploaded before the journal that lists it, the manifest comes last, so that a job killed at any moment can be
resumed, on any machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...ops.errors import JobError
from ...ops.storage.json_text import parse_json
from ...ops.storage.urls import Store, is_url
from ..bytes import files_io
from .lock import BusyError, identify, may_live

_STATE = re.compile(
    r"(journal|rejects|manifest|report|inputs)[^/]*\.(jsonl|json|gz)|[^/]+\.jsonl|[^/]+-\d{5}(-of-\d{5})?\.json"
)
"""Names of the files that describe an output: journals, logs, manifests, and listings of the writers `files` and
`coco`."""
_BEAT = 60.0
_STALE = 15 * 60.0
"""Seconds without renewal after which a lock in a store counts as left by a dead job."""


def staging_folder(url: str, part: tuple[int, int] | None) -> Path:
    """Return the local folder in which the shards of an output at ``url`` are made before they are uploaded: below
    DALI_RUN_STAGING, or in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    base = os.environ.get("DALI_RUN_STAGING") or os.path.join(home, "dali-run", "staging")
    mark = "" if part is None else f"-{part[0]}"
    return Path(base, hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:24] + mark)


@contextlib.contextmanager
def state_of(place: str | Path) -> Iterator[Path]:
    """Context manager that yields a folder with the journals, logs and manifests of an output: the output's own folder,
    or a temporary one with copies from a URL.

    JobErrors that are raised in its body name the URL, not the temporary folder.
    """
    if not is_url(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="dali-run-") as folder:
        try:
            Mirror(str(place), Path(folder)).fetch()
            yield Path(folder)
        except JobError as e:
            raise JobError(str(e).replace(folder, str(place).rstrip("/"))) from e


class Mirror:
    """The store (such as S3) that holds an output, with a local folder for copies of its journals, logs and manifests.
    `Output` or the fleet's driver creates it; one thread uses it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.store = Store(url)
        self.folder = folder
        self.sizes: dict[str, int] = {}
        """Sizes in bytes of the output's files in the store, by name."""
        self._lock = ""
        self._token = ""
        self._beaten = 0.0

    def fetch(self) -> None:
        """Download all journals, logs and manifests of the output."""
        found = self.store.files()
        self.sizes = {name: int(info.get("size") or 0) for name, info in found.items()}
        for name in self.sizes:
            if _STATE.fullmatch(name):
                self.get(name)

    def fetch_own(self, names: Sequence[str]) -> None:
        """Download those of the files ``names`` that exist, without listing the store. With thousands of parts and
        shards, listing the store would take longer than a job part."""
        self.sizes = {}
        for name in names:
            with contextlib.suppress(JobError):
                self.get(name)
                self.sizes[name] = (self.folder / name).stat().st_size

    def look_up(self, names: Iterable[str]) -> None:
        """Query the sizes of the files ``names`` from the store; the sizes go into ``sizes``."""
        for name in names:
            info = self.store.info(name)
            if info is not None:
                self.sizes[name] = int(info.get("size") or 0)

    def get(self, name: str) -> None:
        """Download one file of the output into its local copy. Raises JobError if the file does not exist any more."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.store.get(name, str(path))
        except FileNotFoundError:
            raise JobError(f"{self.store.url}/{name} is gone") from None

    def put(self, name: str) -> None:
        """Upload one file from the local copy of the output to the store, under its final name."""
        files_io.before("put", self.folder / name)
        self.store.put(str(self.folder / name), name)
        self.sizes[name] = (self.folder / name).stat().st_size

    def remove(self, name: str) -> None:
        """Remove one file of the output from the store."""
        files_io.before("remove", self.folder / name)
        self.store.remove(name)
        self.sizes.pop(name, None)

    def forget(self, name: str) -> None:
        """Remove the local copy of a file that has been uploaded to the store."""
        top = name.split("/")[0]
        files_io.remove(self.folder / (top if top.endswith(".lmdb") else name))

    # -- one job at a time ----------------------------------------------------------------------------------------

    def begin(self, lock: str, own: Sequence[str] | None = None) -> None:
        """Take the output's lock in the store and empty the local copy of the output. Then download journals, logs and
        manifests (or only the files ``own``). Raises JobError if another job has the lock."""
        for path in self.folder.iterdir():
            if path.name != lock:
                files_io.remove(path)
        owner = self._owner(lock)
        if owner is not None and self._lives(lock, owner):
            raise BusyError(
                f"{self.store.url} is being written by process {owner.get('pid')} on {owner.get('host')}; wait for it "
                f"to end, or choose another path (if it is dead, remove {self.store.url}/{lock})",
                {k: v for k, v in owner.items() if k != "token"},
            )
        self._lock, self._token = lock, uuid.uuid4().hex
        self._write_lock()
        self.check()
        if own is None:
            self.fetch()
        else:
            self.fetch_own(own)

    def _owner(self, lock: str) -> dict[str, Any] | None:
        try:
            owner = parse_json(self.store.read(lock))
        except FileNotFoundError:
            return None
        except ValueError:
            return {}
        return owner if isinstance(owner, dict) else {}

    def _lives(self, lock: str, owner: dict[str, Any]) -> bool:
        if owner.get("host") == identify()["host"]:
            return may_live(owner)
        age = self.store.age(lock, time.time())
        return age is None or age < _STALE

    def break_lock(self, lock: str, dead: dict[str, Any]) -> bool:
        """Remove the lock file ``lock`` from the store if it belongs to ``dead``, a process known to be gone. Return
        whether it was removed."""
        owner = self._owner(lock)
        if owner is None or {k: v for k, v in owner.items() if k != "token"} != dead:
            return False
        self.store.remove(lock)
        return True

    def _write_lock(self) -> None:
        text = json.dumps({**identify(), "token": self._token}).encode()
        with tempfile.NamedTemporaryFile(prefix="dali-run-") as file:
            file.write(text)
            file.flush()
            self.store.put(file.name, self._lock)
        self._beaten = time.monotonic()

    def check(self) -> None:
        """Check that this job still has the output's lock in the store. Raises JobError if another job has taken the
        output over."""
        owner = self._owner(self._lock)
        if owner is None or owner.get("token") != self._token:
            holder = f"process {owner.get('pid')} on {owner.get('host')}" if owner else "somebody"
            raise JobError(f"{self.store.url}: {holder} has taken the output over; this job ends here")

    def beat(self) -> None:
        """Renew the lock in the store, unless that was done a short time ago."""
        if time.monotonic() - self._beaten > _BEAT:
            self.check()
            self._write_lock()

    def end(self) -> None:
        """Release the lock in the store and remove the local copy of the output."""
        if self._lock:
            owner = self._owner(self._lock)
            if owner is not None and owner.get("token") == self._token:
                self.store.remove(self._lock)
            self._lock = ""
            for path in self.folder.iterdir():
                if not path.name.endswith(".lock"):
                    files_io.remove(path)
