"""Operators rotate and warp_affine: sample images and volumes along an affine map.

Coordinates are computed in float64 from float32 matrices, for each pixel separately. DALI's CPU backend adds up steps
in float32 along a row instead, and therefore chooses the other of two neighbours at some ties.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec, Stage
from ..batch import I64, Batch
from ..context import Context
from ..conversion import saturate
from ..copies.strided import CUDA_TYPES, Border, affordable
from ..copies.windows import image_layout, known_layout, refused, round_half_away
from ..errors import SampleError, SpecError
from ..gpu.launch_recording import Recompute, fixed_and_changing, not_replayable, without_data
from ..kernels import Kernels
from ..libraries import presets
from ..sequences.unfold import by_frame, largest
from ..types import DALIDataType, DALIInterpType, to_numpy
from .sampling import Filter, Kind, pixels_on_gpu, takes_pixels

F64 = npt.NDArray[np.float64]

_loops: Any = Kernels(".sampling_cpu", __package__)
_volumes: Any = Kernels(".warp_cpu", __package__)
_plans: Any = Kernels(".plan_cpu", __package__)
_THREADS, _PIXELS = 256, 4  # threads per block, and pixels of an image per thread (cuda/warp.cu)


class Warping(Operator, abstract=True):
    """Base class of the operators rotate and warp_affine."""

    replayable = True
    layouts = ("HWC", "FHWC", "DHWC")
    bound = "1 level; floats within 1e-4 of the range of the neighbours"

    size: Annotated[
        tuple[float, ...],
        Arg("size of the output: (height, width), or (depth, height, width) for volumes", ge=0, per_sample=True),
    ] = ()
    fill_value: Annotated[
        float | None, Arg("value outside the input, converted to its type; by default border pixels are repeated")
    ] = None
    interp_type: Annotated[DALIInterpType, Arg("filter: NN or LINEAR")] = DALIInterpType.INTERP_LINEAR
    dtype: Annotated[DALIDataType | None, Arg("data type of the output; by default that of the input")] = None
    output_dtype: Annotated[DALIDataType | None, Arg("data type of the output", deprecated="dtype")] = None
    parity: Annotated[
        Literal["dali", "torchvision", "pillow", "opencv", "albumentations"],
        Arg("library whose results are reproduced, for uint8 images: docs/parity.md#single-operators"),
    ] = "dali"

    def runs_in(self) -> tuple[Stage, ...]:
        return self.stages if self.parity == "dali" else ("cpu",)

    def preset(self, ctx: Context, images: Batch, name: str, before: F64, after: F64) -> Batch:
        """Return the images as the function ``name`` of the library in argument ``parity`` transforms them. ``before``,
        ``after``: the function's parameters in front of the fill values, and after them."""
        n = len(images)
        how = np.full((n, 1), presets.FILTERS[self.interp_type], np.float64)
        fill = np.full((n, 1 + presets.FILLS), float(saturate(np.array([self.fill_value or 0.0]), np.uint8)[0]))
        fill[:, 0] = self.fill_value is not None
        return presets.run(ctx, images, self.parity, [(name, np.concatenate([how, before, fill, after], axis=1))])

    def check(self) -> None:
        if self.parity != "dali":
            presets.check(self, self.parity, ("dtype", "output_dtype"))
        if self.interp_type not in (DALIInterpType.INTERP_NN, DALIInterpType.INTERP_LINEAR):
            raise SpecError(
                f"interp_type must be NN or LINEAR here, got {self.interp_type.name.removeprefix('INTERP_')}"
            )
        if self.size and len(self.size) not in (2, 3):
            raise SpecError(f"size takes (height, width) or (depth, height, width), got {len(self.size)} values")

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        dtype = self.dtype if self.dtype is not None else data.dtype
        layout = image_layout(data.layout, data.ndim, self.layouts)
        if layout and layout not in self.layouts:
            raise SpecError(f"takes layouts {', '.join(self.layouts)}, got {layout}")
        if self.parity != "dali":
            presets.check_input(self.parity, Spec(data.shape, data.dtype, layout))
        if data.shape is None or not layout:
            return Spec(None, dtype, layout)
        axes = spatial_axes(layout)
        extents: tuple[int | None, ...] = (None,) * axes
        if self.size and "size" not in self.per_sample:
            self._check_size(len(self.size), axes)
            extents = tuple(round_half_away(np.array(self.size)).tolist())
        elif self.keeps_size() and "size" not in self.per_sample:
            extents = data.shape[-1 - axes : -1]
        return Spec((*data.shape[: -1 - axes], *extents, data.shape[-1]), dtype, layout)

    @staticmethod
    def _check_size(count: int, axes: int) -> None:
        if count != axes:
            wanted = "(depth, height, width)" if axes == 3 else "(height, width)"
            raise SpecError(f"size takes {wanted} here, got {count} values")

    def keeps_size(self) -> bool:
        """Whether outputs have the size of their inputs if argument size is not set."""
        return True

    def given_sizes(self, ctx: Context, images: Batch) -> I64:
        """Return the sizes of the outputs, height and width [N, 2] or depth, height and width [N, 3]: the argument
        ``size`` or, if it is not set, the sizes of the inputs."""
        axes = spatial_axes(images.layout)
        if not self.is_set("size"):
            sizes: I64 = images.shapes[:, -1 - axes : -1].astype(np.int64)
            return sizes
        size = round_half_away(ctx.arg("size"))
        self._check_size(size.shape[1], axes)
        for i in np.flatnonzero(np.any(size < 0, axis=1)).tolist():
            ctx.reject(i, "bad_argument", f"size must not be negative, got {size[i].tolist()}")
        return np.maximum(size, 0)

    def warped(
        self, ctx: Context, images: Batch, sizes: I64, matrices: F64,
        recompute: Callable[[Context], tuple[I64, F64]] | None = None,
    ) -> Batch:  # fmt: skip
        """Return ``images``, sampled at the positions that matrices [N, 2, 3] give for the output's pixel centres (x,
        y, 1).

        Volumes take [N, 3, 4] for (x, y, z, 1). ``recompute`` returns sizes and matrices for a later batch of the same
        shapes.
        """
        shape, geometry, maps = _placed(ctx, images, sizes, matrices)
        dtype = images.dtype if self.dtype is None else to_numpy(self.dtype)
        linear = self.interp_type is DALIInterpType.INTERP_LINEAR
        fill = _fill(float(self.fill_value or 0.0), images.dtype)
        if ctx.stage == "cpu":
            return self._cpu(ctx, images, shape, np.dtype(dtype), geometry, maps, linear, fill)

        def other(ctx: Context) -> tuple[F64] | None:
            if recompute is None or len(ctx.samples) != len(maps):  # samples were unfolded to frames
                return None
            found, matrices = recompute(ctx)
            return (np.ascontiguousarray(matrices, np.float64),) if found.tobytes() == sizes.tobytes() else None

        remade = None if recompute is None else other
        return self._gpu(ctx, images, shape, np.dtype(dtype), geometry, maps, linear, fill, remade)

    def _cpu(
        self, ctx: Context, images: Batch, shape: I64, dtype: np.dtype[Any], geometry: I64, matrices: Any, linear: bool,
        fill: np.float32,
    ) -> Batch:  # fmt: skip
        source, base = images.data, images.offsets
        if source.dtype not in (np.uint8, np.float32):
            lo, hi = (int(base.min()), int((base + images.sizes).max())) if len(images) else (0, 0)
            source, base = saturate(source[lo:hi], np.float32), base - lo
        own = dtype if dtype in (np.uint8, np.float32) else np.dtype(np.float32)
        out = Batch.allocate(ctx.empty, shape.astype(np.int32), own, images.layout, images.samples)
        filled = self.fill_value is not None
        base = np.ascontiguousarray(base)
        if spatial_axes(images.layout) == 3:
            _volumes.warp_volumes(source, base, geometry, matrices, linear, filled, fill, out.data, out.offsets)
        else:
            border, how = Border.FILL if filled else Border.EDGE, Filter.LINEAR if linear else Filter.NEAREST
            none, fills = np.zeros(1, np.float32), np.array([[fill]], np.float32)
            begins = np.zeros((len(images), 2), np.int64)
            _loops.sample(source, base, geometry, int(Kind.AFFINE), of_centres(matrices), none, none, begins, int(how),
                          int(border), fills, out.data, out.offsets)  # fmt: skip
        return out if own == dtype else out.replace(data=saturate(out.data, dtype))

    def _gpu(
        self, ctx: Context, images: Batch, shape: I64, dtype: np.dtype[Any], geometry: I64, matrices: Any, linear: bool,
        fill: np.float32, recompute: Recompute | None,
    ) -> Batch:  # fmt: skip
        out = Batch.allocate(ctx.empty, shape.astype(np.int32), dtype, images.layout, images.samples)
        if out.data.size == 0:
            return out
        axes = spatial_axes(images.layout)
        how = Filter.LINEAR if linear else Filter.NEAREST
        if axes == 2 and takes_pixels(images, dtype, geometry, how):
            fills = np.array([[fill]], np.float32)
            (base, sizes, to, values), (maps,) = fixed_and_changing(
                ctx.device, (images.offsets, geometry, out.offsets, fills),
                None if recompute is None else _of_centres(recompute), of_centres(matrices),
            )  # fmt: skip
            border = Border.EDGE if self.fill_value is None else Border.FILL
            pixels_on_gpu(
                ctx, images, geometry, Kind.AFFINE, base, sizes, maps, how, border, fills.shape, values, out, to
            )
            return out
        (base, sizes, to), (maps,) = fixed_and_changing(
            ctx.device,
            (images.offsets, geometry, out.offsets),
            None if recompute is None else _finite(recompute),
            matrices,
        )
        pixels = int((geometry[:, 0] * geometry[:, -axes:].prod(axis=1)).max())
        tiles = -(-pixels // (_THREADS * _PIXELS if axes == 2 else _THREADS))
        kernel = f"{'warp' if axes == 2 else 'warp_volumes'}<{CUDA_TYPES[images.dtype]}, {CUDA_TYPES[dtype]}>"
        ctx.device.launch(
            "warp.cu", kernel, (tiles, len(images)), _THREADS,
            images.data, base, sizes, maps, np.int32(linear), np.int32(self.fill_value is not None), fill, out.data, to,
        )  # fmt: skip
        return out


def _placed(ctx: Context, images: Batch, sizes: I64, matrices: F64) -> tuple[I64, I64, F64]:
    """Return shapes and geometry (`Grid.geometry`) of outputs of ``sizes``, and the maps ``matrices``. Samples whose
    map is not finite are rejected, and get zeros instead of their map."""
    if spatial_axes(images.layout) == 2:
        shape, geometry = np.empty(images.shapes.shape, np.int64), np.empty((len(images), 6), np.int64)
        maps = np.array(matrices, np.float64, order="C")
        if _plans.placed(images.shapes, sizes, maps, shape, geometry):
            _refuse(ctx, matrices)
        affords = affordable(ctx, shape)
        if affords is not shape:
            geometry[:, 4:] = affords[:, -3:-1]
            geometry[affords.prod(axis=1) == 0, 0] = 0
        return affords, geometry, maps
    shape = images.shapes.astype(np.int64)
    shape[:, -4:-1] = sizes
    wrong = _refuse(ctx, matrices)
    shape = affordable(ctx, refused(shape, wrong | (images.sizes == 0)))
    maps = np.where(np.reshape(wrong, (-1, 1, 1)), 0, matrices).astype(np.float64, order="C")
    frames = images.shapes[:, :-4].prod(axis=1, dtype=np.int64)
    geometry = np.column_stack([frames, images.shapes[:, -4:], shape[:, -4:-1]]).astype(np.int64)
    geometry[shape.prod(axis=1) == 0, 0] = 0
    return shape, geometry, maps


def _refuse(ctx: Context, matrices: F64) -> npt.NDArray[np.bool_]:
    """Reject the samples whose matrix is not finite, and return a mask of them."""
    wrong: npt.NDArray[np.bool_] = np.any(~np.isfinite(matrices), axis=(1, 2))
    for i in np.flatnonzero(wrong).tolist():
        ctx.reject(i, "bad_argument", "the transform is not finite, or cannot be inverted")
    return wrong


@lru_cache(64)
def _fill(value: float, dtype: np.dtype[Any]) -> np.float32:
    """Return the fill value as converted to the input's type by DALI's rule: 300 becomes 255 for uint8."""
    return np.float32(saturate(np.array([value]), dtype)[0])


def _of_centres(recompute: Recompute) -> Recompute:
    """Return a function that returns the result of ``recompute`` with its matrices converted by `of_centres`, or None
    if a matrix is not finite."""

    def other(ctx: Context) -> tuple[F64] | None:
        found = recompute(ctx)
        if found is None:
            return None
        params = np.empty((len(found[0]), 9))
        return (params,) if _plans.centred(found[0], params) else None

    return other


def _finite(recompute: Recompute) -> Recompute:
    """Return a function that returns the result of ``recompute``, or None if a matrix is not finite."""

    def other(ctx: Context) -> tuple[F64] | None:
        found = recompute(ctx)
        return (found[0],) if found is not None and np.isfinite(found[0]).all() else None

    return other


def of_centres(matrices: F64) -> F64:
    """Convert affine maps [N, 2, 3] of coordinates from pixel corners to parameters of `Kind.AFFINE`, [N, 9], for
    coordinates from pixel centres."""
    params = np.empty((len(matrices), 9))
    _plans.centred(matrices, params)
    return params


def spatial_axes(layout: str) -> int:
    """Return the number of spatial axes: 2 for images and sequences of images, 3 for volumes."""
    return 3 if "D" in layout else 2


class Rotate(Warping, name="rotate"):
    """Rotate images counter-clockwise around their centre, or volumes around an axis; the canvas grows to contain them.

    The width of the canvas is DALI's: ceil(|cos| w + |sin| h - .01), plus one where needed to make it even or odd like
    the side that it derives from. The height is computed likewise; for volumes, from the rows of the rotation matrix.
    """

    example = "{op: rotate, in: images, angle: $angle, fill_value: 0, out: images}"

    angle: Annotated[float, Arg("angle of rotation in degrees, counter-clockwise", per_sample=True, required=True)] = (
        0.0
    )
    keep_size: Annotated[bool, Arg("keep the size of the input")] = False
    axis: Annotated[
        tuple[float, ...] | None,
        Arg("axis (x, y, z) of the rotation of a volume, of any length; images have only one", per_sample=True),
    ] = None

    def keeps_size(self) -> bool:
        return self.keep_size

    def check(self) -> None:
        Warping.check(self)
        if self.parity == "opencv":
            raise SpecError("OpenCV has no rotation by an angle; give parity: dali, or a matrix to warp_affine")
        if self.parity != "dali":
            presets.check(self, self.parity, ("size", "axis"))
        if self.parity == "albumentations" and not self.keep_size:
            raise SpecError("albumentations' Rotate keeps the canvas: give keep_size: true")

    @by_frame()
    def cpu(self, ctx: Context, images: Batch) -> Batch:
        """Rotate the images of the batch by the argument angle, and return the results."""
        images = images.replace(layout=known_layout(images, self.layouts))
        if self.parity != "dali":
            angle = ctx.arg("angle", np.float64)
            for i in np.flatnonzero(~np.isfinite(angle)).tolist():
                ctx.reject(i, "bad_argument", f"angle must be a number of degrees, got {angle[i]}")
            angle = np.nan_to_num(angle, posinf=0, neginf=0)
            before = np.stack([angle, np.full(len(images), not self.keep_size, np.float64)], axis=1)
            return self.preset(ctx, images, "rotate", before, np.zeros((len(images), 0)))
        if spatial_axes(images.layout) == 3:
            return self._volumes(ctx, images)
        like = without_data(images)
        return self.warped(ctx, images, *self._maps(ctx, like), lambda c: self._maps(c, like))

    gpu = cpu

    def _maps(self, ctx: Context, images: Batch) -> tuple[I64, F64]:
        """Return sizes of the outputs (height, width), and the maps [N, 2, 3] from output pixels to the images."""
        # As in DALI, radians are float32: at 45 degrees |sin| > |cos|.
        radians = (ctx.arg("angle") * np.float32(np.pi / 180)).astype(np.float64)
        cos, sin = np.cos(radians), np.sin(radians)
        sizes, maps = self.given_sizes(ctx, images), np.empty((len(radians), 2, 3))
        grows = not self.is_set("size") and not self.keep_size
        _plans.turned(images.shapes, cos, sin, sizes, grows, maps)
        if grows and (alike := largest(ctx, sizes)) is not sizes:
            sizes = alike
            _plans.turned(images.shapes, cos, sin, sizes, False, maps)
        return sizes, maps

    def infer(self, *specs: Spec) -> Spec:
        known = Warping.infer(self, *specs)
        if known.layout and spatial_axes(known.layout) == 3 and not self.is_set("axis"):
            raise SpecError("volumes need axis, the axis of rotation: [0, 0, 1] rotates every slice")
        return known

    def _volumes(self, ctx: Context, images: Batch) -> Batch:
        if not self.is_set("axis"):
            raise SampleError("bad_shape", "volumes need axis, the axis of rotation: [0, 0, 1] rotates every slice")
        axis = ctx.arg("axis").astype(np.float64)
        if axis.shape[1] != 3:
            raise SampleError("bad_argument", f"axis takes (x, y, z), got {axis.shape[1]} values")
        turn = rotation(axis, (ctx.arg("angle") * np.float32(np.pi / 180)).astype(np.float64))
        before = images.shapes[:, :3].astype(np.int64)
        sizes = self.given_sizes(ctx, images)
        if not self.is_set("size") and not self.keep_size:
            sizes = largest(ctx, canvas_of_volumes(before, turn))
        # the rotation maps input positions to output positions; its inverse maps them back
        back = turn.transpose(0, 2, 1)
        shift = before[:, ::-1] / 2 - np.einsum("nij,nj->ni", back, sizes[:, ::-1] / 2)
        return self.warped(ctx, images, sizes, np.concatenate([back, shift[:, :, None]], axis=2))


def rotation(axis: F64, angle: F64) -> F64:
    """Return rotations [N, 3, 3] of (x, y, z) around ``axis`` [N, 3] by ``angle`` [N] radians (Rodrigues' formula); NaN
    for an axis of length 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y, z = (axis / np.linalg.norm(axis, axis=1, keepdims=True)).T
    zero = np.zeros_like(x)
    cross = np.array([[zero, -z, y], [z, zero, -x], [-y, x, zero]]).transpose(2, 0, 1)
    sin, cos = np.sin(angle)[:, None, None], np.cos(angle)[:, None, None]
    turned: F64 = np.eye(3) + sin * cross + (1 - cos) * (cross @ cross)
    return turned


def canvas_of_volumes(sizes: I64, turn: F64) -> I64:
    """Return depth, height and width of the canvas that contains each rotated volume, [N, 3], by DALI's rule. ``turn``:
    rotation matrices."""
    # at 45 degrees, DALI sees a tie, in which the axis itself wins
    share = np.abs(np.nan_to_num(turn)).astype(np.float32)
    before = sizes[:, ::-1]
    out = np.ceil(np.einsum("nij,nj->ni", share, before) - 0.01).astype(np.int64)
    most = np.where(share.max(axis=2) > np.diagonal(share, axis1=1, axis2=2), share.argmax(axis=2), np.arange(3))
    most = np.take_along_axis(before, most, axis=1)
    grown: I64 = out + (out % 2 != most % 2)
    return grown[:, ::-1]


class WarpAffine(Warping, name="warp_affine"):
    """Sample images at an affine map of the output's coordinates; [0, 0] is the corner of the first pixel.

    ``matrix`` (M11, M12, M13, M21, M22, M23), or the second input, maps the output to the input: dst(x, y) = src(M11 x
    + M12 y + M13, M21 x + M22 y + M23). With ``inverse_map: false`` it maps the input to the output. Volumes take three
    rows of four, for (x, y, z, 1).
    """

    host_arguments = True
    inputs = (1, 2)
    example = "{op: warp_affine, in: images, matrix: [0.5, 0, 0, 0, 0.5, 0], out: images}"

    matrix: Annotated[
        tuple[float, ...],
        Arg(
            "matrix as two rows of three (volumes: three rows of four); or use a second input",
            per_sample=True,
            rows=True,
        ),
    ] = ()
    inverse_map: Annotated[bool, Arg("matrix maps the output to the input; else the input to the output")] = True

    def check(self) -> None:
        Warping.check(self)
        if self.matrix and len(self.matrix) not in (6, 12):
            raise SpecError(f"matrix takes 6 values, 12 for volumes, got {len(self.matrix)}")

    def infer(self, *specs: Spec) -> Spec:
        if (len(specs) == 2) == self.is_set("matrix"):
            raise SpecError("needs a matrix: the argument, or a second input, not both")
        known = Warping.infer(self, *specs)
        if self.matrix and known.layout:
            self._check_matrix(len(self.matrix), spatial_axes(known.layout))
        return known

    @staticmethod
    def _check_matrix(count: int, axes: int) -> None:
        if count != axes * (axes + 1):
            raise SpecError(f"a matrix holds {axes} x {axes + 1} values here, got {count}")

    @by_frame()
    def cpu(self, ctx: Context, images: Batch, *inputs: Batch) -> Batch:
        """Sample the images of the batch at the positions that their affine maps give, and return the results."""
        images = images.replace(layout=known_layout(images, self.layouts))
        if inputs:
            not_replayable(ctx.device)
            rows = inputs[0].dense()
            # matrices are checked on the host
            matrices = self._matrices(rows if inputs[0].on_host else rows.get(), images)
        else:
            matrices = self._given(ctx, images)
        if self.parity != "dali":
            wrong = ~np.isfinite(matrices).all(axis=(1, 2))
            for i in np.flatnonzero(wrong).tolist():
                ctx.reject(i, "bad_argument", "the transform is not finite, or cannot be inverted")
            matrices[wrong] = np.eye(2, 3)
            sizes = affordable(ctx, np.column_stack([self.given_sizes(ctx, images), images.shapes[:, -1]]))[:, :2]
            return self.preset(ctx, images, "affine", sizes.astype(np.float64), matrices.reshape(-1, 6))
        like = without_data(images)
        return self.warped(ctx, images, self.given_sizes(ctx, images), matrices,
                           lambda c: (self.given_sizes(c, like), self._given(c, like)))  # fmt: skip

    gpu = cpu

    def _given(self, ctx: Context, images: Batch) -> F64:
        """Return the maps from outputs to inputs, by the argument ``matrix``; see `_matrices`."""
        return self._matrices(ctx.arg("matrix", np.float32 if self.parity == "dali" else np.float64), images)

    def _matrices(self, values: npt.NDArray[Any], images: Batch) -> F64:
        """Return maps from outputs to inputs, [N, 2, 3], or [N, 3, 4] for volumes. ``values``: numbers of the argument
        ``matrix``, or of the second input."""
        values = values.reshape(len(images), -1)
        axes = spatial_axes(images.layout)
        self._check_matrix(values.shape[1], axes)
        matrices: F64 = values.reshape(len(images), axes, axes + 1).astype(np.float64)
        return matrices if self.inverse_map else inverted(matrices)


def inverted(matrices: F64) -> F64:
    """Return the inverses of affine maps [N, d, d + 1]; NaN for singular ones."""
    linear, shift = matrices[:, :, :-1], matrices[:, :, -1:]
    possible = np.isfinite(matrices).all(axis=(1, 2)) & (np.linalg.det(np.nan_to_num(linear)) != 0)
    back = np.linalg.inv(np.where(possible[:, None, None], linear, np.eye(linear.shape[1])))
    found: F64 = np.concatenate([back, -back @ shift], axis=2)
    found[~possible] = np.nan
    return found
