"""Operator optical_flow: find where the pixels of each frame were in the previous frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..errors import SpecError
from ..gpu.lane import Lane
from ..types import DALIDataType, DALIImageType
from . import nvofa

F32 = npt.NDArray[np.float32]
_MIN_SIDE = 12
"""Minimum height and width in pixels of images for OpenCV's search."""


class OpticalFlow(Operator, name="optical_flow"):
    """Compute the motion between frames: for every frame but the first, the vector (x, y) in pixels of the input, from
    each cell of ``output_grid`` pixels to its position in the previous frame. An image that moves by (3, -2) yields
    (-3, 2).

    On a GPU its optical flow engine is used (NVOFA, from Turing on), as in DALI. Sizes and grids that the engine does
    not support, and batches on the CPU, are computed on the host by OpenCV's dense inverse search (Kroeger et al.,
    "Fast Optical Flow using Dense Inverse Search", 2016; the extra ``flow`` installs it); a cell's vector is the mean
    of its pixels' vectors. These vectors differ from the engine's; the report lists for how many samples on a GPU they
    were used, and why. With ``enable_external_hints``, a second input defines where the search begins: float32 flow
    fields of ``hint_grid`` cells, one per frame but the first.
    """

    layouts = ("FHWC",)
    inputs = (1, 2)
    bound = "results of the GPU's flow engine differ from the host's"
    example = "{op: optical_flow, in: video, output_grid: 4, out: flow}"

    preset: Annotated[float, Arg("quality: 0 is the best, 0.5 faster, 1 the fastest", ge=0, le=1)] = 0.0
    output_grid: Annotated[Literal[1, 2, 4], Arg("side of a cell of the output in pixels")] = 4
    output_format: Annotated[int | None, Arg("side of a cell of the output in pixels", deprecated="output_grid")] = None
    hint_grid: Annotated[Literal[1, 2, 4, 8], Arg("side of a cell of the hints in pixels")] = 4
    enable_external_hints: Annotated[bool, Arg("use the second input as the start of the search")] = False
    enable_temporal_hints: Annotated[bool, Arg("start the search with the flow of the previous frame")] = False
    image_type: Annotated[DALIImageType, Arg("colour space of the input: RGB, BGR or GRAY")] = DALIImageType.RGB

    @property
    def waits(self) -> bool:
        """Whether the kernel may block the thread that launches kernels: until the engine's queue has space, or until
        images for the host are downloaded."""
        return True

    def check(self) -> None:
        if self.preset not in (0.0, 0.5, 1.0):
            raise SpecError(f"preset must be 0, 0.5 or 1, got {self.preset:g}")
        if self.image_type not in (DALIImageType.RGB, DALIImageType.BGR, DALIImageType.GRAY):
            raise SpecError(f"image_type must be RGB, BGR or GRAY, got {self.image_type.name}")

    def infer(self, *specs: Spec) -> Spec:
        if (len(specs) == 2) != self.enable_external_hints:
            raise SpecError("enable_external_hints goes with a second input, the hints")
        if len(specs) == 2 and specs[1].dtype not in (None, DALIDataType.FLOAT):
            raise SpecError(f"takes hints of type FLOAT, got {specs[1]}")
        video = specs[0]
        if video.dtype not in (None, DALIDataType.UINT8) or video.layout not in ("", "FHWC"):
            raise SpecError(f"takes uint8 sequences of the layout FHWC, got {video}")
        if video.shape is None:
            return Spec(None, DALIDataType.FLOAT, "FHWC")
        if len(video.shape) != 4 or video.shape[3] not in (None, self._channels):
            raise SpecError(
                f"takes sequences of {self._channels} channels (FHWC) as {self.image_type.name}, got {video}"
            )
        frames, height, width, _ = video.shape
        grid = self.output_grid
        size = [None if d is None else -(-d // grid) for d in (height, width)]
        return Spec((None if frames is None else max(frames - 1, 0), *size, 2), DALIDataType.FLOAT, "FHWC")

    @property
    def _channels(self) -> int:
        return 1 if self.image_type is DALIImageType.GRAY else 3

    def cpu(self, ctx: Context, video: Batch, *hints: Batch) -> Batch:
        out, good = self._room(ctx, video, hints)
        if len(good):
            search = _search(self.preset)
        for i in good.tolist():
            out.sample(i)[...] = self._flow(search, video.sample(i), [b.sample(i) for b in hints])
        return out

    def gpu(self, ctx: Context, video: Batch, *hints: Batch) -> Batch:
        out, good = self._room(ctx, video, hints)
        sizes, of_size = np.unique(video.shapes[good, 1:3], axis=0, return_inverse=True)
        left: list[tuple[I64, str]] = []
        for k, (height, width) in enumerate(sizes.tolist()):
            which = good[of_size.reshape(-1) == k]
            try:
                self._by_engine(ctx, out, height, width, which, video, hints)
            except nvofa.NoEngineError as e:
                left.append((which, str(e)))
        if left:
            self._by_host(ctx, out, left, video, hints)
        return out

    def _room(self, ctx: Context, video: Batch, hints: Sequence[Batch]) -> tuple[Batch, I64]:
        """Return the allocated output, and the indices of the samples to compute; the others are rejected."""
        shapes = video.shapes.astype(np.int64)
        frames, size, channels = shapes[:, 0], shapes[:, 1:3], shapes[:, 3]
        wrong = (channels != self._channels) | (frames < 2) | (size < _MIN_SIDE).any(axis=1)
        for i in np.flatnonzero(wrong).tolist():
            ctx.reject(i, "bad_shape", f"needs at least two frames of {self._channels} channels and {_MIN_SIDE} pixels "
                       f"per side, got {shapes[i].tolist()}")  # fmt: skip

        def fields(side: int) -> I64:
            return np.column_stack([frames - 1, -(-size // side), np.full(len(shapes), 2)])

        for given in hints:
            wanted, there = fields(self.hint_grid), given.shapes
            odd = ~wrong & (there != wanted).any(axis=1) if there.shape == wanted.shape else ~wrong
            for i in np.flatnonzero(odd).tolist():
                ctx.reject(i, "bad_shape", f"hints must be of shape {wanted[i].tolist()}, got {there[i].tolist()}")
            wrong |= odd
        after = np.where(wrong[:, None], 0, fields(self.output_grid)).astype(np.int32)
        out = Batch.allocate(ctx.empty, after, np.float32, "FHWC", video.samples)
        return out, np.flatnonzero(~wrong)

    # -- the GPU's engine ---------------------------------------------------------------------------------------------

    def _by_engine(
        self, ctx: Context, out: Batch, height: int, width: int, indices: I64, video: Batch, hints: Sequence[Batch]
    ) -> None:
        """Compute the samples at ``indices``, all of one frame size, with the GPU's optical flow engine. Raises
        NoEngineError."""
        if hints and hints[0].dtype != np.float32:
            raise nvofa.NoEngineError(f"it takes hints of float32, not {hints[0].dtype}")
        level = {0.0: nvofa.BEST, 0.5: nvofa.MEDIUM, 1.0: nvofa.FAST}[self.preset]
        kind = nvofa.Kind(height, width, self._channels == 1, self.output_grid, level, self.hint_grid if hints else 0)
        counts = video.shapes[indices, 0].astype(np.int64) - 1
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        lane = cast("Lane", ctx.device)

        def places(batch: Batch) -> I64:
            """Return the device address in ``batch`` for each pair of frames: of the first frame, or of the flow
            field."""
            first = lane.address(batch.data) + batch.offsets[indices] * batch.dtype.itemsize
            size = batch.shapes[indices[0], 1:].astype(np.int64).prod() * batch.dtype.itemsize
            found: I64 = np.repeat(first, counts) + number * size
            return found

        frames = places(video)
        pairs = nvofa.Pairs(frames + height * width * self._channels, frames, number == 0, places(out),
                            places(hints[0]) if hints else None)  # fmt: skip
        red = 2 if self.image_type is DALIImageType.BGR else 0
        nvofa.find(lane, kind, pairs, temporal=self.enable_temporal_hints, red=red)

    # -- the host -----------------------------------------------------------------------------------------------------

    def _by_host(
        self, ctx: Context, out: Batch, remaining: list[tuple[I64, str]], video: Batch, hints: Sequence[Batch]
    ) -> None:
        """Compute on the host the samples that the GPU's engine does not support. ``remaining``: their indices in
        groups, each with the reason for the report."""
        search = _search(self.preset, f"the GPU's flow engine ({remaining[0][1]}) or ")
        # Waits for the copies.
        here, *starts = (b if b.on_host else b.replace(data=b.data.get()) for b in (video, *hints))
        for which, why in remaining:
            ctx.fell_back(f"not for the GPU's flow engine: {why}", len(which))
            for i in which.tolist():
                flow = self._flow(search, here.sample(i), [b.sample(i) for b in starts])
                (there,) = ctx.device.upload(flow)
                place = ctx.device.address(out.data) + int(out.offsets[i]) * flow.itemsize
                ctx.device.copy(place, ctx.device.address(there), flow.nbytes)

    def _flow(self, search: Any, frames: npt.NDArray[Any], hints: list[Any]) -> F32:
        """Return the flow of one sequence of F frames, computed on the host: float32 [F - 1, rows of cells, columns of
        cells, 2]."""
        gray = [self._gray(f) for f in frames]
        height, width = gray[0].shape
        before: F32 | None = None
        found = []
        for k in range(len(gray) - 1):
            start = before if self.enable_temporal_hints else None
            if hints:
                spread = np.repeat(np.repeat(hints[0][k], self.hint_grid, axis=0), self.hint_grid, axis=1)
                start = np.ascontiguousarray(spread[:height, :width], np.float32)
            before = search.calc(gray[k + 1], gray[k], None if start is None else start.copy())
            found.append(_cells(np.asarray(before), self.output_grid))
        return np.stack(found)

    def _gray(self, frame: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        if frame.shape[2] == 1:
            return np.ascontiguousarray(frame[:, :, 0])
        import cv2

        code = cv2.COLOR_BGR2GRAY if self.image_type is DALIImageType.BGR else cv2.COLOR_RGB2GRAY
        return np.asarray(cv2.cvtColor(np.ascontiguousarray(frame), code))


def _cells(flow: F32, side: int) -> F32:
    """Return the mean of ``flow`` [H, W, 2] in each cell of ``side`` pixels. Cells at the borders may be smaller."""
    down, across = np.arange(0, flow.shape[0], side), np.arange(0, flow.shape[1], side)
    total = np.add.reduceat(np.add.reduceat(flow, down, axis=0), across, axis=1)
    count = np.diff(np.append(down, flow.shape[0]))[:, None] * np.diff(np.append(across, flow.shape[1]))[None]
    cells: F32 = (total / count[:, :, None]).astype(np.float32)
    return cells


def _search(preset: float, instead: str = "") -> Any:
    try:
        import cv2
    except ImportError:
        raise SpecError(f"optical_flow needs {instead}OpenCV; install that with `pip install dali-run[flow]`") from None
    presets = {0.0: cv2.DISOPTICAL_FLOW_PRESET_MEDIUM, 0.5: cv2.DISOPTICAL_FLOW_PRESET_FAST,
               1.0: cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST}  # fmt: skip
    return cv2.DISOpticalFlow.create(presets[preset])
