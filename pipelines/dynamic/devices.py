"""Device and Stream: where the dynamic mode keeps data and runs operators."""

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
    """The CPU, or one GPU. ``with device:`` makes it the one where operators without inputs run."""

    CPU: Device

    def __init__(self, name: str, device_id: int | None = None) -> None:
        """``cpu``, ``gpu``, ``gpu:1``; ``cuda`` is ``gpu``. Raises ValueError for other names and for numbers of GPUs
        that are not there, DeviceError where a GPU is asked for and there is none."""
        kind, colon, number = name.partition(":")
        if colon and device_id is not None:
            raise ArgumentValueError(f"the device {name!r} has a number already; leave device_id away")
        if colon:
            if not number.isdecimal():
                raise ArgumentValueError(f"{name!r} is no device; there are 'cpu', 'gpu' and 'gpu:N'")
            device_id = int(number)
        kind = "gpu" if kind == "cuda" else kind
        if kind not in ("cpu", "gpu"):
            raise ArgumentValueError(f"{name!r} is no device; there are 'cpu', 'gpu' and 'gpu:N'")
        if kind == "cpu" and device_id is not None:
            raise ArgumentValueError(f"the CPU has no number, got {device_id}")
        if kind == "gpu":
            if device_id is None:
                device_id = self.default_device_id("gpu")
            there = gpu_count()
            if not there:
                raise DeviceError(f"device {name!r} was asked for, but this machine has no usable GPU; `dali-run "
                                  "doctor` says why")  # fmt: skip
            if not 0 <= (device_id or 0) < there:
                raise ArgumentValueError(f"there is no GPU {device_id}; there are {there}, numbered from 0")
        self.device_type = kind
        self.device_id = device_id

    @staticmethod
    def current() -> Device:
        """The device of the innermost ``with``; the first GPU, or the CPU where there is none, outside of any."""
        if _local.devices:
            return _local.devices[-1]
        return Device("gpu") if gpu_count() else Device.CPU

    @staticmethod
    def default_device_id(device_type: str) -> int | None:
        """The number that a device without one has: that of the innermost GPU of ``with``, or 0; None for the CPU."""
        if device_type == "cpu":
            return None
        return next((d.device_id for d in reversed(_local.devices) if d.device_id is not None), 0)

    @staticmethod
    def type_from_dlpack(dev_type: Any) -> str:
        """``cpu`` or ``gpu``, for DLPack's number of a kind of device. Raises ValueError for other kinds."""
        kinds = {1: "cpu", 3: "cpu", 2: "gpu", 13: "gpu"}  # host, page-locked host; CUDA, CUDA managed
        if int(dev_type) not in kinds:
            raise ArgumentValueError(f"DLPack's device type {dev_type} is neither the host nor a CUDA device")
        return kinds[int(dev_type)]

    @staticmethod
    def from_dlpack(dlpack_device: Any) -> Device:
        """The device of an object with ``__dlpack_device__``, or of such a pair of numbers."""
        own = getattr(dlpack_device, "__dlpack_device__", None)
        kind, number = dlpack_device if own is None else own()
        name = Device.type_from_dlpack(kind)
        return Device.CPU if name == "cpu" else Device("gpu", int(number))

    @property
    def on_host(self) -> bool:
        """It is the CPU."""
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
    """``obj`` as a Device: itself, a name, a torch.device; None stays None. Raises TypeError and ValueError."""
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
    """A CUDA stream: a new one, or one of another library's (``__cuda_stream__``, PyTorch's, an address)."""

    create_new = _NEW

    def __init__(self, *, stream: Any = _NEW, device_id: int | None = None) -> None:
        """Raises DeviceError without a GPU, TypeError for what is no stream."""
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
        """The GPU."""
        return self._device.device_id

    @property
    def handle(self) -> int:
        """The address; 0 is the default stream."""
        return self._handle

    def synchronize(self) -> None:
        """Wait until the GPU has done all that was put on this stream."""
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
    for name in ("cuda_stream", "ptr"):  # PyTorch's, CuPy's
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise ArgumentTypeError(f"{stream!r} is no CUDA stream")


def stream(*, stream: Any = _NEW, device_id: int | None = None) -> Stream | None:
    """A new stream, or ``stream`` wrapped; None stays None. Raises DeviceError without a GPU."""
    if stream is None or isinstance(stream, Stream):
        return stream
    return Stream(stream=stream, device_id=device_id)


def get_default_stream(device_id: int | None = None) -> Stream | None:
    """The stream of all threads that have none of their own; None where none was set."""
    return _default_streams.get(0 if device_id is None else device_id)


def set_default_stream(cuda_stream: Any, /, device_id: int | None = None) -> None:
    """Let all threads that have no stream of their own use ``cuda_stream``; None takes it back."""
    _set(_default_streams, cuda_stream, device_id)


def get_current_stream() -> Stream | None:
    """The stream of this thread's default context; None where it makes its own."""
    number = Device.default_device_id("gpu") or 0
    return _local.streams.get(number) or _default_streams.get(number)


def set_current_stream(cuda_stream: Any, /) -> None:
    """Let this thread's contexts use ``cuda_stream``; None takes it back."""
    _set(_local.streams, cuda_stream, Device.default_device_id("gpu"))


def _set(table: dict[int, Stream], value: Any, device_id: int | None) -> None:
    if value is None:
        table.pop(device_id or 0, None)
        return
    wrapped = stream(stream=value, device_id=device_id)
    assert wrapped is not None
    table[wrapped.device_id or 0] = wrapped
