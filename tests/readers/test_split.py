"""split: the part of a record follows from its key, seed and shares alone, in every order and every kind of reader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Origin
from dali_run.ops.errors import JobError, SpecError
from dali_run.readers.file import File
from dali_run.readers.order import Order
from dali_run.readers.selection.split import Split


class Named:
    """Records with the given keys."""

    def __init__(self, keys: list[str]) -> None:
        self.all = keys

    def origin(self, index: int) -> Origin:
        return Origin(self.all[index], "")


KEYS = [f"patient{i // 7:03d}/scan/{i:05d}.png" for i in range(5000)]
SHARES = {"train": 0.7, "val": 0.2, "test": 0.1}


def parts(keys: list[str], **options: Any) -> dict[str, set[str]]:
    split = Split.of({**SHARES, **options})
    chosen = {name: split.part_of(name, Named(keys), len(keys)) for name in SHARES}
    assert (np.stack(list(chosen.values())).sum(axis=0) == 1).all(), "each record is in one part"
    return {name: {keys[i] for i in np.flatnonzero(mask)} for name, mask in chosen.items()}


def test_shares_are_met_and_neither_order_nor_additions_move_a_record() -> None:
    found = parts(KEYS, seed=7)
    for name, share in SHARES.items():
        assert abs(len(found[name]) - share * 5000) < 4 * (5000 * share * (1 - share)) ** 0.5
    shuffled = np.random.default_rng(0).permutation(KEYS).tolist()
    assert parts(shuffled, seed=7) == found
    some = parts(KEYS[1::3], seed=7)
    assert all(some[name] <= found[name] for name in SHARES)
    assert parts(KEYS, seed=8) != found
    assert parts(KEYS) == parts(KEYS, seed=0, by="key")


@pytest.mark.parametrize("group", [None, r"^(patient\d+)/", r"patient\d+"])
def test_groups_stay_together(group: str | None) -> None:
    options: dict[str, Any] = {"by": "group", "seed": 3} | ({} if group is None else {"group": group})
    found = parts(KEYS, **options)
    patients = [{k.partition("/")[0] for k in keys} for keys in found.values()]
    assert sum(map(len, patients)) == len(set.union(*patients))


def test_a_key_without_a_group_is_an_error_that_names_it() -> None:
    with pytest.raises(JobError, match=r"matches nothing in the key 'other\.png'"):
        parts(["patient1/x.png", "other.png"], by="group", group=r"patient(\d+)")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train": 0.9}, "shares add up to 1"),
        ({"train": 0.9, "val": 0.2}, r"together 1\.1"),
        ({"train": 0.9, "val": "10%"}, "share of val must be between 0 and 1"),
        ({"train": 1.0, "val": 0.0}, "share of train must be between 0 and 1"),
        ({"a/b": 0.5, "c": 0.5}, "cannot name a part"),
        ({**SHARES, "by": "folder"}, "by must be key or group"),
        ({**SHARES, "seed": -1}, "seed must be an integer"),
        ({**SHARES, "group": "x"}, "group means nothing for by: key"),
        ({**SHARES, "by": "group", "group": "("}, "group must be a regular expression"),
    ],
)
def test_wrong_declarations(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Split.of(given)


@pytest.mark.parametrize("shuffle", ["none", "window", "full", "epoch"])
@pytest.mark.parametrize("groups", [False, True])
def test_orders_hold_the_chosen_records_and_no_others(shuffle: Any, groups: bool) -> None:
    subset = np.flatnonzero(np.random.default_rng(1).random(60) < 0.4)
    counts = np.diff(np.searchsorted(subset, [0, 25, 40, 60])) if groups else None
    order = Order(size=len(subset), shuffle=shuffle, seed=5, fill=8, groups=counts, subset=subset, batch_size=4)
    for epoch in range(2):
        assert sorted(order.pass_order(epoch)) == subset.tolist()
    assert sorted(order.job().index) == subset.tolist()
    assert (order.pass_order(0).tolist() == subset.tolist()) == (shuffle == "none")
    source: Any = Named([])
    assert sorted(order.job().samples(0, 100, source).index) == subset.tolist()
    assert set(order.samples(3, 2 * len(subset), source).index) == set(subset.tolist())


def test_a_reader_refuses_what_contradicts_its_split() -> None:
    def reader(**arguments: Any) -> File:
        made = File(files=("a", "b"), **arguments)
        made.check()
        return made

    for arguments, message in (
        ({"split": SHARES, "use": "vall"}, "no part 'vall'; did you mean val"),
        ({"use": "val"}, "use names a part of `split`"),
        ({"split": SHARES, "use": "val", "limit": 3}, "skip and limit choose records by their place"),
    ):
        with pytest.raises(SpecError, match=message):
            reader(**arguments)
