"""Environments cut by slots."""

from __future__ import annotations

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.pipelines.engine.nodes.envs import cut
from dali_run.pipelines.graph.nodes import Edge


@pytest.mark.parametrize("gone", [[], [0], [9], [4], [0, 9], [3, 4, 5], list(range(1, 10)), list(range(10))])
@pytest.mark.parametrize("first", [0, 20])
def test_a_part_holds_the_samples_between_its_slots(first: int, gone: list[int]) -> None:
    everyone = Samples.numbered(10)
    everyone = Samples(everyone.slot + np.int32(first), everyone.position, everyone.epoch, everyone.index)
    kept = everyone.take(np.setdiff1d(np.arange(10), gone))
    env = {
        Edge(0): Batch.from_dense(np.arange(10) * 10, "", everyone),
        Edge(1): Batch.from_dense(kept.index * 100, "", kept),
    }
    for low in range(first - 2, first + 13):
        for high in range(low, first + 13):
            part = cut(env, low, high)
            for edge, samples, scale in ((Edge(0), everyone, 10), (Edge(1), kept, 100)):
                inside = [i for s, i in zip(samples.slot, samples.index, strict=True) if low <= s < high]
                assert part[edge].samples.index.tolist() == inside
                assert [int(v) for v in part[edge]] == [scale * i for i in inside]
