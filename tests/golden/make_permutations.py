"""Makes permutations.npz with NVIDIA DALI 2.4 (CPU): batch_permutation, several iterations of each setting."""

import json
from pathlib import Path

import numpy as np
import nvidia.dali.fn as fn
from nvidia.dali import pipeline_def

SETTINGS = [
    {"batch": n, "seed": seed, "allow_repetitions": repeated, "no_fixed_points": moved}
    for n in (1, 2, 3, 7, 8, 33, 256)
    for seed in (11, 12345)
    for repeated in (False, True)
    for moved in (False, True)
]
ITERATIONS = 3


def run(batch, seed, **arguments):
    """[ITERATIONS, batch] of what DALI draws."""

    @pipeline_def(batch_size=batch, num_threads=1, device_id=None, seed=1)
    def pipe():
        return fn.batch_permutation(seed=seed, **arguments)

    p = pipe()
    p.build()
    return np.array(
        [[int(np.array(out.at(i))) for i in range(batch)] for out in (p.run()[0] for _ in range(ITERATIONS))]
    )


if __name__ == "__main__":
    found = [run(**s).astype(np.int32) for s in SETTINGS]
    flat = np.concatenate([f.reshape(-1) for f in found])
    np.savez_compressed(Path(__file__).with_name("permutations.npz"), settings=json.dumps(SETTINGS), values=flat)
