"""Decoders that crash and hang on command, in the worker processes of `isolation` and nowhere else.

The last bytes of a file tell its decoder how to fail: ``!FAULT:SIGSEGV``, ``!FAULT:spin``, ``!FAULT:sleep``,
``!FAULT:memory``, ``!FAULT:exit``. `at_calls` lets the decoder fail at given calls instead, counted over all workers,
once each, like a fault from outside (the kernel short of memory, a person with `kill`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

MARK = b"!FAULT:"
_CALLS = "DALI_RUN_TEST_CALLS"


def faulty(data: bytes, what: str) -> bytes:
    """Append the fault ``what`` to a file; decoders of whole files ignore bytes after the end."""
    return data + MARK + what.encode()


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the decoders of workers that start from now on fail on command (see `faulty`)."""
    from dali_run.ops.codecs.isolation import processes as isolation

    first = "from dali_run.ops.codecs.isolation.worker import serve"
    assert first in isolation._PROGRAM
    here = str(Path(__file__).parent)
    monkeypatch.setattr(
        isolation,
        "_PROGRAM",
        isolation._PROGRAM.replace(
            first, f"sys.path.insert(0, {here!r}); import faulty_decoder; faulty_decoder.obey(); {first}"
        ),
    )


def at_calls(monkeypatch: pytest.MonkeyPatch, scratch: Path, faults: dict[int, str]) -> None:
    """Make the decoder fail at the calls in ``faults``, by number; the first call is 1."""
    scratch.write_text("0\n" + "".join(f"{k} {what}\n" for k, what in faults.items()))
    monkeypatch.setenv(_CALLS, str(scratch))


def calls(scratch: Path) -> int:
    """Return the number of the decoder's calls so far."""
    return int(scratch.read_text().split()[0])


def descendants(pid: int) -> list[int]:
    """Return the process ids of the children of a process, and of their children."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found += [int(folder.name), *descendants(int(folder.name))]
    return found


def alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        return (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) != "Z"
    except OSError:
        return False


def files_in_shared_memory(pid: int) -> list[str]:
    """Return the files in /dev/shm that the process has open or mapped. They would remain there if it were killed."""
    found = []
    with contextlib.suppress(OSError):
        found += [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm" in line]
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found += [str(link.readlink())] if str(link.readlink()).startswith("/dev/shm") else []
    return found


# -- in the worker ----------------------------------------------------------------------------------------------------


def obey() -> None:
    from dali_run.ops.codecs import pillow as pillow_decode
    from dali_run.ops.codecs.jpeg import turbo as jpeg_cpu

    decode, decode_into = pillow_decode.decode, jpeg_cpu.decode_into

    def faulty_decode(data: memoryview, *rest: Any) -> Any:
        _fault(data)
        return decode(data, *rest)

    def faulty_decode_into(data: memoryview, *rest: Any) -> Any:
        _fault(data)
        return decode_into(data, *rest)

    pillow_decode.decode, jpeg_cpu.decode_into = faulty_decode, faulty_decode_into


def _fault(data: memoryview) -> None:
    _, mark, what = bytes(data[-40:]).partition(MARK)
    if mark:
        fail(what.decode())
    path = os.environ.get(_CALLS)
    if path:
        with open(path, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            count, *faults = file.read().splitlines()
            now = int(count) + 1
            file.seek(0)
            file.write("\n".join([str(now), *faults]) + "\n")
            file.flush()
        for line in faults:
            k, fault = line.split()
            if int(k) == now:
                fail(fault)


def fail(what: str) -> None:
    if what == "spin":
        while True:
            pass
    elif what == "sleep":
        time.sleep(1000)
    elif what == "memory":
        bytearray(1 << 40)
    elif what == "exit":
        os._exit(3)
    else:
        os.kill(os.getpid(), getattr(signal, what))
        time.sleep(1000)
