"""Interfaces between kernels and the engine: the lane of a device, zero-copy sources, uploads, decoder processes.

`gpu.lane.Lane` implements `Lane` for a GPU; the engine's null device and the tests' emulated lanes implement it over
host memory.
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


class RecordFacts(Protocol):
    """Facts that one operator has cached about the records of a data set, such as parsed headers."""

    @property
    def records(self) -> int:
        """Number of records about which facts are cached."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the facts occupy."""


@dataclass
class FactCache:
    """Cache of facts about records, such as parsed headers, for data sets that are read repeatedly."""

    budget: int
    """Maximum bytes of host memory for the facts of one operator."""
    entries: dict[tuple[int, int], tuple[object, RecordFacts]] = field(default_factory=dict)
    """Facts about records, with their data set, by (id of operator, id of data set)."""

    def records(self) -> int:
        """Number of cached records, summed over operators."""
        return sum(facts.records for _, facts in list(self.entries.values()))

    def nbytes(self, op: object = None) -> int:
        """Return the bytes of host memory that cached facts occupy: those of ``op``, or of all operators if None."""
        return sum(
            facts.nbytes for (whose, _), (_, facts) in list(self.entries.items()) if op is None or whose == id(op)
        )


class DeviceArray(Protocol):
    """A flat array in a device's memory: CuPy's on a GPU, NumPy's on an emulated device."""

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
    """Part of a device that the engine uses: upload and download of batches, and waiting."""

    index: int
    """Index of the device among those that the process sees."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *exc: object) -> None: ...
    def empty(self, n: int, dtype: Any) -> DeviceArray:
        """Return an uninitialised array of ``n`` elements in device memory."""
        ...

    def to_device(self, batch: Batch) -> Batch:
        """Return the batch with its data on the device; the batch itself if the data is there already."""
        ...

    def to_host(self, batch: Batch) -> Batch:
        """Return the batch with its data in host memory, valid after `wait`."""
        ...

    def holds(self, batch: Batch) -> bool:
        """Return whether the batch's data is on this device."""
        ...

    def wait(self) -> None:
        """Wait until the device has finished all work that was enqueued."""
        ...

    def synchronize(self) -> None:
        """Wait as `wait` does, and drop references that were kept for the enqueued work."""
        ...

    def release_memory(self, *, launching: bool) -> None:
        """Free cached memory that is not in use. ``launching``: whether the calling thread also launches kernels on
        this device; only then may cached tables of kernels be freed."""
        ...

    def close(self) -> None:
        """Free all memory and streams. Closing twice is allowed."""
        ...


class Lane(Copies, Protocol):
    """A CUDA stream with its memory: the methods that kernels use, in addition to `Copies`. One thread at a time uses a
    lane."""

    cache: dict[str, Any]
    """Data that operators keep between batches on this CUDA stream, such as tables in device memory, by key."""

    def upload(self, *arrays: npt.NDArray[Any]) -> tuple[Any, ...]:
        """Copy host arrays to the device in one transfer, and return the copies."""
        ...

    def download(self, array: DeviceArray) -> npt.NDArray[Any]:
        """Return a copy of the array in host memory, valid after `wait`."""
        ...

    def address(self, array: DeviceArray) -> int:
        """Return the address of an array's first element."""
        ...

    def copy(self, address: int, source: int, nbytes: int) -> None:
        """Copy ``nbytes`` from device address ``source`` to device address ``address``."""
        ...

    def copies_in(self, to: npt.NDArray[np.int64], host: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]) -> None:
        """Copy several blocks of page-locked host memory to the device in one call: ``nbytes[i]`` bytes from host
        address ``host[i]`` to device address ``to[i]``. No block may be empty."""
        ...

    def launch(self, source: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        """Launch ``kernel`` of the file ``source`` in ops/cuda."""
        ...

    def launch_beside(self, source: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        """Launch a kernel like `launch`, but on a second stream: after all earlier launches, and at the same time as
        later ones until `join`. Array arguments are kept alive until `synchronize`."""
        ...

    def after(self, event: Any) -> None:
        """Make later work on this CUDA stream wait for an event of another stream."""
        ...

    def join(self) -> None:
        """Make later work on this CUDA stream wait for the kernels of `launch_beside`."""
        ...

    def scratch(self, *sizes: int) -> tuple[Any, list[int]]:
        """Reserve memory for arrays of ``sizes`` bytes. Return the object that owns the memory, and the address of each
        array."""
        ...

    def launch_all(
        self, launches: Sequence[tuple[str, str, int, int, tuple[Any, ...]]],
        into: Sequence[tuple[int, npt.NDArray[np.uint8]]] = (),
        out_of: Sequence[tuple[npt.NDArray[Any], int]] = (),
    ) -> None:  # fmt: skip
        """Launch several kernels in one call, each given as (source, kernel, blocks, threads per block, arguments).
        ``into``: page-locked arrays to copy to the device before. ``out_of``: device memory to copy to page-locked
        arrays after."""
        ...

    def launch_text(self, text: str, kernel: str, grid: int | tuple[int, ...], block: int, *args: Any) -> None:
        """Launch ``kernel`` of the CUDA source ``text``."""
        ...

    def keep(self, *things: Any) -> None:
        """Keep the objects ``things`` alive until the device has finished the work enqueued so far."""
        ...


class Lender(Protocol):
    """Provider of arrays over memory-mapped files. The device reads the bytes itself, without a copy on the host."""

    def holds(self, mapped: Any, offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> bool:
        """Return whether these byte ranges (``offsets``, ``sizes``) of the mapped file ``mapped`` are already
        registered with the device."""
        ...

    def lend(
        self, mapped: Any, offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint8] | str:
        """Return an array over these byte ranges of the mapped file; or a text, the reason why the host must copy the
        bytes."""
        ...


class Upload(Protocol):
    """Upload of one batch to a device while the batch is being read; see `gpu.uploads`."""

    address: int
    """Address in device memory to which the batch is copied."""
    calls: npt.NDArray[np.int64]
    """Addresses of CUDA driver functions and of a CUDA stream, for compiled loops that enqueue copies themselves; see
    `gpu.uploads.COPY`."""

    def wait(self, pieces: Any) -> None:
        """Wait until the device has copied the next page-locked block of ``pieces``, which the calling thread can then
        fill again."""
        ...

    def writable_block(self) -> Any:
        """Return the batch's device memory as an array, uint8, to which work on any stream may write from now on."""
        ...

    def finish_arrays(self, lease: Callable[[Any, Any, Any], Any]) -> npt.NDArray[np.uint8]:
        """Finish an upload whose bytes are in the device memory already. Return the array of the lease that
        ``lease(upload, event, block)`` returns, an owner of that memory."""
        ...

    def finish_files(
        self, shown: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64],
        kept: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.uint8]:  # fmt: skip
        """Return the host array of the uploaded files; called when all copies are enqueued. File i has ``sizes[i]``
        bytes and begins at ``at[i]``. Only its first ``kept[i]`` bytes are in host memory, in ``shown``."""
        ...

    def finish_extents(
        self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64],
        at: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.uint8]:  # fmt: skip
        """Return an array over the mapped file ``data``, for byte ranges that were uploaded; called when all copies
        are enqueued. The range that begins at byte ``offsets[i]`` of the file was copied to byte ``at[i]`` on the
        device."""
        ...


class Uploader(Protocol):
    """Provider of an `Upload` for each batch that is read; see `gpu.uploads`."""

    enabled: bool
    """Whether batches may be uploaded while they are read, so that `begin` may return an upload. If not, ``gpu`` is not
    set."""
    index: int
    """Index of the GPU."""
    gpu: AbstractContextManager[Any]
    """Context manager that makes the GPU current in the calling thread."""

    def begin(self, nbytes: int, sizes: npt.NDArray[np.int64] | None = None, reason: str = "") -> Upload | None:
        """Start the upload of a batch of ``nbytes`` and return it, with its device memory. Return None if the batch
        should be read to host memory first. ``sizes``: sizes of the files. ``reason``: text for the report, why the GPU
        does not read the files itself."""
        ...

    def pieces(self) -> AbstractContextManager[Any]:
        """Return a context manager that provides page-locked blocks, which the calling thread fills with bytes to
        upload."""
        ...

    def decline(self, nbytes: int, reason: str) -> None:
        """Report that a batch of ``nbytes`` is read into host memory first, and why."""
        ...

    def failed(self, problem: Exception, nbytes: int) -> None:
        """Report that a batch of ``nbytes`` could not be uploaded."""
        ...


class StartedWork(Protocol):
    """Part of a kernel's work that CPU threads have started early; see `base.Operator.start_early`."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the work occupies."""
        ...


class Isolation(Protocol):
    """Decoders in separate processes; implemented by `codecs.isolation`."""

    jpeg: bool
    """Whether JPEGs are also decoded in these processes."""

    def decode(self, *args: Any, **kwargs: Any) -> Any:
        """Decode in another process, like `codecs.pillow.decode`."""
        ...

    def lend(
        self, data: memoryview, header: Any, adjust_orientation: bool, max_pixels: int, use: Callable[[Any], T],
        lenient: bool = False,
    ) -> T:  # fmt: skip
        """Decode a file in another process, call ``use`` on the pixels, and return the result of ``use``. The pixels
        are valid only until ``use`` returns."""
        ...

    def lend_several(
        self, files: Sequence[tuple[memoryview, Any]], adjust_orientation: bool, max_pixels: int,
        use: Callable[[int, Any], T],
    ) -> Sequence[T | SampleError]:  # fmt: skip
        """Call `lend` for each of ``files``, given with its header. Return one result or error per file, in order."""
        ...

    def decode_into(self, *args: Any, **kwargs: Any) -> None:
        """Decode in another process, like `codecs.jpeg.turbo.decode_into`."""
        ...

    def close(self) -> None:
        """Terminate all processes."""
        ...
