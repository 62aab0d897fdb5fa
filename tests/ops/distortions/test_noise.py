"""noise.*: DALI's numbers with its generator (golden/make_noise.py), the distributions, and the CUDA kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.base import Spec
from dali_run.ops.distortions import noise  # noqa: F401  # declares the operators
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType
from tests.kit.long import thinned

from ...kit.dali_cases import apply, batch_of, cases, largest_difference, operator, ours, source
from ...kit.emulated_lane import EmulatedLane

NAMES = ("noise.gaussian", "noise.salt_and_pepper", "noise.shot")


@pytest.mark.parametrize("name", NAMES)
def test_dalis_generator_gives_dalis_numbers(name: str) -> None:
    """Of noise.npz."""
    values = differing = 0
    for case, inputs, wanted in cases("noise"):
        if case["op"] != name:
            continue
        got, rejects = ours(case, inputs)
        assert not rejects, case
        for a, b in zip(got, wanted, strict=True):
            if b.dtype.kind == "f" and name == "noise.gaussian":
                assert largest_difference(a, b) <= 1e-6
            else:
                values, differing = values + a.size, differing + np.count_nonzero(a != b)
    assert values > 5000
    assert differing <= (0 if name == "noise.salt_and_pepper" else 3), differing


@pytest.mark.parametrize("name", NAMES)
def test_cuda_run_on_the_cpu(name: str) -> None:
    lane = EmulatedLane()
    for case, inputs, _ in cases("noise"):
        if case["op"] == name:
            want, _ = ours(case, inputs)
            got, _ = ours(case, inputs, lane)
            for a, b in zip(got, want, strict=True):
                assert np.mean(a != b) <= (0.001 if name == "noise.shot" else 0), case
    assert lane.launched


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_gpu(name: str) -> None:
    from dali_run.ops.gpu.lane import Lane

    images = batch_of([source(k, 0, 256, "uint8", [30 + k, 40, 3]) for k in range(4)], "HWC")
    op = operator(name)
    want, _ = apply(op, images, seed=8)
    with Lane() as lane:
        out, _ = apply(op, lane.to_device(images), seed=8, lane=lane)
        got = lane.to_host(out)
        lane.synchronize()
    for a, b in zip(got, want, strict=True):
        assert np.mean(a != b) <= (0.001 if name == "noise.shot" else 0)


@pytest.mark.parametrize("rng", ["philox", "dali"])
def test_distributions(rng: str) -> None:
    flat = np.full((200, 200, 3), 100, np.float32)
    images = batch_of([flat, flat], "HWC")
    out, _ = apply(operator("noise.gaussian", mean=2.0, stddev=5.0), images, seed=3, rng=rng)
    added = out.sample(0) - 100
    assert abs(added.mean() - 2) < 0.1
    assert abs(added.std() - 5) < 0.1
    assert not np.array_equal(out.sample(0), out.sample(1))
    neighbours = np.corrcoef(added.reshape(-1)[:-1], added.reshape(-1)[1:])[0, 1]
    assert abs(neighbours) < 0.02
    op = operator("noise.salt_and_pepper", prob=0.2, salt_vs_pepper=0.25, salt_val=7, pepper_val=-7)
    out, _ = apply(op, images, seed=3, rng=rng)
    salt, pepper = np.mean(out.sample(0) == 7), np.mean(out.sample(0) == -7)
    assert abs(salt - 0.05) < 0.01
    assert abs(pepper - 0.15) < 0.01
    assert (out.sample(0).min(axis=2) == out.sample(0).max(axis=2)).all()
    out, _ = apply(operator("noise.salt_and_pepper", prob=0.2, per_channel=True), images, seed=3, rng=rng)
    assert (out.sample(0).min(axis=2) != out.sample(0).max(axis=2)).any()
    for factor in (20.0, 2.0):  # means of 5 and 50 events: both ways to draw them
        out, _ = apply(operator("noise.shot", factor=factor), images, seed=3, rng=rng)
        assert abs(out.sample(0).mean() - 100) < 1
        assert abs(out.sample(0).var() - 100 * factor) < 0.03 * 100 * factor
        assert (out.sample(0) % factor == 0).all()


def test_neutral_arguments_change_nothing() -> None:
    image = source(1, 0, 256, "uint8", [9, 8, 3])
    neutral: tuple[tuple[str, dict[str, Any]], ...] = (
        ("noise.gaussian", {"stddev": 0.0}), ("noise.salt_and_pepper", {"prob": 0.0}), ("noise.shot", {"factor": 0.0}),
    )  # fmt: skip
    for name, arguments in neutral:
        for lane in (None, EmulatedLane()):
            out, _ = apply(operator(name, **arguments), batch_of([image], "HWC"), lane=lane)
            np.testing.assert_array_equal(out.sample(0), image)


@pytest.mark.parametrize("name", NAMES)
def test_each_sample_is_as_if_it_were_alone(name: str) -> None:
    images = batch_of([source(k, 0, 256, "uint8", [5 + k, 8, 3]) for k in range(6)], "HWC")
    whole, _ = apply(operator(name), images, seed=4)
    part, _ = apply(operator(name), images.take(slice(2, 4)), seed=4)
    for a, b in zip(part, list(whole)[2:4], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", thinned(["int8", "uint16", "int32", "int64", "float16", "float64"], 4))
def test_every_type(dtype: str) -> None:
    data = source(1, 0, 100, "uint8", [11, 12, 2]).astype(dtype)
    for name in NAMES:
        want, rejects = apply(operator(name), batch_of([data], "HWC"), seed=2)
        assert not rejects
        assert want.dtype == dtype
        got, _ = apply(operator(name), batch_of([data], "HWC"), seed=2, lane=EmulatedLane())
        assert np.mean(got.sample(0) != want.sample(0)) <= (0.02 if name == "noise.shot" else 0)
        np.testing.assert_allclose(got.sample(0).astype(float), want.sample(0).astype(float), rtol=1e-3, atol=1e-3)


def test_values_of_salt_saturate_and_bad_arguments_are_rejected_alone() -> None:
    image = source(1, 0, 256, "uint8", [9, 8, 3])
    op = operator("noise.salt_and_pepper", prob=1.0, salt_vs_pepper=0.5, salt_val=300.0, pepper_val=-5.0)
    out, _ = apply(op, batch_of([image], "HWC"))
    assert set(np.unique(out.sample(0)).tolist()) == {0, 255}
    for name, argument, bad in (
        ("noise.gaussian", "stddev", np.nan), ("noise.salt_and_pepper", "prob", 1.5), ("noise.shot", "factor", -1.0),
    ):  # fmt: skip
        args = {argument: batch_of([np.float32(0.5), np.float32(bad)])}
        _, rejects = apply(operator(name, (argument,)), batch_of([image, image], "HWC"), args=args)
        assert [(r.slot, r.code) for r in rejects] == [(1, "bad_argument")]
    with pytest.raises(SpecError, match="channels"):
        operator("noise.salt_and_pepper").infer(Spec((4, 4), DALIDataType.UINT8, "HW"))
    with pytest.raises(SpecError, match="numbers"):
        operator("noise.shot").infer(Spec((4, 4, 3), DALIDataType.BOOL, "HWC"))
