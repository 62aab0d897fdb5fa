"""Orders: DALI's to the bit (golden orders), and the promises of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import NoOrigins
from dali_run.ops.errors import JobError, SpecError
from dali_run.ops.streams import seed_sequence
from dali_run.readers.base import Reader
from dali_run.readers.order import MT19937_64, Order, std_shuffle

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "orders.npz")
CASES = json.loads(str(GOLDEN["cases"]))


def taken(order: Order, samples: int, batch: int) -> np.ndarray[Any, Any]:
    """The samples in the order of an engine that asks for one batch after the other."""
    batches = [order.samples(at, min(batch, samples - at), NoOrigins()).index for at in range(0, samples, batch)]
    return np.concatenate(batches)


def as_dali(order: Any) -> Any:
    return np.concatenate([order[:500], order[-500:]])


@pytest.mark.parametrize("case", range(len(CASES["file"])))
def test_readers_of_files_equal_dali(case: int) -> None:
    size, samples, batch, kwargs = CASES["file"][case]
    seed = kwargs.pop("seed", 1)

    class Lists(Reader, abstract=True):
        shuffles_list = True

    order = Lists(**kwargs).order(size, seed, batch)
    got = taken(order, samples, batch)
    np.testing.assert_array_equal(as_dali(got) if size > 1000 else got, GOLDEN[f"file{case}"])


@pytest.mark.parametrize("case", range(len(CASES["tar"])))
def test_readers_of_containers_equal_dali(case: int) -> None:
    counts, samples, batch, kwargs = CASES["tar"][case]
    seed = kwargs.pop("seed", 1)

    class Containers(Reader, abstract=True):
        pass

    order = Containers(**kwargs).order(sum(counts), seed, batch, np.array(counts, np.int64))
    np.testing.assert_array_equal(taken(order, samples, batch), GOLDEN[f"tar{case}"])


def test_mt19937_64_published_value() -> None:
    # ISO C++ [rand.predef]: the 10000th word of a default-constructed mt19937_64
    assert int(MT19937_64(5489).peek(10000)[9999]) == 9981545732273789042


SETTINGS: list[dict[str, Any]] = [
    {},
    {"shuffle": "window", "fill": 7, "shuffled_list": True},
    {"shuffle": "full"},
    {"shuffle": "epoch"},
    {"shuffle": "epoch", "groups": np.array([10, 20, 0, 80, 17, 26], np.int64)},
]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("shards", [1, 3, 60])
def test_a_job_takes_every_record_once_and_joins(setting: dict[str, Any], shards: int) -> None:
    whole = Order(53, seed=4, first=100, **setting).job().index
    assert sorted(whole) == list(range(100, 153))
    parts, positions = [], []
    for k in range(shards):
        job = Order(53, seed=4, first=100, num_shards=shards, shard_id=k, pad_last_batch=True, **setting).job()
        assert job.positions == range(53 * k // shards, 53 * (k + 1) // shards)
        samples = job.samples(job.positions.start, len(job) + 9, NoOrigins())
        parts.append(samples.index)
        positions.append(samples.position)
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(np.concatenate(positions), np.arange(53))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("stick", [False, True])
@pytest.mark.parametrize("pad", [False, True])
def test_any_position_is_found_again(setting: dict[str, Any], stick: bool, pad: bool) -> None:
    """Resuming anywhere, in any order, gives the same samples; shards of an epoch are disjoint and complete."""
    kwargs = dict(seed=4, num_shards=3, stick_to_shard=stick, pad_last_batch=pad, batch_size=4, **setting)
    orders = [Order(53, shard_id=k, **kwargs) for k in range(3)]
    long = orders[1].samples(0, 300, NoOrigins())
    for start in (299, 250, 3, 120, 60, 17, 0):
        for order in (orders[1], Order(53, shard_id=1, **kwargs)):
            part = order.samples(start, 1, NoOrigins())
            assert (part.index[0], part.epoch[0], part.position[0]) == (long.index[start], long.epoch[start], start)
    for epoch in (0, 1, 2, 5):
        assert sorted(np.concatenate([o.pass_order(epoch) for o in orders])) == list(range(53))
        assert [o.shard_size(epoch) for o in orders] == (
            [20] * 3 if pad else [len(o.pass_order(epoch)) for o in orders]
        )


def test_full_shuffle_is_new_every_epoch_and_keeps_a_sticky_shard() -> None:
    order = Order(1000, shuffle="full", seed=1)
    assert not np.array_equal(order.pass_order(0), order.pass_order(1))
    assert np.array_equal(order.pass_order(0), Order(1000, shuffle="full", seed=1).pass_order(0))
    assert not np.array_equal(order.pass_order(0), Order(1000, shuffle="full", seed=2).pass_order(0))
    # far from stored order: the mean distance of a uniform permutation is n / 3
    assert abs(np.abs(order.pass_order(0) - np.arange(1000)).mean() - 333) < 30
    sticky = Order(1000, shuffle="full", seed=1, num_shards=4, shard_id=2, stick_to_shard=True)
    assert sorted(sticky.pass_order(7)) == list(range(500, 750))


def test_long_lists_take_the_compiled_way_to_the_same_result() -> None:
    n = 60_000
    shuffled = std_shuffle(np.arange(n, dtype=np.int64), MT19937_64(3))
    assert sorted(shuffled) == list(range(n))
    order = list(range(n))
    words = iter(MT19937_64(3).peek(40_000).tolist())
    order[0], order[1] = (order[1], order[0]) if (next(words) * 2 >> 64) == 0 else (order[0], order[1])
    for i in range(2, n, 2):  # libstdc++: two places from one draw; a rejection is a matter of 1e-10 here
        x = next(words) * ((i + 1) * (i + 2)) >> 64
        for place, j in ((i, x // (i + 2)), (i + 1, x % (i + 2))):
            order[place], order[j] = order[j], order[place]
    assert shuffled.tolist() == order


@pytest.mark.parametrize(("n", "fill"), [(5, 1), (100, 7), (100, 500), (200_000, 200_000)])
def test_the_window_shuffle_draws_as_the_standard_library(n: int, fill: int) -> None:
    """minstd_rand0 and std::uniform_int_distribution, one step at a time; several passes, asked for in any order."""
    state, expected = int(seed_sequence(9, 4)[3]) % 2147483647, []
    drawn = 0
    for _ in range(3):
        order = list(range(n))
        for k in range(n):
            bound = min(fill, n - k)
            while True:
                state, drawn = state * 16807 % 2147483647, drawn + 1
                if state - 1 < 2147483645 // bound * bound:
                    break
            j = k + (state - 1) // (2147483645 // bound)
            order[k], order[j] = order[j], order[k]
        expected.append(order)
    assert drawn > 3 * n or n < 200_000  # some were drawn again
    for passes in ((0, 1, 2), (2, 0, 1), (1, 2, 1)):
        found = Order(n, shuffle="window", seed=9, fill=fill)
        for k in passes:
            assert found.pass_order(k).tolist() == expected[k]


def test_sizes_and_errors() -> None:
    order = Order(10, num_shards=3, pad_last_batch=True, batch_size=3)
    assert (order.epoch_size, order.epoch_size_padded(), order.epoch_size_padded(3)) == (10, 12, 18)
    with pytest.raises(SpecError, match="num_shards is 3, but there are only 2 records"):
        Order(2, num_shards=3).samples(0, 1, NoOrigins())
    with pytest.raises(JobError, match="no records"):
        Order(0).samples(0, 1, NoOrigins())
    assert len(Order(0).job()) == 0


def test_arguments_of_a_reader() -> None:
    class Plain(Reader, abstract=True):
        pass

    order = Plain(skip=5, limit=3).order(100)
    assert order.samples(0, 4, NoOrigins()).index.tolist() == [5, 6, 7, 5]
    assert Plain(skip=5).order(3).size == 0
    assert Plain(shuffle="full").order(9, 3).shuffle == "full"
    wrong: list[dict[str, Any]] = [
        {"shard_id": 2, "num_shards": 2},
        {"shuffle": "full", "random_shuffle": True},
        {"shuffle_after_epoch": True, "random_shuffle": True},
        {"shuffle_after_epoch": True, "stick_to_shard": True},
    ]
    for arguments in wrong:
        with pytest.raises(SpecError):
            Plain(**arguments).check()
