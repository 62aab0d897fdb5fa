"""Makes sequences.npz with NVIDIA DALI 2.4 (CPU): sequence_rearrange, element_extract and per_frame."""

from pathlib import Path

from several_inputs import make

SEQUENCE = ["FHW", "uint8", (6, 2, 3)]


def cases():
    for order in ([0, 3, 3], [5, 4, 3, 2, 1, 0], 2):
        yield {"op": "sequence_rearrange", "inputs": [SEQUENCE], "arguments": {"new_order": order}}
    yield {"op": "sequence_rearrange", "inputs": [["", "float32", (4, 3)]], "arguments": {"new_order": [1, 1]}}
    yield {
        "op": "sequence_rearrange",
        "inputs": [SEQUENCE],
        "tensors": {"new_order": {"dtype": "int32", "values": [5, 1]}},
    }
    for chosen in ([1, 4], [3], 2, [5, 5, 0]):
        yield {"op": "element_extract", "inputs": [SEQUENCE], "arguments": {"element_map": chosen}}
    yield {"op": "element_extract", "inputs": [["", "int16", (4, 3)]], "arguments": {"element_map": [1, 2]}}
    yield {"op": "per_frame", "inputs": [["", "float32", (4, 3)]]}
    yield {"op": "per_frame", "inputs": [["FHW", "float32", (4, 3, 2)]]}
    yield {"op": "per_frame", "inputs": [["WH", "float32", (4, 3)]], "arguments": {"replace": True}}


if __name__ == "__main__":
    make(Path(__file__).with_name("sequences.npz"), cases())
