"""Makes camera.npz with NVIDIA DALI 2.4 (CPU): debayer, clahe."""

from pathlib import Path

from one_step import image, make


def cases():
    for position in ([0, 0], [0, 1], [1, 0], [1, 1]):
        for dtype in ("uint8", "uint16"):
            raw = image(dtype, shape=(12, 14), layout="HW")
            yield {"op": "debayer", "arguments": {"blue_position": position}, "inputs": [raw]}
        for algorithm in ("edgeaware_ocv", "vng_ocv", "gray_ocv"):
            arguments = {"blue_position": position, "algorithm": algorithm}
            yield {"op": "debayer", "arguments": arguments, "inputs": [image(shape=(12, 14), layout="HW")]}
    for shape, layout in (((2, 2), "HW"), ((4, 6, 1), "HWC"), ((2, 6, 4), "FHW"), ((2, 6, 4, 1), "FHWC")):
        yield {"op": "debayer", "arguments": {"blue_position": [0, 1]}, "inputs": [image(shape=shape, layout=layout)]}
    for x, y, clip in ((8, 8, 2.0), (4, 4, 3.0), (7, 5, 2.0), (8, 8, 40.0), (3, 2, 1.0)):
        arguments = {"tiles_x": x, "tiles_y": y, "clip_limit": clip}
        yield {"op": "clahe", "arguments": arguments, "inputs": [image(shape=(64, 80, 1), low=40, high=190)]}
        yield {"op": "clahe", "arguments": arguments, "inputs": [image(shape=(61, 83, 3), low=40, high=190)]}
        each = {**arguments, "luma_only": False}
        yield {"op": "clahe", "arguments": each, "inputs": [image(shape=(61, 83, 3), low=40, high=190)]}


if __name__ == "__main__":
    make(Path(__file__).with_name("camera.npz"), cases())
