"""The JPEG kernels under test: on the GPU, or without one (g++ and cuda_emulator.h; memory is NumPy's)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from dali_run.ops.codecs.jpeg import cuda as jpeg_gpu
from dali_run.ops.codecs.jpeg import header as jpeg_header
from dali_run.ops.codecs.jpeg.boundaries import Boundaries

from ..cuda_on_cpu import library


def jpeg_library(options: tuple[str, ...]) -> ctypes.CDLL:
    """Return the library of the JPEG decoder's kernels, compiled for the CPU."""
    return library(jpeg_gpu.source_text(), "-O2", "-fno-strict-aliasing", *options)


class EmulatedRuntime:
    """Runtime that runs the JPEG kernels on the CPU. A strip that no kernel may write follows each allocation."""

    GUARD = 4096

    def __init__(self, *options: str) -> None:
        self.library = jpeg_library(options)
        self.launched: list[str] = []
        self._owners: list[NDArray[np.uint8]] = []

    def allocate(self, size: int) -> tuple[Any, int]:
        memory = np.full(size + 256 + self.GUARD, 0xA5, np.uint8)
        start = -memory.ctypes.data % 256
        memory[start + size :] = 0x5A
        view = memory[start : start + size]
        self._owners.append(memory[start + size :])
        return view, view.ctypes.data

    def check_guards(self) -> None:
        assert all((strip == 0x5A).all() for strip in self._owners)

    def stage(self, size: int) -> NDArray[np.uint8]:
        return np.full(size, 0xC3, np.uint8)

    def work(self) -> EmulatedRuntime:
        return self

    def submit(self) -> None:
        """Do nothing: a call is complete when it returns."""

    def download(self, data: NDArray[np.uint8], address: int) -> None:
        ctypes.memmove(data.ctypes.data, address, data.nbytes)

    def upload(self, address: int, data: NDArray[np.uint8]) -> None:
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    def zero(self, address: int, size: int) -> None:
        ctypes.memset(address, 0, size)

    def launch(self, kernel: str, grid: int, threads: int, batch: int) -> None:
        self.launched.append(kernel)
        function = ctypes.cast(getattr(self.library, kernel), ctypes.c_void_p)
        self.library.emulate(function, ctypes.c_int(grid), ctypes.c_int(threads), ctypes.c_void_p(batch))

    def read(self, address: int, size: int) -> NDArray[np.uint8]:
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)).copy()


class GpuRuntime(jpeg_gpu.LaneRuntime):
    def __init__(self) -> None:
        from dali_run.ops.gpu.lane import Lane

        self.lane = Lane()
        with self.lane:
            super().__init__(self.lane)

    def read(self, address: int, size: int) -> NDArray[np.uint8]:
        host = self.lane.copy_out(address, size)
        self.lane.synchronize()
        return host.copy()

    def check_guards(self) -> None:  # compute-sanitizer does it on a GPU
        pass


class Harness:
    """A lane (CUDA stream) with a JPEG decoder, which takes files and returns host arrays."""

    def __init__(self, runtime: Any, kind: type[jpeg_gpu.Decoder] = jpeg_gpu.Decoder) -> None:
        self.runtime = runtime
        self.decoder = kind(runtime)

    def upload(self, address: int, data: NDArray[np.uint8]) -> None:
        staged = self.runtime.stage(len(data))
        staged[:] = data
        work = self.runtime.work()
        work.upload(address, staged)
        work.submit()

    def decode(
        self,
        files: Sequence[bytes],
        make_output: Any,
        window: bool = False,
        boundaries: Boundaries | None = None,
        **plan_arguments: Any,
    ) -> tuple[list[NDArray[Any]], NDArray[np.int32]]:
        """Decode JPEG files. Return the status per file, and its output if the status is 0. ``make_output(plan,
        headers)`` plans the output; with ``window``, only the blocks that the output needs are computed. Facts that
        ``boundaries`` has about the files, by their indices, are used, and missing ones are added."""
        sizes = np.array([len(f) for f in files], np.int64)
        offsets = np.cumsum(sizes + 3) - sizes - 3  # also odd offsets
        buffer = np.full(int(offsets[-1] + sizes[-1]), 0xD7, np.uint8)
        for start, file in zip(offsets, files, strict=True):
            buffer[start : start + len(file)] = np.frombuffer(file, np.uint8)
        headers, scans = jpeg_header.read_scans(buffer, offsets, sizes)
        index, found = np.arange(len(files)), None if boundaries is None else list[Any]()
        known = None if boundaries is None else boundaries.counts(index, sizes)
        plan = jpeg_gpu.plan_decode(
            headers, offsets, sizes, scans=scans, stage=self.runtime.stage, known=known, **plan_arguments
        )
        if boundaries is not None and known is not None:
            boundaries.fill(index, known, plan.known)
        output = make_output(plan)
        if window:
            jpeg_gpu.limit(plan, output.windows)
        raw_owner, raw = self.runtime.allocate(len(buffer))
        self.upload(raw, buffer)
        dtype = jpeg_gpu.DTYPES[output.dtype]
        out_owner, out = self.runtime.allocate(max(output.elements, 1) * dtype.itemsize)
        status = self.decoder.decode(raw, plan, output, out, found=found)
        whole = self.runtime.read(out, output.elements * dtype.itemsize).view(dtype)
        status = status.copy()
        self.runtime.check_guards()
        if boundaries is not None and found is not None:
            boundaries.learn(index, status == 0, plan, found)
        del raw_owner, out_owner
        channels = 1 if output.output_type == jpeg_gpu.GRAY else 3
        results = []
        for (h, w), start in zip(output.shapes.tolist(), output.offsets.tolist(), strict=True):
            flat = whole[start : start + h * w * channels]
            chw = output.resize is not None and output.resize["stride_c"][0] != 1
            results.append(flat.reshape(channels, h, w) if chw else flat.reshape(h, w, channels))
        return results, status


def reference(file: bytes, colour: str = "RGB") -> NDArray[np.uint8]:
    return np.asarray(simplejpeg.decode_jpeg(file, colour))


def pixels(**options: Any) -> Any:
    return lambda plan: jpeg_gpu.pixel_output(plan, **({"orient": False} | options))


def assert_exact(harness: Harness, files: list[bytes]) -> None:
    results, status = harness.decode(files, pixels())
    assert not status.any(), status
    for i, (file, result) in enumerate(zip(files, results, strict=True)):
        np.testing.assert_array_equal(result, reference(file), err_msg=f"file {i}")
