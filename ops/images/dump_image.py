"""Operator dump_image: write images to files and pass them on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..errors import JobError, SampleError, SpecError
from ..types import DALIDataType


class DumpImage(Operator, name="dump_image"):
    """Write images to PPM files (PGM for one channel) in the working directory, and pass them on: for debugging.

    Files are called <index in the batch>-<suffix>-<samples before the batch>.ppm; in DALI, batches overwrite each
    other's.
    """

    layouts = ("HWC", "CHW")
    example = "{op: dump_image, in: images, suffix: cropped, out: images}"

    suffix: Annotated[str, Arg("text in the names of the files")] = ""
    input_layout: Annotated[Literal["HWC", "CHW"], Arg("layout of images that have none")] = "HWC"

    def check(self) -> None:
        if "/" in self.suffix or "\0" in self.suffix:
            raise SpecError(f"suffix is a part of a file's name, got {self.suffix!r}")

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.dtype not in (None, DALIDataType.UINT8) or data.ndim not in (None, 3):
            raise SpecError(f"takes uint8 images, got {data}")
        return data

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        if images.dtype != np.uint8 or images.ndim != 3:
            raise SampleError("bad_shape", f"takes uint8 images, got {images.dtype}, {images.ndim}-D")
        host = images if images.on_host else images.replace(data=images.data.get())  # waits for the copy
        first = (images.layout or self.input_layout) == "CHW"
        slots, positions = images.samples.slot.tolist(), images.samples.position.tolist()
        for i, (slot, position) in enumerate(zip(slots, positions, strict=True)):
            image = host.sample(i).transpose(1, 2, 0) if first else host.sample(i)
            height, width, channels = image.shape
            if channels not in (1, 3):
                ctx.reject(i, "bad_shape", f"PPM has 1 or 3 channels, the image {channels}")
                continue
            path = Path(f"{slot}-{self.suffix}-{position - slot}.ppm")
            header = f"P{6 if channels == 3 else 5}\n{width} {height}\n255\n".encode()
            try:
                path.write_bytes(header + np.ascontiguousarray(image).tobytes())
            except OSError as e:
                raise JobError(f"dump_image cannot write {path}: {e.strerror}") from e
        return images

    gpu = cpu
