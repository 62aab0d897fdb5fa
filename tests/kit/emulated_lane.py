"""A `device.Lane` without a GPU: device arrays are NumPy arrays, kernels of ops/cuda run on the CPU
(cuda_emulator.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from dali_run.ops.batch import Batch
from dali_run.ops.gpu.lane import SOURCES

from .cuda_on_cpu import library
from .guarded import Guarded
from .listed_kernels import launched

_CALL = r"""
#include <utility>
using emulator::block_index;
template <typename... A, size_t... I>
void call(void (*kernel)(A...), void *const *p, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_const_t<A> *>(p[I])...);
}
template <typename... A> void call(void (*kernel)(A...), void *const *p) {
    call(kernel, p, std::index_sequence_for<A...>{});
}
static void body(const void *p) { call(&KERNEL, static_cast<void *const *>(p)); }
extern "C" void launch(int width, int height, int threads, void *const *p) {
    emulator::run(body, 0, threads, p);
    emulator::grid_size = {(unsigned)width, (unsigned)height, 1};
    for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x) {
            emulator::block_index = {(unsigned)x, (unsigned)y, 0};
            emulator::run_block();
        }
}
"""


@cache
def _compiled(source: str, kernel: str) -> Any:
    return compiled((SOURCES / source).read_text(), kernel)


@cache
def compiled(source: str, kernel: str) -> Any:
    """Compile a kernel of CUDA text. Return ``launch(width, height, threads, arguments)``, with arguments by
    address."""
    return library(f"{source}\n{_CALL.replace('KERNEL', kernel)}", "-O1").launch


class PlainLaunches:
    """Stand-in for dali_run.ops.gpu.driver_calls.Launches, for functions that are called like CuPy's."""

    def __init__(
        self, kernels: Sequence[Any], places: Sequence[tuple[int, int]], copy: Callable[[int, np.ndarray], Any],
        stream: Any = None,
    ) -> None:  # fmt: skip
        self._kernels, self._places, self._copy, self._stream = list(kernels), list(places), copy, stream

    def milliseconds(self) -> float:
        return 1.0

    def begin(self, addresses: Sequence[int], to: int, host: np.ndarray, *, timed: bool = False) -> None:
        if host.nbytes:
            self._copy(to, host)
        arguments = [list(given) for *_, given in self._kernels]
        for (kernel, k), address in zip(self._places, addresses, strict=True):
            arguments[kernel][k] = np.uint64(address)
        for (function, grid, block, _), given in zip(self._kernels, arguments, strict=True):
            function(grid, (block,), tuple(given), stream=self._stream)


class EmulatedLane:
    """Stand-in for a GPU lane (CUDA stream with memory), with the methods that kernels use. Arrays are filled with
    noise first, so that elements that a kernel does not write are noticed."""

    def __init__(self) -> None:
        self.launched: list[str] = []
        self.cache: dict[str, Any] = {}
        self.stream = None
        self.index, self.context = 0, 0  # libraries find no GPU

    def empty(self, n: int, dtype: Any) -> np.ndarray:
        out = np.empty(n, dtype)
        out.view(np.uint8)[...] = 0xA5
        return out

    def upload(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(np.array(a, order="C") for a in arrays)

    def allocate(self, nbytes: int) -> tuple[Any, int]:
        room = self.empty(nbytes + 256, np.uint8)
        return room, -(-room.ctypes.data // 256) * 256

    def pinned(self, nbytes: int) -> np.ndarray:
        return self.empty(nbytes, np.uint8)

    def launches(self, kernels: Sequence[Any], places: Sequence[tuple[int, int]]) -> PlainLaunches:
        return PlainLaunches(kernels, places, lambda to, host: ctypes.memmove(to, host.ctypes.data, host.nbytes))

    def download(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def to_device(self, batch: Batch) -> Batch:
        return batch

    def to_host(self, batch: Batch) -> Batch:
        return batch

    def holds(self, batch: Batch) -> bool:
        return True

    def address(self, array: np.ndarray) -> int:
        return array.ctypes.data

    def copy(self, address: int, source: int, nbytes: int) -> None:
        ctypes.memmove(address, source, nbytes)

    def function(self, source: str, kernel: str) -> Callable[..., None]:
        """Return the kernel as a function that is called like CuPy's."""
        return lambda grid, block, args, stream: self.launch(source, kernel, grid, *block, *args)

    def function_of_text(self, text: str, kernel: str) -> Callable[..., None]:
        """Like `function`, for a kernel of CUDA text."""
        return lambda grid, block, args, stream: self.launch_text(text, kernel, grid, *block, *args)

    def synchronize(self) -> None:
        """Do nothing: a call is complete when it returns."""

    wait = synchronize

    def copies_in(self, to: np.ndarray, host: np.ndarray, nbytes: np.ndarray) -> None:
        for there, here, count in zip(to.tolist(), host.tolist(), nbytes.tolist(), strict=True):
            ctypes.memmove(there, here, count)

    def copy_out(self, address: int, nbytes: int) -> np.ndarray:
        return np.frombuffer(ctypes.string_at(address, nbytes), np.uint8)

    def keep(self, *things: Any) -> None:
        """Do nothing: nothing is freed early."""

    def launch_beside(self, source: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        self.launch(source, kernel, grid, block, *args)

    def join(self) -> None:
        """Do nothing: a call is complete when it returns."""

    def launch(self, source: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        launched(source, kernel)
        self._run(kernel, lambda: _compiled(source, kernel), grid, block, args)

    def scratch(self, *sizes: int) -> tuple[Any, list[int]]:
        arrays = [self.empty(size, np.uint8) for size in sizes]
        return arrays, [a.ctypes.data for a in arrays]

    def launch_all(
        self, launches: Sequence[Any], into: Sequence[tuple[int, np.ndarray]] = (),
        out_of: Sequence[tuple[np.ndarray, int]] = (),
    ) -> None:  # fmt: skip
        for address, host in into:
            ctypes.memmove(address, host.ctypes.data, host.nbytes)
        for source, kernel, grid, block, args in launches:
            self.launch(source, kernel, grid, block, *args)
        for host, address in out_of:
            ctypes.memmove(host.ctypes.data, address, host.nbytes)

    def launch_text(self, text: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        self._run(kernel, lambda: compiled(text, kernel), grid, block, args)

    def _run(
        self, kernel: str, made: Callable[[], Any], grid: int | tuple[int, ...], block: int, args: tuple[Any, ...]
    ) -> None:
        width, height = (grid, 1) if isinstance(grid, int) else (*grid, 1)[:2]
        self.launched.append(kernel)
        if min(width, height) <= 0:
            return
        # A kernel's parameters are passed by address: of the pointer for arrays, of the value for scalars.
        values: list[Any] = []
        for a in args:
            values.append(ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else np.array(a))
        where = [ctypes.addressof(v) if isinstance(v, ctypes.c_void_p) else v.ctypes.data for v in values]
        made()(int(width), int(height), int(block), (ctypes.c_void_p * len(where))(*where))


class GuardedLane(EmulatedLane):
    """An emulated lane whose arrays end at a page without access, so that an access beyond the end ends the process."""

    def empty(self, n: int, dtype: Any) -> np.ndarray:
        nbytes = n * np.dtype(dtype).itemsize
        if nbytes == 0:
            return np.empty(0, dtype)
        out = Guarded(nbytes).empty(nbytes, at_end=True)
        out[...] = 0xA5
        return out.view(dtype)

    def upload(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        copies = []
        for a in arrays:
            copies.append(self.empty(a.size, a.dtype).reshape(a.shape))
            copies[-1][...] = a
        return tuple(copies)
