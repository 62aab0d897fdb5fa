"""Writes arithmetic_jpegs.npz: arithmetic-coded JPEGs, which no library of the tests writes, by libjpeg-turbo's cjpeg.

Run with a Python that has NumPy and Pillow, where cjpeg is installed: python make_arithmetic_jpegs.py
"""

import io
import subprocess
from pathlib import Path

import numpy as np
from PIL import Image

OPTIONS = {
    "sequential 4:2:0": [],
    "progressive 4:2:0": ["-progressive"],
    "restarts 4:2:0": ["-restart", "2B"],
    "progressive with restarts 4:2:0": ["-restart", "2B", "-progressive"],
    "gray": ["-grayscale"],
    "sequential 4:1:0": ["-sample", "4x2"],
    "progressive 4:1:0": ["-sample", "4x2", "-progressive"],
}

y, x = np.mgrid[:33, :50]
noise = np.random.default_rng(1).integers(0, 60, (33, 50, 3))
ppm = io.BytesIO()
Image.fromarray(((x * 3 + y * 5)[..., None] % 190 + noise).astype(np.uint8)).save(ppm, "PPM")
np.savez_compressed(
    Path(__file__).with_name("arithmetic_jpegs.npz"),
    **{
        name: np.frombuffer(
            subprocess.run(
                ["cjpeg", "-arithmetic", "-quality", "60", *options],
                input=ppm.getvalue(),
                capture_output=True,
                check=True,
            ).stdout,
            np.uint8,
        )
        for name, options in OPTIONS.items()
    },
)
