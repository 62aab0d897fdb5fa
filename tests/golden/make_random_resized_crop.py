"""Makes random_resized_crop.npz with NVIDIA DALI 2.4 (CPU): fn.random_resized_crop of one image, two iterations."""

from pathlib import Path

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
from nvidia.dali import pipeline_def

SEED, BATCH, ITERATIONS = 31, 3, 2

if __name__ == "__main__":
    image = np.random.default_rng(0).integers(0, 256, (47, 61, 3)).astype(np.uint8)

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, seed=1)
    def pipe():
        images = fn.external_source(source=lambda: [image] * BATCH, layout="HWC")
        small = fn.random_resized_crop(images, size=(14, 17), seed=SEED)
        large = fn.random_resized_crop(
            images, size=30, seed=SEED, random_area=(0.3, 0.6), interp_type=types.INTERP_CUBIC
        )
        return small, large

    p = pipe()
    p.build()
    small, large = [], []
    for _ in range(ITERATIONS):
        a, b = p.run()
        small += [np.array(a[i]) for i in range(BATCH)]
        large += [np.array(b[i]) for i in range(BATCH)]
    np.savez_compressed(
        Path(__file__).with_name("random_resized_crop.npz"),
        seed=SEED, batch=BATCH, image=image, small=np.array(small), large=np.array(large),
    )  # fmt: skip
