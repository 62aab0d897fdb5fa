"""Makes regions.npz with NVIDIA DALI 2.4 (CPU): erase, paste, multi_paste, bbox_paste and grid_mask."""

from pathlib import Path

import numpy as np
from several_inputs import make

IMAGE = ["HWC", "uint8", (23, 31, 3)]


def erased():
    random = np.random.default_rng(5)
    for number in range(24):
        relative_anchor, relative_shape, centered = (bool(v) for v in random.integers(0, 2, 3))
        anchor = random.random(4) * (1 if relative_anchor else 25)
        shape = random.random(4) * (0.5 if relative_shape else 15)
        yield {
            "op": "erase",
            "inputs": [IMAGE],
            "arguments": {
                "anchor": anchor.tolist(),
                "shape": shape.tolist(),
                "axis_names": ("HW", "WH")[number % 2],
                "normalized_anchor": relative_anchor,
                "normalized_shape": relative_shape,
                "centered_anchor": centered,
                "fill_value": [7.0, 8.0, 9.0][: 3 if number % 3 else 1],
            },
        }
    plain = {"anchor": [2, 3], "shape": [4, 5]}
    for dtype in ("int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32"):
        yield {"op": "erase", "inputs": [["HWC", dtype, (9, 14, 3)]], "arguments": {**plain, "fill_value": 5}}
    for layout, shape, names in (
        ("CHW", (3, 9, 14), "HW"),
        ("HW", (9, 14), "HW"),
        ("HWC", (9, 14, 3), "W"),
        ("FHWC", (4, 9, 14, 3), "HW"),
        ("FHWC", (4, 9, 14, 3), "F"),
        ("HWC", (9, 14, 8), "C"),
        ("DHWC", (4, 9, 14, 2), "DH"),
    ):
        yield {"op": "erase", "inputs": [[layout, "uint8", shape]], "arguments": {**plain, "axis_names": names}}
    yield {"op": "erase", "inputs": [["CHW", "uint8", (3, 9, 14)]], "arguments": {**plain, "fill_value": [1, 2, 3]}}
    yield {
        "op": "erase",
        "inputs": [["DHWC", "uint8", (4, 9, 14, 2)]],
        "arguments": {"anchor": [1, 2, 3], "shape": [2, 2, 2], "fill_value": [7, 8]},
    }
    yield {"op": "erase", "inputs": [IMAGE], "arguments": {**plain, "axes": [1, 0]}}
    yield {"op": "erase", "inputs": [IMAGE], "arguments": {**plain, "axes": [0, 1], "fill_value": 3}}
    yield {"op": "erase", "inputs": [IMAGE], "arguments": {"shape": [4, 5]}}
    yield {"op": "erase", "inputs": [IMAGE], "arguments": {}}
    yield {
        "op": "erase",
        "inputs": [IMAGE],
        "arguments": {"anchor": [0.2, 0.3], "shape": [0.4, 0.5], "normalized": True},
    }
    yield {"op": "erase", "inputs": [IMAGE], "arguments": {"anchor": [20, 25], "shape": [40, 50]}}
    tensors = {"anchor": [2.0, 3.0, 10.0, 12.0], "shape": [4.0, 5.0, 6.0, 7.0], "fill_value": [1.0, 2.0, 3.0]}
    yield {
        "op": "erase",
        "inputs": [IMAGE],
        "tensors": {k: {"dtype": "float32", "values": v} for k, v in tensors.items()},
    }


def pasted():
    for ratio in (1.0, 1.37, 2.0):
        for x, y in ((0.5, 0.5), (0.3, 0.9), (0.0, 1.0)):
            yield {
                "op": "paste",
                "inputs": [IMAGE],
                "arguments": {"ratio": ratio, "paste_x": x, "paste_y": y, "fill_value": [1, 2, 3]},
            }
    yield {"op": "paste", "inputs": [IMAGE], "arguments": {"ratio": 1.2, "fill_value": [9], "min_canvas_size": 45.0}}
    yield {
        "op": "paste",
        "inputs": [["HWC", "uint8", (9, 14, 1)]],
        "arguments": {"ratio": 1.5, "fill_value": [4], "n_channels": 1},
    }
    yield {
        "op": "paste",
        "inputs": [["HWC", "uint8", (9, 14, 5)]],
        "arguments": {"ratio": 1.5, "fill_value": 4, "n_channels": 5},
    }
    tensors = {"ratio": 1.8, "paste_x": 0.7, "paste_y": 0.2, "min_canvas_size": 50.0}
    yield {
        "op": "paste",
        "inputs": [IMAGE],
        "arguments": {"fill_value": [1, 2, 3]},
        "tensors": {k: {"dtype": "float32", "values": v} for k, v in tensors.items()},
    }
    for ltrb in (False, True):
        for arguments in ({"ratio": 2.0, "paste_x": 0.25, "paste_y": 0.75}, {"ratio": 1.5}):
            yield {"op": "bbox_paste", "inputs": [["", "float32", (5, 4)]], "arguments": {**arguments, "ltrb": ltrb}}
    yield {"op": "bbox_paste", "inputs": [["", "float32", (4,)]], "arguments": {"ratio": 1.5}}
    yield {
        "op": "bbox_paste",
        "inputs": [["", "float32", (2, 4)]],
        "tensors": {k: {"dtype": "float32", "values": v} for k, v in tensors.items() if k != "min_canvas_size"},
    }


def masked():
    for arguments in (
        {"tile": 10},
        {"tile": 13, "ratio": 0.3},
        {"tile": 10, "angle": 0.4},
        {"tile": 5, "ratio": 0.0},
        {"tile": 5, "ratio": 1.0},
        {"tile": 17, "ratio": 0.6, "shift_x": 3.0, "shift_y": 5.0, "angle": 1.0},
        {"tile": 7, "shift_x": -30.5},
        {},
    ):
        for dtype, channels in (("uint8", 3), ("uint8", 1), ("float32", 2), ("int16", 4), ("int32", 3)):
            yield {"op": "grid_mask", "inputs": [["HWC", dtype, (23, 31, channels)]], "arguments": arguments}
    yield {"op": "grid_mask", "inputs": [["", "uint8", (23, 31, 3)]], "arguments": {"tile": 9}}
    yield {
        "op": "grid_mask",
        "inputs": [IMAGE],
        "tensors": {
            "tile": {"dtype": "int32", "values": 8},
            "ratio": {"dtype": "float32", "values": 0.7},
            "angle": {"dtype": "float32", "values": -0.5},
            "shift_x": {"dtype": "float32", "values": 2.5},
            "shift_y": {"dtype": "float32", "values": 1.5},
        },
    }


def several():
    def regions(name, values, dtype="int32"):
        return {name: {"dtype": dtype, "values": values}}

    two = regions("in_ids", [0, 0])
    yield {
        "op": "multi_paste",
        "inputs": [IMAGE],
        "arguments": {"output_size": [30, 40]},
        "tensors": {
            **two,
            **regions("in_anchors", [[0, 0], [5, 6]]),
            **regions("shapes", [[10, 12], [8, 9]]),
            **regions("out_anchors", [[1, 2], [4, 4]]),
        },
    }
    yield {
        "op": "multi_paste",
        "inputs": [IMAGE],
        "arguments": {"output_size": [60, 70]},
        "tensors": {
            **regions("in_ids", [0]),
            **regions("in_anchors_rel", [[0.13, 0.27]], "float32"),
            **regions("shapes_rel", [[0.31, 0.44]], "float32"),
            **regions("out_anchors_rel", [[0.21, 0.33]], "float32"),
        },
    }
    yield {"op": "multi_paste", "inputs": [IMAGE], "tensors": regions("in_ids", [0])}
    yield {
        "op": "multi_paste",
        "inputs": [IMAGE],
        "arguments": {"output_size": [50, 60]},
        "tensors": {**two, **regions("out_anchors", [[1, 2], [9, 20]])},
    }
    yield {
        "op": "multi_paste",
        "inputs": [IMAGE],
        "arguments": {"output_size": [50, 60], "dtype": "FLOAT"},
        "tensors": regions("in_ids", [0]),
    }
    yield {
        "op": "multi_paste",
        "inputs": [["HWC", "float32", (9, 8, 2)]],
        "arguments": {"output_size": [50, 60], "dtype": "UINT8"},
        "tensors": regions("in_ids", [0]),
    }
    yield {
        "op": "multi_paste",
        "inputs": [["HWC", "int16", (9, 8, 2)]],
        "arguments": {"output_size": [50, 60], "dtype": "INT32"},
        "tensors": regions("in_ids", [0]),
    }
    yield {
        "op": "multi_paste",
        "inputs": [IMAGE, IMAGE],
        "arguments": {"output_size": [50, 60]},
        "tensors": regions("out_anchors", [[1, 2], [9, 20]]),
    }
    yield {
        "op": "multi_paste",
        "inputs": [IMAGE, ["HWC", "uint8", (9, 8, 3)]],
        "arguments": {"output_size": [50, 60]},
        "tensors": {**regions("in_anchors", [[1, 2], [3, 4]]), **regions("out_anchors", [[1, 2], [9, 20]])},
    }


if __name__ == "__main__":
    here = Path(__file__)
    make(here.with_name("erase.npz"), erased())
    make(here.with_name("paste.npz"), pasted())
    make(here.with_name("grid_mask.npz"), masked())
    make(here.with_name("multi_paste.npz"), several())
