"""Epochs of DALI's iterators over a file reader: which samples come in which batch. Writes epochs.json.

Run it with a Python that has NVIDIA DALI 2.4: ``python tests/golden/make_epochs.py``.
"""

import itertools
import json
import tempfile
from pathlib import Path

import numpy as np
import nvidia.dali.fn as fn
from nvidia.dali import pipeline_def
from nvidia.dali.plugin.base_iterator import LastBatchPolicy, _DaliBaseIterator

EPOCHS = 4


class Labels(_DaliBaseIterator):
    """Gives the labels of each pipeline as lists."""

    def __next__(self):
        outputs = self._get_outputs()
        labels = [[int(np.array(t).ravel()[0]) for t in one[0]] for one in outputs]
        self._schedule_runs()
        self._advance_and_check_drop_last()
        if not self._reader_name:  # the size alone decides: what is over is cut off the last batch
            over = max(0, self._counter - self._size)
            if self._last_batch_policy is LastBatchPolicy.PARTIAL and over:
                whole, rest = divmod(len(labels) * self.batch_size - over, self.batch_size)
                labels = labels[:whole] + [x[:rest] for x in labels[whole : whole + 1] if rest]
            return labels
        drop, left = self._remove_padded()
        if np.any(drop):
            labels = [x[: int(n)] if d else x for x, d, n in zip(labels, drop, left, strict=True)]
        return labels


def pipeline(files, batch_size, shard, shards, **arguments):
    @pipeline_def(batch_size=batch_size, num_threads=1, device_id=None)
    def labels():
        return fn.readers.file(files=files, name="R", num_shards=shards, shard_id=shard, **arguments)[1]

    return labels()


def main():
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for i in range(11):
            files.append(f"{folder}/{i:03d}")
            Path(files[-1]).write_bytes(bytes([i]))
        data = [(7, 2, 1), (6, 2, 1), (5, 4, 1), (10, 2, 3), (10, 3, 3), (10, 4, 3), (11, 2, 2), (8, 2, 2)]
        for (n, batch, shards), policy, pad, stick in itertools.product(
            data, LastBatchPolicy, (False, True), (False, True)
        ):
            own = [
                pipeline(files[:n], batch, s, shards, pad_last_batch=pad, stick_to_shard=stick) for s in range(shards)
            ]
            it = Labels(own, reader_name="R", last_batch_policy=policy, auto_reset=True)
            sizes, lengths, epochs = [], [], []
            for _ in range(EPOCHS):
                sizes.append(it.size)
                lengths.append(len(it))
                epochs.append(list(it))
            rows.append({"n": n, "batch": batch, "shards": shards, "policy": policy.name, "pad": pad, "stick": stick,
                         "sizes": sizes, "lengths": lengths, "epochs": epochs})  # fmt: skip
        data = [(6, 2, 5, 1), (6, 2, 6, 1), (6, 4, 5, 1), (6, 4, 6, 1), (10, 3, 7, 2), (10, 3, 9, 2), (10, 3, 10, 2)]
        for (n, batch, size, shards), policy, padded in itertools.product(data, LastBatchPolicy, (False, True)):
            it = Labels([pipeline(files[:n], batch, s, shards) for s in range(shards)], size=size,
                        last_batch_policy=policy, auto_reset=True, last_batch_padded=padded)  # fmt: skip
            rows.append({"n": n, "batch": batch, "size": size, "shards": shards, "policy": policy.name,
                         "padded": padded, "epochs": [list(it) for _ in range(EPOCHS)]})  # fmt: skip
    Path(__file__).with_name("epochs.json").write_text(json.dumps(rows, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
