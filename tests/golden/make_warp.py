"""Makes warp.npz with NVIDIA DALI 2.4 (CPU): rotate and warp_affine over angles, matrices, fills, filters and types."""

from pathlib import Path

from single_input import make

SHAPES = ((21, 30, 3), (14, 9, 1))


def cases():
    for angle in (0.0, 10.0, 30.0, 45.0, 46.0, 90.0, 100.0, 180.0, 270.0, -45.0, -33.3, 725.0):
        for shape in SHAPES:
            yield ("rotate", {"angle": angle, "fill_value": 42}, "HWC", "uint8", shape)
        yield ("rotate", {"angle": angle}, "HWC", "uint8", SHAPES[1])
        yield ("rotate", {"angle": angle, "keep_size": True}, "HWC", "uint8", SHAPES[0])
        yield ("rotate", {"angle": angle, "interp_type": "INTERP_NN", "fill_value": 7}, "HWC", "uint8", SHAPES[0])
    yield ("rotate", {"angle": 30.0, "size": [17, 25]}, "HWC", "uint8", SHAPES[0])
    yield ("rotate", {"angle": 30.0, "size": [17.6, 25.4], "fill_value": 0}, "HWC", "uint8", SHAPES[0])
    yield ("rotate", {"angle": 20.0, "dtype": "FLOAT", "fill_value": 0.5}, "HWC", "uint8", SHAPES[0])
    yield ("rotate", {"angle": 20.0}, "FHWC", "uint8", (2, 11, 8, 3))
    yield ("rotate", {"angle": 20.0}, "", "uint8", SHAPES[0])
    for dtype in ("int16", "int32", "float32"):
        yield ("rotate", {"angle": 20.0, "fill_value": -3}, "HWC", dtype, SHAPES[0])
    for matrix in ([1, 0, 0, 0, 1, 0], [1, 0, 0.5, 0, 1, 0.25], [0.5, 0, 0, 0, 0.5, 0], [0.9, -0.3, 4, 0.2, 1.1, -2.5],
                   [-1, 0, 30, 0, 1, 0]):  # fmt: skip
        for fill in ({}, {"fill_value": 300}, {"fill_value": -5.5}):
            for name in ("INTERP_LINEAR", "INTERP_NN"):
                yield ("warp_affine", {"matrix": matrix, "interp_type": name, **fill}, "HWC", "uint8", SHAPES[0])
        yield ("warp_affine", {"matrix": matrix, "inverse_map": False, "size": [25, 33]}, "HWC", "uint8", SHAPES[0])
    volume = (5, 8, 7, 2)
    for axis in ([0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [2.0, 0.0, 0.0], [1.0, 2.0, 3.0]):
        for angle in (0.0, 30.0, 45.0, 90.0, -100.0):
            yield ("rotate", {"axis": axis, "angle": angle, "fill_value": 42}, "DHWC", "uint8", volume)
        yield ("rotate", {"axis": axis, "angle": 50.0}, "DHWC", "uint8", volume)
        yield ("rotate", {"axis": axis, "angle": 20.0, "keep_size": True, "fill_value": 0}, "DHWC", "float32", volume)
        yield (
            "rotate",
            {"axis": axis, "angle": 33.3, "interp_type": "INTERP_NN", "fill_value": 1},
            "DHWC",
            "uint8",
            volume,
        )
    matrix = [0.9, -0.3, 0.1, 2, 0.2, 1.1, 0.2, -1.5, 0.1, -0.1, 0.8, 0.6]
    for fill in ({}, {"fill_value": 9}):
        yield ("warp_affine", {"matrix": matrix, **fill}, "DHWC", "uint8", volume)
        yield (
            "warp_affine",
            {"matrix": matrix, "inverse_map": False, "size": [6, 9, 5], **fill},
            "DHWC",
            "uint8",
            volume,
        )


RANGES = {"uint8": (0, 256), "int16": (-1000, 1000), "int32": (-1000, 1000), "float32": (-1000, 1000)}

if __name__ == "__main__":
    make(Path(__file__).with_name("warp.npz"), cases(), RANGES)
