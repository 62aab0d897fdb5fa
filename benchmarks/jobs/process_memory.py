"""Break down a process's memory: by kind of mapping, in malloc's arenas, in Python's objects, in CuPy's pools.

`now()` is one row of bytes and counts. Rows over time show what grows: blocks in use (referenced), free blocks that
malloc keeps (fragmentation), stacks of threads, Python objects, a pool of CuPy's, or a library's own mappings.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
import threading
from collections import Counter
from pathlib import Path

HEAP = 64 << 20
"""Size and alignment in bytes of the heaps that hold the arenas of threads in glibc."""
GUARD = 4096
_RANGE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+ *(.*)")


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    )  # fmt: skip


def malloc() -> dict[str, int]:
    """Return the bytes of glibc's malloc over all arenas: in use, free but not returned, and mapped separately (large
    blocks, in use); and the number of arenas. Empty if the C library does not report them."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return {}
    libc.mallinfo2.restype = _Mallinfo2
    told = libc.mallinfo2()
    return {
        "malloc_used": told.uordblks, "malloc_free": told.fordblks, "malloc_mapped": told.hblkhd,
        "arenas": _arenas(libc),
    }  # fmt: skip


def _arenas(libc: ctypes.CDLL) -> int:
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    libc.open_memstream.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    count = ctypes.string_at(text, size.value).count(b"<heap nr=")
    libc.free(text)
    return count


def mappings() -> dict[str, int]:
    """Return the resident bytes that belong to this process alone, by kind: the heap of the main thread, heaps of other
    threads' arenas, stacks, written pages of mapped files, and all others (Python's own arenas, large blocks, mappings
    of drivers)."""
    found: Counter[str] = Counter()
    kind, before = "", (0, 0, "")
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := _RANGE.fullmatch(line):
            start, stop, rights, name = int(match[1], 16), int(match[2], 16), match[3], match[4]
            guarded = before[1] == start and before[2].startswith("---") and before[1] - before[0] == GUARD
            if name == "[heap]":
                kind = "heap"
            elif name.startswith("[stack") or (not name and guarded):
                kind = "stacks"
            elif name:
                kind = "of_files"
            elif start % HEAP == 0:  # full ones are one mapping with the next
                kind = "heaps"
            else:
                kind = "others"
            before = start, stop, rights
        elif line.startswith("Anonymous:"):
            found[kind] += 1024 * int(line.split()[1])
    return {f"own_{kind}": found[kind] for kind in ("heap", "heaps", "stacks", "of_files", "others")}


def pools() -> dict[str, int]:
    """Return the bytes in CuPy's pool of GPU memory, in use and cached, and the idle blocks of its pool of page-locked
    memory; empty if CuPy was not imported."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return {}
    pool = cupy.get_default_memory_pool()
    return {
        "gpu_pool_used": int(pool.used_bytes()), "gpu_pool_kept": int(pool.total_bytes()),
        "pinned_idle_blocks": int(cupy.get_default_pinned_memory_pool().n_free_blocks()),
    }  # fmt: skip


def now() -> dict[str, int]:
    """Return all these numbers for this moment, as one row; takes milliseconds."""
    return {
        **mappings(), **malloc(), **pools(), "python_blocks": sys.getallocatedblocks(),
        "objects": len(gc.get_objects()), "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
    }  # fmt: skip


def kinds() -> Counter[str]:
    """Return the number of objects that the garbage collector tracks, by type."""
    return Counter(f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.get_objects())


def give_back() -> None:
    """Collect garbage, empty CuPy's pools and trim malloc. Memory that then stays resident is referenced."""
    gc.collect()
    if (cupy := sys.modules.get("cupy")) is not None:
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
