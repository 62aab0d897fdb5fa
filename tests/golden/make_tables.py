"""Makes tables.npz with NVIDIA DALI 2.4 (CPU): equalize, lookup_table."""

from pathlib import Path

from one_step import image, make


def cases():
    for layout, shape in (
        ("HWC", (31, 29, 3)), ("HW", (12, 14)), ("CHW", (3, 12, 14)), ("FHW", (2, 9, 8)), ("FHWC", (2, 9, 8, 3)),
        ("FCHW", (2, 3, 9, 8)), ("HWC", (12, 13, 5)),
    ):  # fmt: skip
        for high in (256, 90, 2, 1):
            yield {"op": "equalize", "arguments": {}, "inputs": [image(layout=layout, shape=shape, high=high)]}
    keys = {"keys": [1, 3, 3, 200], "values": [10.4, 20.5, 30.6, -7.5], "default_value": 7.5}
    for dtype, low, high in (("uint8", 0, 256), ("int16", -5, 300), ("int32", -5, 300), ("uint16", 0, 300)):
        for out in ("FLOAT", "UINT8", "INT16", "INT32"):
            given = image(dtype, low=low, high=high)
            yield {"op": "lookup_table", "arguments": {**keys, "dtype": out}, "inputs": [given]}
    yield {"op": "lookup_table", "arguments": {"keys": [65535], "values": [4.0]}, "inputs": [image("uint16")]}
    yield {"op": "lookup_table", "arguments": {}, "inputs": [image()]}


if __name__ == "__main__":
    make(Path(__file__).with_name("tables.npz"), cases())
