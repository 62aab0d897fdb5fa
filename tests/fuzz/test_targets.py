"""The fuzzed parsers with a few hundred fixed mutations each; `make fuzz` goes on from there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dali_run.ops.errors import JobError
from dali_run.writers.shards.journal import read_journal

from . import pictures
from .loops import LOOPS
from .targets import TARGETS, journal, mutated

MUTATIONS = 100


@pytest.mark.parametrize("name", list(TARGETS))
def test_nothing_escapes(name: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "fuzz-cache"))
    draw = random.Random(1)
    target = TARGETS[name]
    if target.needs:
        pytest.importorskip(target.needs)
    for seed in target.seeds():
        target.run(seed)
        for _ in range(MUTATIONS):
            target.run(mutated(seed, draw))


@pytest.mark.parametrize("name", list(LOOPS))
def test_loops_stay_inside(name: str) -> None:
    draw, target = random.Random(1), LOOPS[name]
    seeds = target.seeds()
    for seed in seeds:
        target.run(seed)
    for _ in range(10 * MUTATIONS):
        target.run(target.damage(draw.choice(seeds), draw))


@pytest.mark.parametrize("name", list(pictures.KINDS))
def test_decoders_take_what_is_damaged(name: str) -> None:
    """Of whole files all, and of damaged ones some: where none were left, nothing would be compared."""
    seeds, damage = pictures.KINDS[name]
    draw = random.Random(2)
    assert all(pictures.run(seed) for seed in seeds())
    taken = sum(pictures.run(damage(draw.choice(seeds()), draw)) for _ in range(3 * MUTATIONS))
    assert MUTATIONS // 5 < taken < 3 * MUTATIONS


FOUND = [
    ("settings", b"a: &x 1\n*x : 2\n"),
    ("settings", b"ie: {zzz,!!! l, l< l<l,i, l, i,l, l,&l, i, &l, i,*l, i}"),
    ("image_header", b"\xff\xd8\xff"),
]
"""Findings of fuzzing, so that they stay found."""


def test_a_journal_with_a_line_twice_is_refused(tmp_path: Path) -> None:
    first, second, last = journal().splitlines(keepends=True)
    assert read_journal(save(tmp_path, first + second + last)) is not None
    for lines in (
        first + first + second,
        first + second + second + last,
        first + last + second,
        first + second + first,
    ):
        with pytest.raises(JobError, match="out of place"):
            read_journal(save(tmp_path, lines + b"torn"))


def save(folder: Path, data: bytes) -> Path:
    (folder / "journal.jsonl").write_bytes(data)
    return folder / "journal.jsonl"


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_what_was_found_once(name: str, data: bytes) -> None:
    TARGETS[name].run(data)
