"""Makes color.npz with NVIDIA DALI 2.4 (CPU): random pixels through color_space_conversion, every pair of spaces."""

from pathlib import Path

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
from nvidia.dali import pipeline_def

SPACES = ("RGB", "BGR", "GRAY", "YCbCr")


def convert(pixels, source, target):
    @pipeline_def(batch_size=1, num_threads=1, device_id=None, seed=1)
    def pipe():
        given = fn.external_source(source=lambda: [pixels], layout="HWC")
        names = {"image_type": getattr(types, source), "output_type": getattr(types, target)}
        return fn.color_space_conversion(given, **names)

    p = pipe()
    p.build()
    return np.array(p.run()[0].at(0))


if __name__ == "__main__":
    found = {"colour": np.random.default_rng(5).integers(0, 256, (60, 80, 3)).astype(np.uint8)}
    found["GRAY"] = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    for a in SPACES:
        for b in SPACES:
            if a != b:  # DALI refuses to convert a space into itself
                found[f"{a}_{b}"] = convert(found["GRAY" if a == "GRAY" else "colour"], a, b)
    np.savez_compressed(Path(__file__).with_name("color.npz"), **found)
