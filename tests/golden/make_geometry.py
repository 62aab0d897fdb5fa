"""Makes geometry.npz with NVIDIA DALI 2.4 (CPU): warp_perspective, water, sphere, coord_flip, coord_transform and
transforms.* over types, layouts, borders and arguments that are tensors."""

from pathlib import Path

import numpy as np
from several_inputs import make

MATRIX = [0.9, 0.1, 3, -0.05, 1.1, 2, 1e-3, -5e-4, 1]
IMAGE = ["HWC", "uint8", (23, 31, 3)]
PERSPECTIVE = "experimental.warp_perspective"


def perspective():
    for origin in ("corner", "center"):
        for interp in ("INTERP_NN", "INTERP_LINEAR", "INTERP_CUBIC"):
            for border in ("constant", "replicate", "reflect", "reflect_101", "wrap"):
                arguments = {"matrix": MATRIX, "pixel_origin": origin, "interp_type": interp, "border_mode": border}
                yield {"op": PERSPECTIVE, "inputs": [IMAGE], "arguments": arguments}
    arguments = {"matrix": MATRIX}
    for layout, shape in (
        ("HW", (9, 14)),
        ("CHW", (3, 9, 14)),
        ("FHWC", (2, 9, 14, 3)),
        ("FCHW", (2, 3, 9, 14)),
        ("", (9, 14, 3)),
        ("HWC", (9, 14, 1)),
        ("HWC", (9, 14, 2)),
        ("HWC", (9, 14, 4)),
    ):
        yield {"op": PERSPECTIVE, "inputs": [[layout, "uint8", shape]], "arguments": arguments}
    for dtype in ("int16", "uint16", "float32"):
        for interp in ("INTERP_NN", "INTERP_LINEAR", "INTERP_CUBIC"):
            yield {
                "op": PERSPECTIVE,
                "inputs": [["HWC", dtype, (19, 14, 3)]],
                "arguments": {**arguments, "interp_type": interp, "fill_value": [1.25, 2.75, -3]},
            }
    yield {"op": PERSPECTIVE, "inputs": [IMAGE], "arguments": {**arguments, "size": [14.6, 44.4], "fill_value": 7}}
    yield {"op": PERSPECTIVE, "inputs": [IMAGE], "arguments": {**arguments, "fill_value": [1, 2.75, 300]}}
    yield {"op": PERSPECTIVE, "inputs": [IMAGE], "arguments": {**arguments, "inverse_map": False}}
    yield {"op": PERSPECTIVE, "inputs": [IMAGE, ["", "float32", (3, 3)]], "arguments": {}}
    rows = [MATRIX[:3], MATRIX[3:6], MATRIX[6:]]
    yield {"op": PERSPECTIVE, "inputs": [IMAGE], "tensors": {"matrix": {"dtype": "float32", "values": rows}}}
    frames = [rows, [[1, 0, 2], [0, 1, 3], [0, 0, 1]]]
    yield {
        "op": PERSPECTIVE,
        "inputs": [["FHWC", "uint8", (2, 9, 14, 3)]],
        "tensors": {"matrix": {"dtype": "float32", "values": frames, "layout": "F**"}},
    }


def displacement():
    for interp in ("INTERP_NN", "INTERP_LINEAR"):
        for dtype in ("uint8", "float32"):
            for fill in (0.0, 77.25):
                settings = {"interp_type": interp, "fill_value": fill}
                image = ["HWC", dtype, (37, 51, 3)]
                yield {"op": "water", "inputs": [image], "arguments": settings}
                yield {"op": "sphere", "inputs": [image], "arguments": settings}
        wave = {"ampl_x": 3.5, "ampl_y": 5.0, "freq_x": 0.2, "freq_y": 0.15, "phase_x": 0.5, "phase_y": -1.0}
        yield {"op": "water", "inputs": [IMAGE], "arguments": {**wave, "interp_type": interp}}
        for channels in (1, 2, 4):
            yield {
                "op": "water",
                "inputs": [["HWC", "uint8", (20, 15, channels)]],
                "arguments": {"interp_type": interp},
            }
            yield {
                "op": "sphere",
                "inputs": [["HWC", "uint8", (20, 15, channels)]],
                "arguments": {"interp_type": interp},
            }
    for mask in (0, 1):
        for op in ("water", "sphere"):
            yield {"op": op, "inputs": [IMAGE], "tensors": {"mask": {"dtype": "int32", "values": mask}}}


def coordinates():
    for layout, width in (("", 1), ("", 2), ("", 3), ("yx", 2), ("zxy", 3)):
        for flips in (
            {},
            {"flip_x": 0, "flip_y": 1, "center_y": 0.25},
            {"flip_z": 1, "center_x": 2.0, "center_z": -1.0},
        ):
            yield {
                "op": "coord_flip",
                "inputs": [["", "float32", (5, width)]],
                "arguments": {**flips, "layout": layout},
            }
    yield {
        "op": "coord_flip",
        "inputs": [["", "float32", (5, 2)]],
        "tensors": {"flip_x": {"dtype": "int32", "values": 0}, "center_y": {"dtype": "float32", "values": 3.0}},
    }
    points = ["", "float32", (5, 3)]
    for arguments in (
        {"M": [0, 1, 0, 1, 0, 0, 0, 0, 1]},
        {"M": 2.0},
        {"M": [1, 2, 3]},
        {"M": [1, 2, 3, 4, 5, 6]},
        {"T": [1, 2, 3]},
        {"T": 5.0},
        {"M": [1, 2, 3, 4, 5, 6], "T": [10, 20]},
        {"M": [1, 2, 3, 4, 5, 6], "T": 7.0},
        {"MT": [1, 2, 3, 4, 5, 6, 7, 8]},
        {"MT": 3.0},
        {},
    ):
        yield {"op": "coord_transform", "inputs": [points], "arguments": arguments}
        yield {"op": "coord_transform", "inputs": [["", "float32", (2, 4, 3)]], "arguments": arguments}
    for dtype in ("uint8", "int16", "int32", "uint16"):
        yield {
            "op": "coord_transform",
            "inputs": [["", dtype, (5, 2)]],
            "arguments": {"M": [0.5, 1.25, -0.75, 1], "T": 3.0},
        }
        own = {"M": [0.5, 1.25, -0.75, 1], "dtype": dtype.upper()}
        yield {"op": "coord_transform", "inputs": [["", dtype, (5, 2)]], "arguments": own}
    yield {
        "op": "coord_transform",
        "inputs": [points],
        "tensors": {
            "M": {"dtype": "float32", "values": [[1, 2, 3], [4, 5, 6]]},
            "T": {"dtype": "float32", "values": [1, 2]},
        },
    }
    yield {
        "op": "coord_transform",
        "inputs": [points],
        "tensors": {"MT": {"dtype": "float32", "values": [[1, 2, 3, 9], [4, 5, 6, 8]]}},
    }
    yield {
        "op": "coord_transform",
        "inputs": [["F**", "float32", (2, 4, 2)]],
        "tensors": {
            "MT": {"dtype": "float32", "values": [[[1, 2, 9], [5, 6, 8]], [[0, 1, 0], [1, 0, 0]]], "layout": "F**"}
        },
    }


def matrices():
    before = {2: ["", "float32", (2, 3)], 3: ["", "float32", (3, 4)]}
    makers = [
        ("translation", 2, {"offset": [10, -3]}),
        ("translation", 3, {"offset": [1, 2, 3]}),
        ("scale", 2, {"scale": [2, 0.5]}),
        ("scale", 2, {"scale": [2, 0.5], "center": [3, 4]}),
        ("scale", 3, {"scale": [2, 0.5, 3], "center": [3, 4, 5]}),
        ("scale", 3, {"scale": 2.0, "ndim": 3}),
        ("rotation", 2, {"angle": 30.0}),
        ("rotation", 2, {"angle": -75.5, "center": [3, 4]}),
        ("rotation", 3, {"angle": 30.0, "axis": [1, 2, 3]}),
        ("rotation", 3, {"angle": 30.0, "axis": [0, 0, 2], "center": [1, 2, 3]}),
        ("shear", 2, {"shear": [2, 0.5]}),
        ("shear", 2, {"angles": [30, -20]}),
        ("shear", 2, {"shear": [2, 0.5], "center": [3, 4]}),
        ("shear", 3, {"shear": [1, 2, 3, 4, 5, 6]}),
        ("shear", 3, {"angles": [10, 20, 30, 40, -50, 60], "center": [1, 2, 3]}),
        ("crop", 2, {"from_start": [1, 2], "from_end": [5, 8], "to_start": [10, 20], "to_end": [-3, 7]}),
        (
            "crop",
            2,
            {"from_start": [5, 2], "from_end": [1, 8], "to_start": [10, 20], "to_end": [-3, 7], "absolute": True},
        ),
        ("crop", 3, {"from_end": [5, 8, 3]}),
        ("crop", 3, {"from_start": 0.25, "to_end": [1, 2, 3]}),
        ("crop", 1, {}),
    ]
    for name, ndim, arguments in makers:
        op = f"transforms.{name}"
        yield {"op": op, "arguments": arguments}
        if ndim in before:
            for reverse in (False, True):
                yield {"op": op, "inputs": [before[ndim]], "arguments": {**arguments, "reverse_order": reverse}}
        tensors = {k: {"dtype": "float32", "values": v} for k, v in arguments.items() if k not in ("ndim", "absolute")}
        if name == "shear" and ndim == 3:
            key = "shear" if "shear" in tensors else "angles"
            tensors[key]["values"] = np.reshape(tensors[key]["values"], (3, 2)).tolist()
        if tensors:
            constants = {k: v for k, v in arguments.items() if k not in tensors}
            yield {"op": op, "arguments": constants, "tensors": tensors}
    yield {"op": "transforms.scale", "inputs": [before[2]], "arguments": {"scale": 2.0}}
    for count in (2, 3, 5):
        for reverse in (False, True):
            yield {"op": "transforms.combine", "inputs": [before[2]] * count, "arguments": {"reverse_order": reverse}}
            yield {"op": "transforms.combine", "inputs": [before[3]] * count, "arguments": {"reverse_order": reverse}}
    frames = {"dtype": "float32", "values": [[1, 2], [3, 4], [5, 6]], "layout": "F*"}
    yield {"op": "transforms.translation", "tensors": {"offset": frames}}
    yield {"op": "transforms.scale", "tensors": {"scale": frames}, "arguments": {"center": [1, 1]}}
    yield {"op": "transforms.rotation", "tensors": {"angle": {"dtype": "float32", "values": [10, 20], "layout": "F"}}}
    yield {"op": "transforms.translation", "inputs": [["F**", "float32", (3, 2, 3)]], "tensors": {"offset": frames}}
    yield {"op": "transforms.translation", "inputs": [["F**", "float32", (3, 2, 3)]], "arguments": {"offset": [1, 2]}}
    yield {"op": "transforms.combine", "inputs": [["F**", "float32", (3, 2, 3)], before[2]]}


if __name__ == "__main__":
    here = Path(__file__)
    make(here.with_name("perspective.npz"), perspective())
    make(here.with_name("displacement.npz"), displacement())
    make(here.with_name("coordinates.npz"), coordinates())
    make(here.with_name("transforms.npz"), matrices())
