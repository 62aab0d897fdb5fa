"""optical_flow: how far the pixels of each frame move to the next one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..errors import SpecError
from ..types import DALIDataType, DALIImageType

F32 = npt.NDArray[np.float32]


class OpticalFlow(Operator, name="optical_flow"):
    """Motion from each frame to the next: (x, y) in pixels of the input, for every cell of ``output_grid`` pixels.

    Computed on the host by OpenCV's dense inverse search (Kroeger et al., "Fast Optical Flow using Dense Inverse
    Search", 2016; the extra ``flow`` installs it), of which a cell's vector is the mean; frames on a GPU are fetched
    for it, and the result is brought back. DALI asks the GPU's own flow engine, whose vectors differ. A second input
    (``enable_external_hints``) is where the search begins: flow fields of ``hint_grid`` cells.
    """

    layouts = ("FHWC",)
    inputs = (1, 2)
    bound = "exact: the host computes it"
    example = "{op: optical_flow, in: video, output_grid: 4, out: flow}"

    preset: Annotated[float, Arg("0: the best, 0.5: faster, 1: the fastest", ge=0, le=1)] = 0.0
    output_grid: Annotated[Literal[1, 2, 4], Arg("pixels of a cell's side")] = 4
    output_format: Annotated[int | None, Arg("the same", deprecated="output_grid")] = None
    hint_grid: Annotated[Literal[1, 2, 4, 8], Arg("pixels of a hint's side")] = 4
    enable_external_hints: Annotated[bool, Arg("the second input is where the search begins")] = False
    enable_temporal_hints: Annotated[bool, Arg("begin with the flow of the frame before")] = False
    image_type: Annotated[DALIImageType, Arg("RGB, BGR or GRAY")] = DALIImageType.RGB

    @property
    def waits(self) -> bool:
        """Frames are fetched from the device."""
        return True

    def check(self) -> None:
        if self.preset not in (0.0, 0.5, 1.0):
            raise SpecError(f"preset must be 0, 0.5 or 1, got {self.preset:g}")
        if self.image_type not in (DALIImageType.RGB, DALIImageType.BGR, DALIImageType.GRAY):
            raise SpecError(f"image_type must be RGB, BGR or GRAY, got {self.image_type.name}")

    def infer(self, *specs: Spec) -> Spec:
        if (len(specs) == 2) != self.enable_external_hints:
            raise SpecError("enable_external_hints goes with a second input, the hints")
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
        search = _search(self.preset)
        shapes = video.shapes.astype(np.int64)
        wrong = (shapes[:, 3] != self._channels) | (shapes[:, 0] < 2) | (shapes[:, 1:3] < 12).any(axis=1)
        for i in np.flatnonzero(wrong).tolist():
            ctx.reject(i, "bad_shape", f"needs two frames at least, of {self._channels} channels and 12 pixels a side, "
                       f"got {shapes[i].tolist()}")  # fmt: skip
        grid = self.output_grid
        after = np.column_stack([shapes[:, 0] - 1, -(-shapes[:, 1:3] // grid), np.full(len(shapes), 2)])
        out = Batch.allocate(ctx.empty, np.where(wrong[:, None], 0, after).astype(np.int32), np.float32, "FHWC",
                             video.samples)  # fmt: skip
        for i in np.flatnonzero(~wrong).tolist():
            flow = self._flow(ctx, i, search, video.sample(i), [b.sample(i) for b in hints])
            out.sample(i)[...] = flow if flow is not None else 0
        return out

    def gpu(self, ctx: Context, video: Batch, *hints: Batch) -> Batch:
        """The same, by way of the host."""
        host = [b.replace(data=b.data.get()) if not b.on_host else b for b in (video, *hints)]  # waits for the copy
        here = Context(self, "cpu", ctx.samples, ctx.args, ctx.seed, ctx.rng)
        out = self.cpu(here, *host)
        ctx.rejects.extend(here.rejects)
        moved: Batch = ctx.device.to_device(out)
        return moved

    def _flow(self, ctx: Context, i: int, search: Any, frames: npt.NDArray[Any], hints: list[Any]) -> F32 | None:
        """[F - 1, cells down, cells across, 2] of one sequence; None where the hints do not fit."""
        gray = [self._gray(f) for f in frames]
        height, width = gray[0].shape
        if hints:
            side = self.hint_grid
            wanted = (len(gray) - 1, -(-height // side), -(-width // side), 2)
            if hints[0].shape != wanted:
                ctx.reject(i, "bad_shape", f"hints must be of shape {list(wanted)}, got {list(hints[0].shape)}")
                return None
        before: F32 | None = None
        found = []
        for k in range(len(gray) - 1):
            start = before if self.enable_temporal_hints else None
            if hints:
                spread = np.repeat(np.repeat(hints[0][k], self.hint_grid, axis=0), self.hint_grid, axis=1)
                start = np.ascontiguousarray(spread[:height, :width], np.float32)
            before = search.calc(gray[k], gray[k + 1], None if start is None else start.copy())
            found.append(_cells(np.asarray(before), self.output_grid))
        return np.stack(found)

    def _gray(self, frame: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        if frame.shape[2] == 1:
            return np.ascontiguousarray(frame[:, :, 0])
        import cv2

        code = cv2.COLOR_BGR2GRAY if self.image_type is DALIImageType.BGR else cv2.COLOR_RGB2GRAY
        return np.asarray(cv2.cvtColor(np.ascontiguousarray(frame), code))


def _cells(flow: F32, side: int) -> F32:
    """The mean of ``flow`` [H, W, 2] in cells of ``side`` pixels; those at the end may hold fewer."""
    down, across = np.arange(0, flow.shape[0], side), np.arange(0, flow.shape[1], side)
    total = np.add.reduceat(np.add.reduceat(flow, down, axis=0), across, axis=1)
    count = np.diff(np.append(down, flow.shape[0]))[:, None] * np.diff(np.append(across, flow.shape[1]))[None]
    cells: F32 = (total / count[:, :, None]).astype(np.float32)
    return cells


def _search(preset: float) -> Any:
    try:
        import cv2
    except ImportError:
        raise SpecError("optical_flow needs OpenCV; install it with `pip install dali-run[flow]`") from None
    presets = {0.0: cv2.DISOPTICAL_FLOW_PRESET_MEDIUM, 0.5: cv2.DISOPTICAL_FLOW_PRESET_FAST,
               1.0: cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST}  # fmt: skip
    return cv2.DISOpticalFlow.create(presets[preset])
