"""Operators water and sphere: images as if seen through waves, or wrapped around a ball."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..copies.strided import Border
from ..copies.windows import image_layout, known_layout
from ..errors import SpecError
from ..types import DALIInterpType
from .sampling import FILTERS, Kind, PixelSources, sampled


class Displacement(Operator, abstract=True):
    """Base class of the operators water and sphere, which move pixels by a formula."""

    replayable = True
    layouts = ("HWC", "FHWC", "CHW", "FCHW")
    bound = "1 level; except pixels whose source lies at a tie"

    mask: Annotated[int, Arg("0: leave the image unchanged (in DALI: only as an input)", per_sample=True)] = 1
    fill_value: Annotated[float, Arg("value outside the image")] = 0.0
    interp_type: Annotated[DALIInterpType, Arg("filter: NN or LINEAR")] = DALIInterpType.INTERP_NN

    def check(self) -> None:
        if self.interp_type not in (DALIInterpType.INTERP_NN, DALIInterpType.INTERP_LINEAR):
            raise SpecError(
                f"interp_type must be NN or LINEAR here, got {self.interp_type.name.removeprefix('INTERP_')}"
            )

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        layout = image_layout(data.layout, data.ndim, self.layouts)
        if layout and layout not in self.layouts:
            raise SpecError(f"takes layouts {', '.join(self.layouts)}, got {layout}")
        return Spec(data.shape, data.dtype, layout)

    def sources(self, n: int) -> PixelSources:
        """Return the position in the input from which each output pixel is taken, for ``n`` samples."""
        raise NotImplementedError

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        images = images.replace(layout=known_layout(images, self.layouts))
        at = images.layout.index("H")
        sizes = images.shapes[:, at : at + 2].astype(np.int64)
        left: npt.NDArray[np.bool_] = ctx.arg("mask", np.int32) == 0
        how, fill = FILTERS[self.interp_type], np.array([[self.fill_value]])
        return sampled(ctx, images, sizes, self.sources(len(images)), how, Border.FILL, fill, copied=left)

    gpu = cpu


class Water(Displacement, name="water"):
    """Take pixel (x, y) from (x + ampl_x sin(freq_x y + phase_x), y + ampl_y cos(freq_y x + phase_y)).

    Coordinates are in pixels, computed in float32; NN takes the pixel that contains the source position. LINEAR is half
    a pixel off, as in DALI: with amplitudes of 0 it still blurs.
    """

    example = "{op: water, in: images, ampl_x: 4, ampl_y: 4, freq_x: 0.1, freq_y: 0.1, mask: $coin, out: images}"

    ampl_x: Annotated[float, Arg("horizontal amplitude in pixels")] = 10.0
    ampl_y: Annotated[float, Arg("vertical amplitude in pixels")] = 10.0
    freq_x: Annotated[float, Arg("frequency of the horizontal wave, radians per pixel downwards")] = 2 * math.pi / 128
    freq_y: Annotated[float, Arg("frequency of the vertical wave, radians per pixel to the right")] = 2 * math.pi / 128
    phase_x: Annotated[float, Arg("phase of the horizontal wave in radians")] = 0.0
    phase_y: Annotated[float, Arg("phase of the vertical wave in radians")] = 0.0

    def sources(self, n: int) -> PixelSources:
        waves = [self.ampl_x, self.ampl_y, self.freq_x, self.freq_y, self.phase_x, self.phase_y, 0, 0, 0]
        return PixelSources(Kind.WATER, np.repeat(np.array([waves], np.float32).astype(np.float64), n, axis=0))


class Sphere(Displacement, name="sphere"):
    """Distort images as a lens does: move the source of each pixel towards the centre, so that its distance is squared.
    Distances are in units of half the longer side; positions are truncated to pixels."""

    example = "{op: sphere, in: images, mask: $coin, out: images}"

    def sources(self, n: int) -> PixelSources:
        return PixelSources(Kind.SPHERE, np.zeros((n, 9)))
