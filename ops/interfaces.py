"""Interfaces between kernels and what serves them: the lane of a device, lenders of mapped files, decoder processes.

Kernels and the engine are written against these. `gpu.lane.Lane` drives a GPU; the engine's null device and the tests'
emulated lanes have the same methods over host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

if TYPE_CHECKING:
    from .batch import Batch
    from .errors import SampleError


class Kept(Protocol):
    """Facts that an operator keeps about the records of a data set."""

    @property
    def records(self) -> int:
        """Records of which something is kept."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are taken."""


@dataclass
class Remembered:
    """Facts that operators keep about the records of a data set that is read again and again."""

    budget: int
    """Bytes of host memory that an operator may keep."""
    kept: dict[tuple[int, int], tuple[object, Kept]] = field(default_factory=dict)
    """By the ids of operator and data set: the data set itself, and the facts."""

    def records(self) -> int:
        """Records of which something is kept, for each operator that does."""
        return sum(facts.records for _, facts in list(self.kept.values()))

    def nbytes(self, op: object = None) -> int:
        """Bytes of memory that are taken, by all operators or by ``op``."""
        return sum(facts.nbytes for (whose, _), (_, facts) in list(self.kept.items()) if op is None or whose == id(op))


class DeviceArray(Protocol):
    """A flat array in a device's memory: CuPy's on a GPU, NumPy's where a device is emulated."""

    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def view(self, dtype: Any) -> Any: ...
    def __getitem__(self, key: Any) -> Any: ...


class Copies(Protocol):
    """The part of a device that the engine needs: batches go there and come back."""

    index: int
    """Number of the device."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *exc: object) -> None: ...
    def empty(self, n: int, dtype: Any) -> DeviceArray:
        """An uninitialised array of ``n`` elements."""
        ...

    def to_device(self, batch: Batch) -> Batch:
        """The batch with its data on the device; itself where it is there."""
        ...

    def to_host(self, batch: Batch) -> Batch:
        """The batch with its data on the host, valid after `wait`."""
        ...

    def holds(self, batch: Batch) -> bool:
        """Whether the batch's data is on this device."""
        ...

    def wait(self) -> None:
        """Return when the device has done all that it was given."""
        ...

    def synchronize(self) -> None:
        """As `wait`, and release what was kept for it."""
        ...

    def give_back(self, *, mine: bool) -> None:
        """Give back memory that lies idle; ``mine``: also what this lane keeps."""
        ...

    def close(self) -> None:
        """Give everything back. Closing twice is allowed."""
        ...


class Lane(Copies, Protocol):
    """A stream of a GPU with its memory: the part that kernels need besides `Copies`."""

    cache: dict[str, Any]
    """Whatever operators keep between batches, by a name of their own."""

    def upload(self, *arrays: npt.NDArray[Any]) -> tuple[Any, ...]:
        """Copies of host arrays on the device, in one transfer."""
        ...

    def download(self, array: DeviceArray) -> npt.NDArray[Any]:
        """The array on the host, valid after `wait`."""
        ...

    def address(self, array: DeviceArray) -> int:
        """Where an array begins."""
        ...

    def copy(self, address: int, source: int, nbytes: int) -> None:
        """Copy from the device to the device."""
        ...

    def copies_in(self, to: npt.NDArray[np.int64], host: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]) -> None:
        """Copy pieces of page-locked memory to the device, by their addresses; none of them is empty."""
        ...

    def launch(self, source: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        """Run ``kernel`` of the file ``source`` in ops/cuda."""
        ...

    def launch_beside(self, source: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        """As `launch`, beside what follows, until `join`. Arrays are kept until it is done."""
        ...

    def after(self, event: Any) -> None:
        """Have all that follows begin after an event of another stream."""
        ...

    def join(self) -> None:
        """Have all that follows begin after what was launched beside it."""
        ...

    def scratch(self, *sizes: int) -> tuple[Any, list[int]]:
        """Memory for arrays of so many bytes: its owner, and where each array begins."""
        ...

    def launch_all(
        self, launches: Sequence[tuple[str, str, int, int, tuple[Any, ...]]],
        into: Sequence[tuple[int, npt.NDArray[np.uint8]]] = (),
        out_of: Sequence[tuple[npt.NDArray[Any], int]] = (),
    ) -> None:  # fmt: skip
        """Run several kernels (source, kernel, blocks, threads of one, arguments), and copies from and to page-locked
        memory before and after them, begun by one call."""
        ...

    def launch_text(self, text: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        """Run ``kernel`` of the CUDA source ``text``."""
        ...

    def keep(self, *things: Any) -> None:
        """Hold references until the device is done with what it was given so far."""
        ...


class Lender(Protocol):
    """Lends views of mapped files that a device fetches by itself."""

    def holds(self, mapped: Any, offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> bool:
        """Whether these extents of ``mapped`` are registered already."""
        ...

    def lend(
        self, mapped: Any, offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint8] | str:
        """A view of the file over these extents, or why the host must copy them."""
        ...


class Upload(Protocol):
    """Upload of a batch to a device while it is being read; see `gpu.uploads`."""

    address: int
    """Address of the batch on the device."""
    calls: npt.NDArray[np.int64]
    """Addresses of driver functions, and the stream, for compiled loops; see `gpu.uploads.COPY`."""

    def wait(self, pieces: Any) -> None:
        """Wait until the next of the thread's ``pieces`` can be filled."""
        ...

    def finish_files(
        self, shown: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64],
        kept: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.uint8]:  # fmt: skip
        """All copies are enqueued. Return the host array of the files: file i is ``sizes[i]`` bytes long and begins at
        ``at[i]``; ``shown`` holds its first ``kept[i]`` bytes, the others are on the device only."""
        ...

    def finish_extents(
        self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64],
        at: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.uint8]:  # fmt: skip
        """All copies are enqueued. Return an array over the mapped file ``data``; its extent at ``offsets[i]`` was
        copied to ``at[i]`` on the device."""
        ...


class Uploader(Protocol):
    """Provider of uploads to a device while batches are read; see `gpu.uploads`."""

    def begin(self, nbytes: int, sizes: npt.NDArray[np.int64] | None = None, reason: str = "") -> Upload | None:
        """Return an upload with device memory for a batch, or None if the batch is to be read as a whole. ``sizes``:
        sizes of its files. ``reason``: why the host reads the batch although the GPU could; shown in the report."""
        ...

    def pieces(self) -> AbstractContextManager[Any]:
        """Context manager: provide page-locked pieces that the calling thread fills."""
        ...

    def failed(self, problem: Exception, nbytes: int) -> None:
        """Report that a batch of ``nbytes`` could not be uploaded."""
        ...


class StartedWork(Protocol):
    """Work of a kernel that threads of the host have started; see `base.Operator.start_early`."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that it holds."""
        ...


class Isolation(Protocol):
    """Decoders in processes of their own; see `codecs.isolation`."""

    jpeg: bool
    """JPEGs are decoded there, too."""

    def decode(self, *args: Any, **kwargs: Any) -> Any:
        """As `codecs.pillow.decode`."""
        ...

    def lend(
        self, data: memoryview, header: Any, adjust_orientation: bool, max_pixels: int, use: Callable[[Any], T],
        lenient: bool = False,
    ) -> T:  # fmt: skip
        """The result of ``use`` on the decoded pixels, which are valid only until it returns."""
        ...

    def lend_several(
        self, files: Sequence[tuple[memoryview, Any]], adjust_orientation: bool, max_pixels: int,
        use: Callable[[int, Any], T],
    ) -> Sequence[T | SampleError]:  # fmt: skip
        """`lend` for all ``files``, each with its header: results or errors."""
        ...

    def decode_into(self, *args: Any, **kwargs: Any) -> None:
        """As `codecs.jpeg.turbo.decode_into`."""
        ...

    def close(self) -> None:
        """End all processes at once."""
        ...
