"""Makes random_window.npz with NVIDIA DALI 2.4 (CPU): windows of fn.random_crop_generator over several settings."""

from pathlib import Path

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
from nvidia.dali import pipeline_def

SEED, BATCH, ITERATIONS = 77, 4, 40
SETTINGS = [
    (480, 640, {}),
    (333, 500, {}),
    (100, 1000, {}),
    (1000, 100, {}),
    (5, 7, {}),
    (1, 1, {}),
    (3, 1000, {}),
    (480, 640, {"random_area": (0.6, 1.0), "random_aspect_ratio": (0.8, 1.25), "num_attempts": 100}),
    (100, 1000, {"random_area": (0.6, 1.0), "random_aspect_ratio": (0.8, 1.25)}),
    (1000, 100, {"random_area": (0.6, 0.7), "random_aspect_ratio": (0.8, 1.25)}),
    (200, 300, {"random_area": (0.9, 1.0), "random_aspect_ratio": (1.0, 1.0), "num_attempts": 1}),
    (257, 3001, {"random_area": (0.01, 0.3), "random_aspect_ratio": (0.1, 10.0)}),
]


def windows(height, width, settings):
    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, seed=1)
    def pipe():
        return tuple(fn.random_crop_generator(types.Constant(np.int64([height, width])), seed=SEED, **settings))

    p = pipe()
    p.build()
    rows = []
    for _ in range(ITERATIONS):
        anchors, shapes = p.run()
        rows += [np.concatenate([np.array(anchors[i]), np.array(shapes[i])]) for i in range(BATCH)]
    return np.array(rows, np.int32)


if __name__ == "__main__":
    found = {}
    for k, (h, w, settings) in enumerate(SETTINGS):
        found[f"windows_{k}"] = windows(h, w, settings)
        aspect, area = settings.get("random_aspect_ratio", (3 / 4, 4 / 3)), settings.get("random_area", (0.08, 1.0))
        found[f"setting_{k}"] = np.array([h, w, *aspect, *area, settings.get("num_attempts", 10)])
    np.savez_compressed(Path(__file__).with_name("random_window.npz"), seed=SEED, batch=BATCH, **found)
