"""aspect_bucket: the nearest of the listed ratios, by logarithms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dali_run.ops.batch import Batch, Samples
from dali_run.ops.errors import SpecError
from tests.kit.operators import apply, operator

SIZES = [[512, 512], [448, 576], [576, 448], [384, 768]]


def test_the_nearest_ratio_is_chosen() -> None:
    rng = np.random.default_rng(0)
    shapes = [rng.integers(1, 3000, 3) for _ in range(300)]
    (size, number), rejects = apply(
        operator("aspect_bucket", sizes=SIZES), Batch.from_list(shapes, "", Samples.numbered(len(shapes)))
    )
    assert not rejects
    for i, (h, w, _) in enumerate(shapes):
        far = [abs(math.log(h / w) - math.log(bh / bw)) for bh, bw in SIZES]
        best = int(np.argmin(far))
        assert size.sample(i).tolist() == SIZES[best]
        assert number.sample(i).tolist() == [best]


def test_what_is_not_a_shape_is_rejected() -> None:
    given = [np.array(s, np.int64) for s in ([480, 640, 3], [480], [0, 5], [-3, 5])]
    (size, _), rejects = apply(
        operator("aspect_bucket", sizes=SIZES), Batch.from_list(given, "", Samples.numbered(len(given)))
    )
    assert [(r.slot, r.code) for r in rejects] == [(1, "bad_shape"), (2, "bad_shape"), (3, "bad_shape")]
    assert size.sample(0).tolist() == [448, 576]
    for sizes in ([], [[512]], [[0, 5]]):
        with pytest.raises((SpecError, ValueError), match="sizes"):
            operator("aspect_bucket", sizes=sizes)
