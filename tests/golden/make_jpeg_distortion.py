"""Makes jpeg_distortion.npz with NVIDIA DALI 2.4 (CPU): jpeg_compression_distortion."""

from pathlib import Path

from one_step import image, make


def cases():
    for quality in (1, 5, 30, 50, 75, 90, 97, 100):
        for shape in ((29, 33, 3), (16, 16, 3), (17, 48, 3), (1, 1, 3), (30, 31, 3)):
            yield {
                "op": "jpeg_compression_distortion",
                "arguments": {"quality": quality},
                "inputs": [image(shape=shape)],
            }
    frames = image(shape=(2, 18, 21, 3), layout="FHWC")
    yield {"op": "jpeg_compression_distortion", "arguments": {}, "inputs": [frames]}


if __name__ == "__main__":
    make(Path(__file__).with_name("jpeg_distortion.npz"), cases())
