"""Kill a job at chosen file operations and see what is left. Run as a program, so that it may fork: one process,
warmed up once, makes a child for each kill.

    python -m tests.writers.shards.crash tfrecord DIR --points 40
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dali_run.writers import base
from dali_run.writers.bytes import files_io
from dali_run.writers.formats import columns
from tests.kit.writers import JOBS, Job, digest

os.fsync = lambda fd: None  # a killed process loses nothing that was written; lost power is played by `Count`
CUT = 2500
"""Bytes that a write takes at once here, so that kills happen inside of writes too."""
KILLED = 77


@dataclass
class Count:
    """Counts operations; ends the process before the ``kill_at``-th, if any."""

    kill_at: int = 0
    power: bool = False
    """The machine dies, not the process: what was not fsynced is gone."""
    root: Path | None = None
    """Where files lose what was not fsynced."""
    n: int = 0
    synced: dict[int, int] = field(default_factory=dict)
    """Bytes of each file (by inode: renames keep it) that would survive."""
    renamed: list[str] = field(default_factory=list)
    """New names that would not."""
    lock: Any = field(default_factory=threading.Lock)
    """Operations come from several threads."""

    def __call__(self, operation: str, path: str) -> int | None:
        with self.lock:
            self.n += 1
            if self.n == self.kill_at:
                if self.power:
                    self._lose()
                os._exit(KILLED)
            if self.power:
                self._follow(operation, path)
        return CUT // 10 if path.endswith("journal.jsonl") else CUT

    def _follow(self, operation: str, path: str) -> None:
        if operation == "write" and not path.endswith(".lock"):
            status = os.stat(path)
            if status.st_size == 0:  # a new file, perhaps with the number of one that is gone
                self.synced[status.st_ino] = 0
            self.synced.setdefault(status.st_ino, status.st_size)
        elif operation == "fsync" and os.path.isdir(path):
            self.renamed = [r for r in self.renamed if os.path.dirname(r) != path]
        elif operation == "fsync":
            status = os.stat(path)
            self.synced[status.st_ino] = status.st_size
        elif operation == "rename":
            self.renamed.append(path)

    def _lose(self) -> None:
        assert self.root is not None
        for path in [p for p in self.root.rglob("*") if p.is_file()]:
            try:
                status = path.stat()
                if status.st_size > self.synced.get(status.st_ino, status.st_size):
                    os.truncate(path, self.synced[status.st_ino])
            except FileNotFoundError:  # another thread gave it its final name: that is done behind its fsync
                continue
        for name in self.renamed:
            if os.path.isdir(name):
                shutil.rmtree(name)
            elif os.path.exists(name):
                os.unlink(name)


def die(act: Callable[[], object], hook: Count) -> bool:
    """``act`` in a child with ``hook``; whether the hook killed it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            files_io.set_hook(hook)
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, KILLED):
        raise AssertionError(f"the child ended with {code}")
    return code == KILLED


def check_final(path: Path, expected: dict[str, str]) -> None:
    """Every file under a final name is complete, whenever the job is killed (the logs grow line by line)."""
    for name, content in digest(path).items():
        hidden = name.startswith(".")
        log = name in ("journal.jsonl", "rejects.jsonl")
        if not hidden and not log and expected.get(name) != content:
            raise AssertionError(f"{name} has its final name, but not its final content")


def kill_and_resume(job: Job, root: Path, expected: dict[str, str], kills: list[int], power: bool) -> int:
    """Kill the job at each of ``kills`` in turn, then let it finish. Returns positions done twice."""
    path = root / "killed"
    shutil.rmtree(path, ignore_errors=True)
    for at in kills:
        if not die(lambda: job.run(path), Count(at, power, path)):
            break
        if path.exists():
            check_final(path, expected)
    journal = path / "journal.jsonl"
    before = journal.read_text().count('"shard"') if journal.exists() else 0
    out = job.run(path)
    found = digest(path)
    if found != expected:
        wrong = sorted(k for k in found.keys() | expected.keys() if found.get(k) != expected.get(k))
        raise AssertionError(
            f"after kills at {kills}{' of the power' * power}: {wrong} differ from an uninterrupted run"
        )
    if out.written + out.rejected != job.total:
        raise AssertionError(f"after kills at {kills}: {out.written} written + {out.rejected} rejected != {job.total}")
    return before


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("root", type=Path)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--double", type=int, default=4)
    parser.add_argument("--behind", action="store_true", help="every write is another thread's, nothing is copied")
    args = parser.parse_args()
    if args.behind:
        base.LARGE = 1
        columns.LOOSE = 0
    job: Job = JOBS[args.job]
    count = Count()
    files_io.set_hook(count)
    job.run(args.root / "expected")
    files_io.set_hook(None)
    expected = digest(args.root / "expected")
    points = sorted({1 + k * (count.n - 1) // max(1, args.points - 1) for k in range(args.points)})
    for power in (False, True):
        for at in points:
            kill_and_resume(job, args.root, expected, [at], power)
        for k in range(args.double):
            first = points[(k * 7 + 3) % len(points)]
            kill_and_resume(job, args.root, expected, [first, 5 + 9 * k, 3 + 4 * k], power)
    json.dump({"operations": count.n, "kills": 2 * (len(points) + args.double)}, sys.stdout)


if __name__ == "__main__":
    main()
