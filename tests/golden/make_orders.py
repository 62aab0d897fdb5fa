"""Makes orders.npz: the orders in which NVIDIA DALI's readers give samples. Run it with a Python that has DALI 2.4."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali.fn as fn
from nvidia.dali import pipeline_def

FILES: list[tuple[int, int, int, dict[str, Any]]] = [  # records, samples taken, batch, arguments
    (5, 13, 3, {}),
    (1, 5, 2, {"random_shuffle": True, "seed": 3}),
    (2, 8, 1, {"random_shuffle": True, "seed": 3}),
    (10, 40, 1, {"random_shuffle": True, "seed": 1}),
    (10, 40, 1, {"random_shuffle": True, "initial_fill": 4, "seed": 1}),
    (37, 111, 1, {"random_shuffle": True, "initial_fill": 16, "seed": 99}),
    (300, 900, 8, {"random_shuffle": True, "initial_fill": 64, "seed": 12345}),
    (70000, 140000, 1000, {"random_shuffle": True, "seed": 5}),
    (66001, 140000, 1000, {"random_shuffle": True, "initial_fill": 300, "seed": 8589934597}),
    (10, 36, 1, {"num_shards": 3, "shard_id": 1}),
    (10, 30, 1, {"num_shards": 3, "shard_id": 1, "stick_to_shard": True}),
    (10, 40, 1, {"num_shards": 3, "shard_id": 2, "random_shuffle": True, "initial_fill": 4, "seed": 5}),
    (11, 44, 4, {"num_shards": 3, "shard_id": 0, "random_shuffle": True, "stick_to_shard": True, "seed": 6}),
    (10, 36, 3, {"num_shards": 3, "shard_id": 0, "pad_last_batch": True}),
    (10, 36, 3, {"num_shards": 3, "shard_id": 2, "pad_last_batch": True, "random_shuffle": True, "initial_fill": 4}),
    (10, 36, 3, {"num_shards": 3, "shard_id": 0, "pad_last_batch": True, "stick_to_shard": True}),
    (7, 36, 2, {"num_shards": 3, "shard_id": 0, "pad_last_batch": True}),
    (10, 48, 4, {"pad_last_batch": True}),
    (10, 40, 1, {"shuffle_after_epoch": True}),
    (37, 111, 1, {"shuffle_after_epoch": True}),
    (37, 111, 1, {"shuffle_after_epoch": True, "shuffle_after_epoch_seed": 5}),
    (10, 36, 2, {"num_shards": 3, "shard_id": 0, "pad_last_batch": True, "shuffle_after_epoch": True}),
    (10, 24, 1, {"num_shards": 3, "shard_id": 1, "shuffle_after_epoch": True}),
    (70000, 140000, 1000, {"shuffle_after_epoch": True}),
]
TARS: list[tuple[list[int], int, int, dict[str, Any]]] = [  # records of each file, samples taken, batch, arguments
    ([4, 4, 4, 3, 5], 40, 1, {"random_shuffle": True, "initial_fill": 1, "seed": 3}),
    ([4, 4, 4, 3, 5], 60, 1, {"random_shuffle": True, "initial_fill": 4, "seed": 3}),
    ([4, 4, 4, 3, 5], 60, 1, {"shuffle_after_epoch": True}),
    ([4, 4, 4, 3, 5], 60, 1, {"shuffle_after_epoch": True, "shuffle_after_epoch_seed": 7}),
    ([4, 4, 4, 3, 5], 60, 1, {"shuffle_after_epoch": True, "num_shards": 2, "shard_id": 1}),
    ([4, 4, 4, 3, 5], 60, 3, {"pad_last_batch": True, "num_shards": 3, "shard_id": 1}),
]


def taken(reader: Any, samples: int, batch: int) -> list[int]:
    @pipeline_def(batch_size=batch, num_threads=1, device_id=None, seed=7)
    def pipeline() -> Any:
        return reader()

    pipe = pipeline()
    pipe.build()
    out: list[int] = []
    while len(out) < samples:
        out += np.asarray(pipe.run()[0].as_array()).reshape(-1).tolist()
    return out[:samples]


def main() -> None:
    work = Path(tempfile.mkdtemp())
    one = work / "one.bin"
    one.write_bytes(b"x")
    golden: dict[str, Any] = {}
    for k, (size, samples, batch, kwargs) in enumerate(FILES):
        given = {"seed": 1, **kwargs}

        def files(n: int = size, kw: dict[str, Any] = given) -> Any:
            return fn.readers.file(files=[str(one)] * n, labels=list(range(n)), **kw)[1]

        order = np.array(taken(files, samples, batch), np.int32)
        if size > 1000:  # both ends tell as much as the whole: every exchange follows from the draws before it
            order = np.concatenate([order[:500], order[-500:]])
        golden[f"file{k}"] = order
    for k, (counts, samples, batch, kwargs) in enumerate(TARS):
        paths, record = [], 0
        for j, count in enumerate(counts):
            path = work / f"{k}-{j}.tar"
            with tarfile.open(path, "w") as tar:
                for _ in range(count):
                    info = tarfile.TarInfo(f"{record:04d}.cls")
                    info.size = 1
                    tar.addfile(info, io.BytesIO(bytes([record])))
                    record += 1
            paths.append(str(path))
        given = {"seed": 1, **kwargs}

        def tars(p: list[str] = paths, kw: dict[str, Any] = given) -> Any:
            return fn.readers.webdataset(paths=p, ext=["cls"], **kw)

        golden[f"tar{k}"] = np.array(taken(tars, samples, batch), np.int32)
    golden["cases"] = np.array(json.dumps({"file": FILES, "tar": TARS}))
    np.savez_compressed(Path(__file__).with_name("orders.npz"), **golden)


if __name__ == "__main__":
    main()
