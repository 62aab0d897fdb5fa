"""Device and Stream: where the dynamic mode stores data and runs operators."""

from __future__ import annotations

import threading
from typing import Any

from ...ops.errors import ArgumentTypeError, ArgumentValueError, DeviceError
from ...ops.gpu.current import OnGpu
from ...ops.gpu.lane import gpu_count


class _Local(threading.local):
    def __init__(self) -> None:
        self.devices: list[Device] = []
        self.streams: dict[int, Stream] = {}


_local = _Local()
_default_streams: dict[int, Stream] = {}


class Device:
    """The CPU or one GPU. ``with device:`` makes it the current device, on which operators without inputs run."""

    CPU: Device

    def __init__(self, name: str, device_id: int | None = None) -> None:
        """Accept ``cpu``, ``gpu``, ``gpu:1``; ``cuda`` is ``gpu``. Raises ValueError for other names and for GPU
        numbers that do not exist, DeviceError for a GPU on a machine without one."""
        kind, colon, number = name.partition(":")
        if colon and device_id is not None:
            raise ArgumentValueError(f"the device {name!r} already has a number; omit device_id")
        if colon:
            if not number.isdecimal():
                raise ArgumentValueError(f"{name!r} is not a device; use 'cpu', 'gpu' or 'gpu:N'")
            device_id = int(number)
        kind = "gpu" if kind == "cuda" else kind
        if kind not in ("cpu", "gpu"):
            raise ArgumentValueError(f"{name!r} is not a device; use 'cpu', 'gpu' or 'gpu:N'")
        if kind == "cpu" and device_id is not None:
            raise ArgumentValueError(f"the CPU has no number, got {device_id}")
        if kind == "gpu":
            if device_id is None:
                device_id = self.default_device_id("gpu")
            count = gpu_count()
            if not count:
                raise DeviceError(f"device {name!r} was requested, but this machine has no usable GPU; `dali-run "
                                  "doctor` shows the reason")  # fmt: skip
            if not 0 <= (device_id or 0) < count:
                raise ArgumentValueError(f"there is no GPU {device_id}; there are {count}, numbered from 0")
        self.device_type = kind
        self.device_id = device_id

    @staticmethod
    def current() -> Device:
        """Return the device of the innermost ``with``; outside of any, the first GPU, or the CPU on a machine without
        one."""
        if _local.devices:
            return _local.devices[-1]
        return Device("gpu") if gpu_count() else Device.CPU

    @staticmethod
    def default_device_id(device_type: str) -> int | None:
        """Return the GPU number for a device that was named without one: the GPU of the innermost ``with``, or 0; None
        for the CPU."""
        if device_type == "cpu":
            return None
        return next((d.device_id for d in reversed(_local.devices) if d.device_id is not None), 0)

    @staticmethod
    def type_from_dlpack(dev_type: Any) -> str:
        """Return ``cpu`` or ``gpu`` for DLPack's number of a device type (1 is the CPU). Raises ValueError for other
        types."""
        kinds = {1: "cpu", 3: "cpu", 2: "gpu", 13: "gpu"}  # host, page-locked host; CUDA, CUDA managed
        if int(dev_type) not in kinds:
            raise ArgumentValueError(f"DLPack's device type {dev_type} is neither the host nor a CUDA device")
        return kinds[int(dev_type)]

    @staticmethod
    def from_dlpack(dlpack_device: Any) -> Device:
        """Return the Device for ``dlpack_device``: an object with ``__dlpack_device__``, or the pair (device type,
        number) that this method returns."""
        own = getattr(dlpack_device, "__dlpack_device__", None)
        kind, number = dlpack_device if own is None else own()
        name = Device.type_from_dlpack(kind)
        return Device.CPU if name == "cpu" else Device("gpu", int(number))

    @property
    def on_host(self) -> bool:
        """Whether this is the CPU."""
        return self.device_type == "cpu"

    def __str__(self) -> str:
        return "cpu" if self.on_host else f"gpu:{self.device_id}"

    def __repr__(self) -> str:
        more = "" if self.on_host else f", device_id={self.device_id}"
        return f"Device(device_type={self.device_type!r}{more})"

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Device)
        return same and (self.device_type, self.device_id) == (other.device_type, other.device_id)  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self.device_type, self.device_id))

    def __enter__(self) -> Device:
        _local.devices.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _local.devices.pop()


Device.CPU = Device("cpu")


def device(obj: Any, id: int | None = None) -> Any:
    """Return ``obj``, which is a Device, a name or a torch.device, as a Device; None stays None. Raises TypeError and
    ValueError."""
    if obj is None:
        return None
    if isinstance(obj, str):
        return Device(obj, id)
    if id is not None:
        raise ArgumentValueError(f"a number goes with a name, such as 'gpu'; got {obj!r} and {id}")
    if isinstance(obj, Device):
        return obj
    if type(obj).__module__ == "torch" and type(obj).__name__ == "device":
        return Device(obj.type, obj.index if obj.type == "cuda" else None)
    raise ArgumentTypeError(f"a device is a Device, a name or a torch.device, got {obj!r}")


_NEW = object()


class Stream:
    """A CUDA stream: a new one, or a wrapper of a stream from another library (an object with ``__cuda_stream__``,
    PyTorch's, CuPy's, an address)."""

    create_new = _NEW

    def __init__(self, *, stream: Any = _NEW, device_id: int | None = None) -> None:
        """Create a CUDA stream, or wrap ``stream`` if it is given. Raises DeviceError without a GPU, TypeError if
        ``stream`` is not a stream."""
        self._device = Device("gpu", device_id)
        if stream is _NEW:
            import cupy

            with OnGpu(self._device.device_id or 0):
                self._held: Any = cupy.cuda.Stream(non_blocking=True)
            self._handle = int(self._held.ptr)
            return
        self._held = stream
        self._handle = _address(stream)

    @property
    def device_id(self) -> int | None:
        """Number of the GPU that the stream belongs to."""
        return self._device.device_id

    @property
    def handle(self) -> int:
        """Address of the CUDA stream; 0 is the default stream."""
        return self._handle

    def synchronize(self) -> None:
        """Wait until the GPU has finished all work on this stream."""
        import cupy

        with OnGpu(self._device.device_id or 0):
            cupy.cuda.runtime.streamSynchronize(self._handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle

    def __str__(self) -> str:
        return f"Stream({self._handle:#x}, device_id={self.device_id})"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.handle, self.device_id) == (other.handle, other.device_id)

    def __hash__(self) -> int:
        return hash((self._handle, self.device_id))


def _address(stream: Any) -> int:
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr"):  # attributes of PyTorch's and of CuPy's streams
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise ArgumentTypeError(f"{stream!r} is not a CUDA stream")


def stream(*, stream: Any = _NEW, device_id: int | None = None) -> Stream | None:
    """Return a new CUDA stream, or ``stream`` wrapped in a Stream; None stays None. Raises DeviceError without a
    GPU."""
    if stream is None or isinstance(stream, Stream):
        return stream
    return Stream(stream=stream, device_id=device_id)


def get_default_stream(device_id: int | None = None) -> Stream | None:
    """Return the CUDA stream that `set_default_stream` set for a GPU, for all threads that have not set their own; None
    if none was set."""
    return _default_streams.get(0 if device_id is None else device_id)


def set_default_stream(cuda_stream: Any, /, device_id: int | None = None) -> None:
    """Make all threads that have not set a CUDA stream of their own use ``cuda_stream``; None removes the setting."""
    _set(_default_streams, cuda_stream, device_id)


def get_current_stream() -> Stream | None:
    """Return the CUDA stream that this thread's contexts use on the current GPU; None if each context creates its
    own."""
    number = Device.default_device_id("gpu") or 0
    return _local.streams.get(number) or _default_streams.get(number)


def set_current_stream(cuda_stream: Any, /) -> None:
    """Make this thread's contexts use ``cuda_stream`` on the current GPU; None removes the setting."""
    _set(_local.streams, cuda_stream, Device.default_device_id("gpu"))


def _set(table: dict[int, Stream], value: Any, device_id: int | None) -> None:
    if value is None:
        table.pop(device_id or 0, None)
        return
    wrapped = stream(stream=value, device_id=device_id)
    assert wrapped is not None
    table[wrapped.device_id or 0] = wrapped
