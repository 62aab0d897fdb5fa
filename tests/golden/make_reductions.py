"""Makes reductions.npz with NVIDIA DALI 2.4 (CPU): reductions.* over types and axes."""

from pathlib import Path

from several_inputs import make

TYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32")
PLAIN = ("sum", "mean", "mean_square", "rms", "min", "max")


def cases():
    for name in PLAIN:
        op = f"reductions.{name}"
        for dtype in TYPES:
            for axes in ({}, {"axes": [0, 2]}):
                yield {"op": op, "inputs": [["", dtype, (4, 5, 6)]], "arguments": axes}
        for axes in ({"axes": 1}, {"axes": [-1]}, {"axes": [0, 1, 2]}, {"axis_names": "HW"}, {"axis_names": "C"}):
            for keep in (False, True):
                yield {"op": op, "inputs": [["HWC", "uint8", (4, 5, 3)]], "arguments": {**axes, "keep_dims": keep}}
        yield {"op": op, "inputs": [["FHWC", "float32", (2, 4, 5, 3)]], "arguments": {"axes": [0, 2]}}
        yield {"op": op, "inputs": [["", "int16", (7,)]], "arguments": {"axes": [0], "keep_dims": True}}
    for name, dtype in (
        ("sum", "UINT64"),
        ("sum", "FLOAT"),
        ("mean", "FLOAT"),
        ("mean_square", "UINT64"),
        ("rms", "FLOAT"),
    ):
        yield {"op": f"reductions.{name}", "inputs": [["", "uint8", (4, 5)]], "arguments": {"dtype": dtype}}
    for name in ("std_dev", "variance"):
        op = f"reductions.{name}"
        for dtype in TYPES:
            yield {
                "op": op,
                "inputs": [["", dtype, (4, 5, 6)], ["", "float32", (1, 5, 1)]],
                "arguments": {"axes": [0, 2]},
            }
        for ddof in (0, 1, 3):
            for keep in (False, True):
                arguments = {"axes": [1], "ddof": ddof, "keep_dims": keep}
                yield {"op": op, "inputs": [["HW", "float32", (4, 5)], ["", "float32", (4, 1)]], "arguments": arguments}
        yield {"op": op, "inputs": [["HW", "float32", (4, 5)], ["", "float32", (4,)]], "arguments": {"axes": [1]}}
        yield {"op": op, "inputs": [["HW", "float32", (4, 5)], ["", "float32", (1,)]], "arguments": {}}
        yield {"op": op, "inputs": [["HW", "float32", (4, 5)], ["", "float32", ()]], "arguments": {}}
        yield {
            "op": op,
            "inputs": [["HWC", "uint8", (4, 5, 3)], ["", "float32", (3,)]],
            "arguments": {"axis_names": "HW"},
        }


if __name__ == "__main__":
    make(Path(__file__).with_name("reductions.npz"), cases())
