"""Makes noise.npz with NVIDIA DALI 2.4 (CPU): noise.gaussian, noise.salt_and_pepper, noise.shot, with seeds."""

from pathlib import Path

from one_step import image, make

TWICE = {"batch": 2, "iterations": 2}


def cases():
    for dtype in ("uint8", "int16", "float32"):
        scale = 1.0 if dtype == "float32" else 20.0
        yield {"op": "noise.gaussian", "arguments": {"mean": 3.0, "stddev": scale, "seed": 77},
               "inputs": [image(dtype)], **TWICE}  # fmt: skip
        for per_channel in (False, True):
            arguments = {"prob": 0.4, "salt_vs_pepper": 0.3, "per_channel": per_channel, "seed": 77}
            yield {"op": "noise.salt_and_pepper", "arguments": arguments, "inputs": [image(dtype)], **TWICE}
        factor = 0.05 if dtype == "float32" else 12.0
        yield {"op": "noise.shot", "arguments": {"factor": factor, "seed": 77}, "inputs": [image(dtype)], **TWICE}
    yield {"op": "noise.shot", "arguments": {"factor": 1.5, "seed": 5}, "inputs": [image(shape=(19, 21, 3))]}
    yield {"op": "noise.shot", "arguments": {"factor": 0.1, "seed": 6}, "inputs": [image(shape=(19, 21, 3))]}
    chw = image(shape=(3, 9, 11), layout="CHW")
    arguments = {"prob": 0.5, "salt_val": 200.0, "pepper_val": 7.0, "seed": 3}
    yield {"op": "noise.salt_and_pepper", "arguments": arguments, "inputs": [chw]}
    each = {"values": 9.0, "dtype": "float32"}
    yield {"op": "noise.gaussian", "arguments": {"seed": 3}, "inputs": [chw], "per_sample": {"stddev": each}}


if __name__ == "__main__":
    make(Path(__file__).with_name("noise.npz"), cases())
