"""Golden arrays of fn.decoders.image: run with a Python that has NVIDIA DALI 2.4.0 and Pillow; writes decoders.npz.

Every case runs in a process of its own, because DALI aborts on some.
"""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
from nvidia.dali import pipeline_def
from PIL import Image

HERE = Path(__file__).parent


def encode(image: Image.Image, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def inputs() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    rgb = Image.fromarray(rng.integers(0, 255, (6, 8, 3), np.uint8))
    rgba = Image.fromarray(rng.integers(0, 255, (6, 8, 4), np.uint8))
    gray = Image.fromarray(rng.integers(0, 255, (6, 8), np.uint8))
    deep = Image.fromarray(rng.integers(0, 65535, (6, 8)).astype(np.uint16))
    palette = rgb.quantize(8)
    smooth = Image.fromarray(np.add.outer(np.arange(48), np.arange(64))[..., None].repeat(3, 2).astype(np.uint8))
    return {
        "png rgb": encode(rgb, "PNG"),
        "png rgba": encode(rgba, "PNG"),
        "png gray": encode(gray, "PNG"),
        "png palette": encode(palette, "PNG"),
        "png palette transparent": encode(palette, "PNG", transparency=bytes([0, 100, 255])),
        "png bilevel": encode(gray.convert("1"), "PNG"),
        "png gray 16": encode(deep, "PNG"),
        "jpeg 444": encode(rgb, "JPEG", quality=90, subsampling=0),
        "jpeg 420": encode(smooth, "JPEG", quality=80, subsampling=2),
        "jpeg gray": encode(gray, "JPEG"),
        "jpeg progressive": encode(rgb, "JPEG", progressive=True),
        "jpeg cmyk": encode(rgb.convert("CMYK"), "JPEG"),
        "tiff rgb": encode(rgb, "TIFF"),
        "tiff rgba": encode(rgba, "TIFF"),
        "tiff gray 16": encode(deep, "TIFF"),
        "tiff float": encode(Image.fromarray((np.asarray(gray) / 255).astype(np.float32)), "TIFF"),
        "bmp rgb": encode(rgb, "BMP"),
        "bmp palette": encode(palette, "BMP"),
        "bmp gray": encode(gray, "BMP"),
        "ppm": encode(rgb, "PPM"),
        "pgm": encode(gray, "PPM"),
        "pgm 16": encode(deep, "PPM"),
        "webp": encode(rgb, "WEBP", lossless=True),
        "webp alpha": encode(rgba, "WEBP", lossless=True),
        "jpeg 2000": encode(rgb, "JPEG2000"),
        "jpeg 2000 gray": encode(gray, "JPEG2000"),
    }


def decode(blob: bytes, output_type: str, dtype: str) -> np.ndarray:
    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipe() -> Any:
        data = fn.external_source(source=lambda: [np.frombuffer(blob, np.uint8)])
        return fn.decoders.image(data, output_type=getattr(types, output_type), dtype=getattr(types, dtype))

    p = pipe()
    p.build()
    return p.run()[0].as_array()[0]


def main() -> None:
    arrays: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, blob in inputs().items():
            arrays[f"input/{name}"] = np.frombuffer(blob, np.uint8)
            for output_type in ("RGB", "BGR", "GRAY", "YCbCr", "ANY_DATA"):
                for dtype in ("UINT8", "UINT16", "FLOAT"):
                    if dtype != "UINT8" and name not in ("png rgb", "png gray 16", "jpeg 444", "tiff float", "pgm 16"):
                        continue
                    path = Path(folder) / "result.npy"
                    path.unlink(missing_ok=True)
                    if os.fork() == 0:
                        try:
                            np.save(path, decode(blob, output_type, dtype))
                        finally:
                            os._exit(0)
                    os.wait()
                    if path.exists():
                        arrays[f"output/{name}/{output_type}/{dtype}"] = np.load(path)
    np.savez_compressed(HERE / "decoders.npz", **arrays)
    print(len(arrays), "arrays")


if __name__ == "__main__":
    main()
