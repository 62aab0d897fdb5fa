"""Makes warp.npz with NVIDIA DALI 2.4 (CPU): rotate and warp_affine over angles, matrices, fills, filters and types."""

import json
from pathlib import Path

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
from nvidia.dali import pipeline_def

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


def source(seed, dtype, shape):
    low, high = {"uint8": (0, 256)}.get(dtype, (-1000, 1000))
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def run(op, arguments, layout, data):
    typed = {k: getattr(types, v) if isinstance(v, str) and v.isupper() else v for k, v in arguments.items()}

    @pipeline_def(batch_size=1, num_threads=1, device_id=None, seed=1)
    def pipe():
        return getattr(fn, op)(fn.external_source(source=lambda: [data], layout=layout or None), **typed)

    p = pipe()
    p.build()
    return np.array(p.run()[0].at(0))


if __name__ == "__main__":
    found, described = {}, []
    for number, (op, arguments, layout, dtype, shape) in enumerate(cases()):
        out = run(op, arguments, layout, source(number, dtype, shape))
        found.setdefault(out.dtype.name, []).append(out.reshape(-1))
        described.append({"op": op, "arguments": arguments, "layout": layout, "dtype": dtype, "shape": shape})
        described[-1] |= {"out_dtype": out.dtype.name, "out_shape": out.shape}
    flat = {name: np.concatenate(parts) for name, parts in found.items()}  # in the order of the cases of that type
    np.savez_compressed(Path(__file__).with_name("warp.npz"), cases=json.dumps(described), **flat)
