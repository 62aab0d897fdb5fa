"""Operators gaussian_blur and laplacian: a window along each axis, one axis after the other, in float32."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec, Stage
from ..batch import Batch, elements
from ..context import Context
from ..conversion import saturate
from ..copies.strided import CUDA_TYPES
from ..errors import SampleError, SpecError
from ..gpu.launch_recording import changing, fixed, without_data
from ..images.frames import ImageParts, image_parts
from ..kernels import Kernels
from ..libraries import presets
from ..types import DALIDataType, to_numpy
from .axes import F32, by_axis, geometry, host_output, on_host, spatial, whole_numbers

I32 = npt.NDArray[np.int32]

_kernels: Any = Kernels(".separable_cpu", __package__)
_windows: Any = Kernels(".windows_cpu", __package__)

_MAX_LAPLACIAN = 23
"""Maximum length of laplacian's windows, as in DALI."""
_THREADS = 256
_FOLD = 4
"""Number of values that each GPU thread computes, as in separable.cu."""
_RADII = (1, 2, 3, 4, 6, 8, 12)
"""Radii of windows for which the kernel `plane` of separable.cu is compiled."""
_PIXELS, _MAX_THREADS, _STRIP, _MAX_CHANNELS = 4, 192, 64, 4
"""Constants of the kernel `plane` in separable.cu: pixels per thread, threads per block, lines per block, maximum
number of channels."""


class Separable(Operator, abstract=True):
    """Base class of gaussian_blur and laplacian. The result is a sum of terms. For each term, a window (one-dimensional
    filter) is applied along each axis, one axis after the other. Borders mirror the image without repeating its edge.
    Frames and channels are not filtered."""

    replayable = True
    bound = "1 level; floats within 1e-5 of the largest value"
    symmetric: ClassVar[bool] = False
    """Whether there is only one term, with symmetric windows."""

    dtype: Annotated[DALIDataType | None, Arg("data type of the output: FLOAT, or by default that of the input")] = None

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if self.dtype not in (None, DALIDataType.FLOAT, data.dtype) and data.dtype is not None:
            raise SpecError(f"dtype must be FLOAT or the input's, got {self.dtype.name if self.dtype else None}")
        if data.ndim is not None:
            spatial(data.layout, data.ndim)
        return Spec(data.shape, data.dtype if self.dtype is None else self.dtype, data.layout)

    def windows(self, ctx: Context, items: ImageParts, axes: int) -> tuple[F32, I32, F32]:
        """Return the windows of the T terms for each of M images, [M, T, 3, L] in the order depth, height, width; their
        lengths [M, T, 3]; and the factors of the terms [M, T]."""
        raise NotImplementedError

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        _, axes = spatial(images.layout, images.ndim)
        parts = image_parts(ctx, images, self.arguments())
        layout = images.layout if parts.sample is None else images.layout[1:]
        windows, lengths, factors = self.windows(ctx, parts, axes)
        dtype = images.dtype if self.dtype is None else np.dtype(to_numpy(self.dtype))
        where = geometry(parts.shapes, layout)
        if ctx.stage != "cpu":
            return self._on_gpu(ctx, images, parts, where, windows, lengths, factors, dtype)
        source, base = on_host(images, parts.offsets)
        out, convert = host_output(ctx, images, images.shapes, dtype)
        _kernels.separable(source, base, where, windows, lengths, factors, out.data, parts.places(out))
        return out.replace(data=saturate(out.data, dtype)) if convert else out

    gpu = cpu

    def arguments(self) -> tuple[str, ...]:
        """Return the names of the operator's arguments that may have a value per sample or per frame, such as
        ``sigma``."""
        raise NotImplementedError

    def _on_gpu(
        self, ctx: Context, images: Batch, items: ImageParts, item_sizes: Any, windows: F32, lengths: I32, factors: F32,
        dtype: np.dtype[Any],
    ) -> Batch:  # fmt: skip
        """Compute the result on a GPU: by one kernel per term and axis on which any image has a window, or by a single
        kernel if `_both_axes` can."""
        lane = ctx.device
        out = Batch.allocate(ctx.empty, images.shapes, dtype, images.layout, images.samples)
        most = int(elements(item_sizes).max(initial=0))
        if most == 0:
            return out
        radius = int(lengths[:, 0, 1:].max()) // 2
        if (
            self.symmetric and images.dtype == np.uint8 and dtype in (np.uint8, np.float32)
            and radius <= _RADII[-1] and (lengths[:, 0, 0] == 1).all() and 1 <= item_sizes[0, 4] <= _MAX_CHANNELS
            and (item_sizes[:, 4] == item_sizes[0, 4]).all()
        ):  # fmt: skip
            self._both_axes(ctx, images, items, item_sizes, windows, lengths, factors, max(1, radius), out)
            return out
        terms = windows.shape[1]
        passes = [
            [axis for axis in (2, 1, 0) if (lengths[:, t, axis] > 1).any()] or [2] for t in range(terms)
        ]  # the width first: rows are then in the cache
        between = [lane.empty(out.data.size if max(map(len, passes)) > n else 0, np.float32) for n in (1, 2)]
        total = lane.empty(out.data.size if terms > 1 else 0, np.float32)
        base, to, sizes, weights, counts, scale = lane.upload(
            items.offsets, items.places(out), item_sizes, windows, lengths, factors
        )
        tiles = -(-most // (_THREADS * _FOLD))
        index = "unsigned int" if most < 1 << 31 else "unsigned long long"
        for t in range(terms):
            source, begin = images.data, base
            for n, axis in enumerate(passes[t]):
                last = n == len(passes[t]) - 1
                target = (total if t < terms - 1 else out.data) if last else between[n % 2]
                name = f"along<{CUDA_TYPES[source.dtype]}, {CUDA_TYPES[target.dtype]}, {index}>"
                lane.launch(
                    "separable.cu", name, tiles * len(items), _THREADS, source, begin, sizes, np.int32(tiles),
                    weights, counts, scale, np.int32(terms), np.int32(t), np.int32(windows.shape[3]), np.int32(axis),
                    np.int32(last), total, np.int32(last and t > 0), target, to,
                )  # fmt: skip
                source, begin = target, to
        return out

    def _both_axes(
        self, ctx: Context, images: Batch, items: ImageParts, item_sizes: Any, windows: F32, lengths: I32, factors: F32,
        radius: int, out: Batch,
    ) -> None:  # fmt: skip
        """Apply the windows along both axes of 8-bit images in one kernel."""
        channels, reach = int(item_sizes[0, 4]), next(r for r in _RADII if r >= radius)
        needed = -(-int(item_sizes[:, 3].max()) // _PIXELS)
        across = -(-needed // (_MAX_THREADS // channels))
        threads = -(-max(-(-needed // across) * channels, 2 * reach * channels) // 32) * 32
        strips = -(-int(item_sizes[:, 2].max()) // _STRIP)
        pieces = across * strips * int((item_sizes[:, 0] * item_sizes[:, 1]).max())
        like, axes, longest = without_data(images), spatial(images.layout, images.ndim)[1], 2 * reach + 1

        def recompute(ctx: Context) -> tuple[F32, I32, F32] | None:
            others = image_parts(ctx, like, self.arguments())
            found = self.windows(ctx, others, axes)
            if others.sample is not None or found[0].shape[3] > longest:
                return None
            return _widened(found[0], longest), *found[1:]

        # if items are frames, their number may follow from arguments
        base, to, sizes = fixed(ctx.device, items.offsets, items.places(out), item_sizes)
        weights, counts, scale = changing(ctx.device, recompute if items.sample is None else None,
                                          _widened(windows, longest), lengths, factors)  # fmt: skip
        name = f"plane<{CUDA_TYPES[out.dtype]}, {reach}, {channels}>"
        ctx.device.launch(
            "separable.cu", name, pieces * len(items), threads, images.data, base, sizes, np.int32(pieces),
            np.int32(across), np.int32(strips), weights, counts, scale, np.int32(longest), out.data, to,
        )  # fmt: skip


def _widened(windows: F32, length: int) -> F32:
    """Return ``windows`` extended by zeros to ``length`` numbers each."""
    if windows.shape[3] == length:
        return windows
    wide = np.zeros((*windows.shape[:3], length), np.float32)
    wide[..., : windows.shape[3]] = windows
    return wide


class GaussianBlur(Separable, name="gaussian_blur"):
    """Blur with a Gaussian window, given by sigma, the length of the window, or both.

    A sigma alone results in windows of length 2 ceil(3 sigma) + 1, a length alone in a sigma of ((length - 1) / 2 - 1)
    0.3 + 0.8.
    """

    symmetric = True
    example = "{op: gaussian_blur, in: images, sigma: $sigma, out: images}"

    sigma: Annotated[
        tuple[float, ...], Arg("standard deviation in pixels, or one per axis, outermost first; 0: from the window",
                               ge=0, per_sample=True)
    ] = (0.0,)  # fmt: skip
    window_size: Annotated[
        tuple[int, ...], Arg("length of the window, odd, or one per axis; 0: from sigma", ge=0, per_sample=True)
    ] = (0,)
    parity: Annotated[
        Literal["dali", "torchvision", "pillow", "opencv", "albumentations"],
        Arg("library whose results are reproduced, for uint8 images: docs/parity.md#single-operators"),
    ] = "dali"

    def runs_in(self) -> tuple[Stage, ...]:
        return self.stages if self.parity == "dali" else ("cpu",)

    def check(self) -> None:
        if self.parity != "dali":
            presets.check(self, self.parity, ("dtype", "window_size") if self.parity == "pillow" else ("dtype",))
        if not self.is_set("sigma") and not self.is_set("window_size"):
            raise SpecError("needs sigma, window_size, or both")
        if "window_size" not in self.per_sample and any(w and w % 2 == 0 for w in self.window_size):
            raise SpecError(f"window_size must be odd, got {list(self.window_size)}")

    def infer(self, *specs: Spec) -> Spec:
        if self.parity != "dali":
            presets.check_input(self.parity, specs[0])
        return Separable.infer(self, *specs)

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        if self.parity == "dali":
            return Separable.cpu(self, ctx, images)
        _, axes = spatial(images.layout, images.ndim)
        if axes != 2 or images.layout not in presets.LAYOUTS:
            raise SampleError(
                "bad_shape", f"parity: {self.parity} takes HWC or FHWC, got {images.layout or 'no layout'}"
            )
        sigma = by_axis(ctx.arg("sigma", np.float64), 2, "sigma")
        length = by_axis(ctx.arg("window_size", np.float64), 2, "window_size")
        bad = ~(np.isfinite(sigma) & (sigma >= 0) & (sigma <= _MAX_SIGMA)) | (length < 0) | (length > 6 * _MAX_SIGMA)
        bad |= ((sigma == 0) & (length == 0)) | ((length > 0) & (length % 2 == 0))
        if self.parity == "albumentations":
            bad |= (sigma != sigma[:, :1]) | (length != length[:, :1]) | (sigma == 0)
        for i in np.flatnonzero(bad.any(axis=1)).tolist():
            said = f"sigma {sigma[i].tolist()}, window_size {length[i].tolist()}"
            alone = ", one for both axes," if self.parity == "albumentations" else ""
            ctx.reject(i, "bad_argument", f"needs a positive sigma{alone} or an odd window_size, {_LIMITS}, got {said}")
            sigma[i], length[i] = 1, 1
        numbers = np.concatenate([length[:, ::-1], sigma[:, ::-1]], axis=1)
        return presets.run(ctx, images, self.parity, [("gaussian_blur", numbers)])

    gpu = cpu

    def arguments(self) -> tuple[str, ...]:
        return "sigma", "window_size"

    def windows(self, ctx: Context, items: ImageParts, axes: int) -> tuple[F32, I32, F32]:
        sigma = np.ascontiguousarray(by_axis(items.arguments["sigma"].astype(np.float32), axes, "sigma"))
        asked = np.ascontiguousarray(by_axis(whole_numbers(items.arguments["window_size"]), axes, "window_size"))
        length, deviation = np.empty(asked.shape, np.int64), np.empty(asked.shape, np.float32)
        longest = _windows.sizes(sigma, asked, _MAX_SIGMA, length, deviation)
        if longest < 0:
            wrong = np.flatnonzero((length == 0).any(axis=1))
            for m in wrong.tolist():
                i = m if items.sample is None else int(items.sample[m])
                said = f"sigma {sigma[m].tolist()}, window_size {asked[m].tolist()}"
                ctx.reject(i, "bad_argument", f"needs a positive sigma or an odd window_size, {_LIMITS}, got {said}")
            length[wrong], deviation[wrong] = 1, 1
            longest = int(length.max())
        windows = np.empty((len(items), 1, 3, longest), np.float32)
        lengths = np.empty((len(items), 1, 3), np.int32)
        # below it a window consists of its middle only, and the square would underflow to 0
        _windows.windows(length, np.maximum(deviation, _MIN_SIGMA), windows, lengths)
        return windows, lengths, np.ones((len(items), 1), np.float32)


_MAX_SIGMA, _MIN_SIGMA = 1000.0, np.float32(1e-18)
_LIMITS = f"at most {_MAX_SIGMA:g} and {6 * _MAX_SIGMA:g}"
"""Text for messages: the maximum sigma, and the maximum length of a window (six times as large)."""


class Laplacian(Separable, name="laplacian"):
    """Compute the sum of second derivatives along the axes, each smoothed along the others, with OpenCV's windows.

    Window and smoothing sizes are odd, from 3 and 1 to 23; by default, smoothing has the size of the window.
    """

    example = "{op: laplacian, in: images, window_size: 5, dtype: FLOAT, out: edges}"

    window_size: Annotated[
        tuple[int, ...], Arg("length of the derivative's window, or one per axis", ge=3, le=23, per_sample=True)
    ] = (3,)
    smoothing_size: Annotated[
        tuple[int, ...] | None, Arg("length of the smoothing window, or one per axis", ge=1, le=23,
                                    per_sample=True)
    ] = None  # fmt: skip
    scale: Annotated[tuple[float, ...], Arg("factor of each derivative, or one for all", per_sample=True)] = (1.0,)
    normalized_kernel: Annotated[
        bool, Arg("scale each derivative by 2^(axes + 2 - the sum of its windows' lengths); excludes scale")
    ] = False

    def check(self) -> None:
        if self.normalized_kernel and self.is_set("scale"):
            raise SpecError("normalized_kernel and scale exclude each other")
        for name in ("window_size", "smoothing_size"):
            if name not in self.per_sample and any(w % 2 == 0 for w in getattr(self, name) or ()):
                raise SpecError(f"{name} must be odd, got {list(getattr(self, name))}")

    def arguments(self) -> tuple[str, ...]:
        given = ("window_size", "scale")
        return (*given, "smoothing_size") if self.is_set("smoothing_size") else given

    def windows(self, ctx: Context, parts: ImageParts, axes: int) -> tuple[F32, I32, F32]:
        given = {k: by_axis(v, axes, k) for k, v in parts.arguments.items()}
        window = whole_numbers(given["window_size"])
        smooth = whole_numbers(given.get("smoothing_size", window))
        bad = ((window % 2 == 0) | (window < 3) | (window > _MAX_LAPLACIAN)).any(axis=1)
        bad |= ((smooth % 2 == 0) | (smooth < 1) | (smooth > _MAX_LAPLACIAN)).any(axis=1)
        for m in np.flatnonzero(bad).tolist():
            said = f"window_size {window[m].tolist()}, smoothing_size {smooth[m].tolist()}"
            ctx.reject(m if parts.sample is None else int(parts.sample[m]), "bad_argument",
                       f"sizes of windows are odd, from 3 (smoothing: 1) to {_MAX_LAPLACIAN}, got {said}")  # fmt: skip
        window, smooth = np.where(bad[:, None], 3, window), np.where(bad[:, None], 1, smooth)
        tables = _derivatives()
        windows = np.zeros((len(parts), axes, 3, _MAX_LAPLACIAN), np.float32)
        lengths = np.ones((len(parts), axes, 3), np.int32)
        windows[:, :, : 3 - axes, 0] = 1
        factors = given["scale"].astype(np.float32).copy()
        for term in range(axes):
            for axis in range(axes):
                size = window[:, axis] if axis == term else smooth[:, axis]
                windows[:, term, 3 - axes + axis] = tables[1 if axis == term else 0, size]
                lengths[:, term, 3 - axes + axis] = size
            if self.normalized_kernel:
                lengths_of_term = lengths[:, term, 3 - axes :].sum(axis=1)
                factors[:, term] = np.exp2((axes + 2 - lengths_of_term).astype(np.float32))
        return windows, lengths, factors


@cache
def _derivatives() -> F32:
    """Return windows by length, [2, 24, 23]: for smoothing, and for the second derivative. As in OpenCV's
    getDerivKernels, they are binomial coefficients, and the second differences of the coefficients for the length minus
    two."""
    out = np.zeros((2, _MAX_LAPLACIAN + 1, _MAX_LAPLACIAN), np.float32)
    row = np.ones(1)
    rows = [row]
    for _ in range(_MAX_LAPLACIAN):
        row = np.convolve(row, [1, 1])
        rows.append(row)
    for size in range(1, _MAX_LAPLACIAN + 1, 2):
        out[0, size, :size] = rows[size - 1]
        if size >= 3:
            out[1, size, :size] = np.convolve(rows[size - 3], [1, -2, 1])
    return out
