"""Survive bus errors: touching a page of a mapped file that was truncated, or that cannot be read.

Such an access raises SIGBUS, which would end the process. The handler here puts a page of zeros in its place and
records the file; the engine drops samples of that file before it delivers a batch. (PulseAudio and systemd-journald do
the same.) `extents` registers its mappings with `watch`.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import signal
import threading
from bisect import bisect_right
from collections.abc import Sequence

_SA_SIGINFO = 4
_ADDRESS_IN_SIGINFO = 16  # si_addr on 64-bit Linux: after si_signo, si_errno, si_code and padding
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value


class _Action(ctypes.Structure):
    """``struct sigaction`` of glibc and musl on 64-bit systems."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Watched:
    """The memory mappings that this process's handler of SIGBUS watches, and the files with missing pages."""

    def __init__(self) -> None:
        self.lost: set[str] = set()
        self.mappings: dict[int, tuple[int, Sequence[int], Sequence[str]]] = {}
        """Memory mappings by base address, each as (length in bytes, offset of each file, name of each file)."""
        self.lock = threading.Lock()


_watched = _Watched()
_before = _Action()
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def lost_files() -> frozenset[str]:
    """Names of the watched files in which a missing page was touched, for example because the file was truncated. Names
    are those given to `watch`."""
    return frozenset(_watched.lost) if _watched.lost else _NOTHING


_NOTHING: frozenset[str] = frozenset()


def watch(base: int, length: int, starts: Sequence[int], names: Sequence[str], *, second: bool = False) -> None:
    """Watch a memory mapping: a page in [base, base + length) that is missing when it is touched is replaced by zeros.
    File i of ``names`` begins at ``base + starts[i]``. ``second``: the files have another mapping already, and
    `lost_files` keeps what it reports of them."""
    with _watched.lock:
        if not _watched.mappings:
            _install()
        _watched.mappings[base] = length, starts, names
        if not second:
            _watched.lost.difference_update(names)  # # the files were opened again: what was lost before is past


def forget(base: int) -> None:
    """Stop watching the memory mapping at ``base``; its owner calls this before it unmaps the files."""
    _watched.mappings.pop(base, None)


def _install() -> None:
    action = _Action(handler=ctypes.cast(_handler, ctypes.c_void_p), flags=_SA_SIGINFO)
    previous = _Action()
    _libc.sigaction(int(signal.SIGBUS), ctypes.byref(action), ctypes.byref(previous))
    if previous.handler != action.handler:
        ctypes.pointer(_before)[0] = previous


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
def _handler(number: int, info: int, _: int) -> None:
    """Signal handler for SIGBUS. It runs in the thread that touched the page, in the middle of any code, and therefore
    takes no lock."""
    address = ctypes.c_uint64.from_address(info + _ADDRESS_IN_SIGINFO).value
    for base, (length, starts, names) in list(_watched.mappings.items()):
        if base <= address < base + length:
            page = address // mmap.PAGESIZE * mmap.PAGESIZE
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
            if _libc.mmap(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) == _FAILED:
                break
            _watched.lost.add(names[bisect_right(starts, address - base) - 1])
            return
    # an address of no watched mapping: the access faults again, then under the previous handler
    with contextlib.suppress(Exception):
        _libc.sigaction(number, ctypes.byref(_before), None)
