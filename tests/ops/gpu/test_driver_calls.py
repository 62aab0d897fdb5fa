"""Work for the CUDA driver: what its functions are called with. They are Python's here, called as C calls them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dali_run.ops.gpu import driver_calls as stream_work

_POINTER, _LONG, _WORD = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint
_KINDS: dict[str, tuple[Any, ...]] = {
    "cuLaunchKernel": (_POINTER, *[_WORD] * 7, _POINTER, _POINTER, _POINTER),
    "cuMemcpyHtoDAsync_v2": (_LONG, _POINTER, ctypes.c_size_t, _POINTER),
    "cuMemcpyDtoHAsync_v2": (_POINTER, _LONG, ctypes.c_size_t, _POINTER),
    "cuMemsetD8Async": (_LONG, ctypes.c_ubyte, ctypes.c_size_t, _POINTER),
    "cuEventRecord": (_POINTER, _POINTER),
    "cuEventElapsedTime": (_POINTER, _POINTER, _POINTER),
}
"""The functions' parameters, from the driver's manual."""


class Library:
    """A driver that notes down its calls; the ``fails``-th of them fails."""

    def __init__(self, patch: pytest.MonkeyPatch, fails: int = -1) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._functions = {n: ctypes.CFUNCTYPE(ctypes.c_int, *k)(self._noted(n, fails)) for n, k in _KINDS.items()}
        self._addresses = {n: ctypes.cast(f, ctypes.c_void_p).value for n, f in self._functions.items()}
        patch.setattr(stream_work, "load", lambda: self._addresses)  # and so its functions live as long as it is there

    def _noted(self, name: str, fails: int) -> Callable[..., int]:
        def call(*given: Any) -> int:
            if name == "cuLaunchKernel":  # the kernel's arguments, by the addresses of their addresses
                *given, where, extra = given  # type: ignore[assignment]
                assert extra is None
                count = 16 if given[1] == 2 else 1
                places = [_LONG.from_address(where + 8 * k).value for k in range(count)]
                given = (*given, *(_LONG.from_address(place).value for place in places))
            if name == "cuEventElapsedTime":
                where, *given = given  # type: ignore[assignment]
                ctypes.c_float.from_address(where).value = 2.5
            self.calls.append((name, *given))
            return 700 if len(self.calls) == fails else 0

        return call


def everything(work: stream_work.Work) -> None:
    work.zero(1 << 40, 1 << 35)
    work.zero(1 << 40, 0)  # the driver would refuse it
    work.copy_in(2 << 40, 3 << 44, 1000)
    work.launch(0x7F00_1234_5678, (1 << 31) - 1, 1024, 5 << 40)
    work.launch(0x7F00_1234_9999, 2, 32, *range(6 << 40, (6 << 40) + 16))
    work.record(9 << 44)
    work.copy_out(7 << 44, 8 << 40, 4)


CALLS = [
    ("cuMemsetD8Async", 1 << 40, 0, 1 << 35, 77),
    ("cuMemcpyHtoDAsync_v2", 2 << 40, 3 << 44, 1000, 77),
    ("cuLaunchKernel", 0x7F00_1234_5678, (1 << 31) - 1, 1, 1, 1024, 1, 1, 0, 77, 5 << 40),
    ("cuLaunchKernel", 0x7F00_1234_9999, 2, 1, 1, 32, 1, 1, 0, 77, *range(6 << 40, (6 << 40) + 16)),
    ("cuEventRecord", 9 << 44, 77),
    ("cuMemcpyDtoHAsync_v2", 7 << 44, 8 << 40, 4, 77),
]


def test_everything_is_begun_in_order_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    work = stream_work.Work(77)
    everything(work)
    assert library.calls == []
    work.submit()
    work.submit()
    assert library.calls == CALLS


def test_as_much_as_one_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    work = stream_work.Work(77)
    for k in range(1, 101):
        work.launch(k, 1, 32, 2 * k)
    work.submit()
    assert [(call[1], call[-1]) for call in library.calls] == [(k, 2 * k) for k in range(1, 101)]


def test_steady_launches_are_begun_at_once_with_what_is_in_their_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    given = np.array([7, 8, 9])
    launch = stream_work.Work(77).steady(0x7F00_1234_5678, 3, 32, given)
    launch()
    given[0] = 70
    launch()
    assert library.calls == [("cuLaunchKernel", 0x7F00_1234_5678, 3, 1, 1, 32, 1, 1, 0, 77, first) for first in (7, 70)]


def test_a_steady_launch_that_the_driver_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(status: int) -> None:
        raise RuntimeError(status)

    monkeypatch.setattr(stream_work, "raise_error", refused)
    Library(monkeypatch, fails=2)
    launch = stream_work.Work(77).steady(1, 1, 32, np.array([7]))
    launch()
    with pytest.raises(RuntimeError, match="700"):
        launch()


def test_the_time_between_two_events(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    assert stream_work.milliseconds([(3 << 44, 4 << 44), (5 << 44, 6 << 44)]) == [2.5, 2.5]
    assert library.calls == [("cuEventElapsedTime", 3 << 44, 4 << 44), ("cuEventElapsedTime", 5 << 44, 6 << 44)]
    assert stream_work.milliseconds([]) == []


def test_no_time_between_events_that_the_driver_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(status: int) -> None:
        raise RuntimeError(status)

    monkeypatch.setattr(stream_work, "raise_error", refused)
    Library(monkeypatch, fails=1)
    with pytest.raises(RuntimeError, match="700"):
        stream_work.milliseconds([(3 << 44, 4 << 44)])


@pytest.mark.parametrize("fails", [1, 3])
def test_nothing_is_begun_behind_what_was_refused(monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
    def refused(status: int) -> None:
        raise RuntimeError(status)

    monkeypatch.setattr(stream_work, "raise_error", refused)
    library = Library(monkeypatch, fails)
    work = stream_work.Work(77)
    everything(work)
    with pytest.raises(RuntimeError, match="700"):
        work.submit()
    assert library.calls == CALLS[:fails]
    work.submit()
    assert library.calls == CALLS[:fails], "nor later"


def test_launches_are_begun_again_with_other_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    library, seen = Library(monkeypatch), []
    functions = [SimpleNamespace(ptr=0x7F00_0001), SimpleNamespace(kernel=SimpleNamespace(ptr=0x7F00_0002))]
    kernels = [
        (functions[0], (3, 4), 128, (np.uint64(0), np.int32(-5), np.float32(0.5), np.uint64(0))),
        (functions[1], (7,), 64, (np.uint64(9 << 40), np.uint64(0))),
    ]
    launches = stream_work.Launches(77, kernels, [(0, 0), (0, 3), (1, 1)])
    host = np.arange(10, dtype=np.uint8)
    for turn in range(2):
        launches.begin(np.array([1, 2, 3]) << 40, 5 << 40, host[: 10 * turn])
        where = launches._where
        seen.append([_LONG.from_address(int(at)).value for at in where])
        assert launches._values.view(np.int32)[2] == -5
        assert launches._values.view(np.float32)[4] == 0.5
        assert [seen[-1][k] for k in (0, 3, 4, 5)] == [1 << 40, 2 << 40, 9 << 40, 3 << 40]
    first, second = [("cuLaunchKernel", 0x7F00_0001, 3, 4, 1, 128, 1, 1, 0, 77, 1 << 40),
                     ("cuLaunchKernel", 0x7F00_0002, 7, 1, 1, 64, 1, 1, 0, 77, 9 << 40)]  # fmt: skip
    copy = ("cuMemcpyHtoDAsync_v2", 5 << 40, host.ctypes.data, 10, 77)
    assert library.calls == [first, second, copy, first, second]
