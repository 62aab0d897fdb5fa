"""Lost pages: a mapped file that is cut short, or cannot be read, while it is being worked on.

Touching such a page raises SIGBUS, which would end the process. Here a page of zeros takes its place, the file is
remembered, and the engine drops the samples that came from it before delivering a batch. (PulseAudio and
systemd-journald do the same.)
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
    """struct sigaction of glibc and musl, 64 bits."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_lost: set[str] = set()
_mappings: dict[int, tuple[int, Sequence[int], Sequence[str]]] = {}
"""Length, and where which file begins, by base address."""
_lock = threading.Lock()
_before = _Action()
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def lost_files() -> frozenset[str]:
    """Files of which a page was touched that was no longer there; as they were named to `watch`."""
    return frozenset(_lost) if _lost else _NOTHING


_NOTHING: frozenset[str] = frozenset()


def watch(base: int, length: int, starts: Sequence[int], names: Sequence[str], *, again: bool = False) -> None:
    """Let faults in [base, base + length) cost zeros. File i of ``names`` begins at ``base + starts[i]``. ``again``: of
    files that are mapped already; what was lost of them is lost."""
    with _lock:
        if not _mappings:
            _install()
        _mappings[base] = length, starts, names
        if not again:
            _lost.difference_update(names)  # they were opened again, and are what they are now


def forget(base: int) -> None:
    """The mapping at ``base`` is about to go."""
    _mappings.pop(base, None)


def _install() -> None:
    action = _Action(handler=ctypes.cast(_handler, ctypes.c_void_p), flags=_SA_SIGINFO)
    previous = _Action()
    _libc.sigaction(int(signal.SIGBUS), ctypes.byref(action), ctypes.byref(previous))
    if previous.handler != action.handler:
        ctypes.pointer(_before)[0] = previous


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
def _handler(number: int, info: int, _: int) -> None:
    """Runs in the thread that touched the page, in the midst of what reads it: no code that holds a lock."""
    address = ctypes.c_uint64.from_address(info + _ADDRESS_IN_SIGINFO).value
    for base, (length, starts, names) in list(_mappings.items()):
        if base <= address < base + length:
            page = address // mmap.PAGESIZE * mmap.PAGESIZE
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
            if _libc.mmap(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) == _FAILED:
                break
            _lost.add(names[bisect_right(starts, address - base) - 1])
            return
    # not ours: it happens again, for the previous handler
    with contextlib.suppress(Exception):
        _libc.sigaction(number, ctypes.byref(_before), None)
