"""The part of `make torture` about good samples that are unlike their neighbours: every kind, writer and place, with
every batch size, number of threads, in parts and by processes. The short form is
`tests/pipelines/job/test_neighbours.py`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from dali_run.pipelines.fleet.run import run
from dali_run.pipelines.job.run import run_job
from dali_run.writers.shards.verify import verify
from tests.kit.jobs.odd_samples import KINDS, WRITERS, N, expected, rejects, write_spec, write_tar
from tests.kit.writers import digest
from tests.torture_isolation import Row

PLACES = (0, 1, 4, 5, 12, N - 1)
LAYOUTS = tuple(product((1, 7, 16, 20, 40), (1, 2)))
"""Batch sizes and threads."""


def rows(work: Path, quick: bool) -> Iterator[Row]:
    """One row for each kind of odd sample."""
    for kind in KINDS:
        place, tried, bad = work / kind.replace(" ", "-"), 0, list[str]()
        place.mkdir()
        for number, (writer, odd) in enumerate(product(WRITERS, PLACES)):
            if quick and number % 5:
                continue
            write_tar(place / "in.tar", KINDS[kind][0], odd)
            outputs = []
            for batch, threads in LAYOUTS[:: 4 if quick else 1]:
                name = f"{writer}-{odd}-{batch}-{threads}"
                run_job(write_spec(place, kind, writer, batch, threads, name))
                outputs.append(name)
            name = f"{writer}-{odd}-processes"
            run(write_spec(place, kind, writer, 16, 1, name), on="processes:2")
            outputs.append(name)
            wanted = expected(kind, writer, odd)
            whole = digest(place / outputs[0])
            for name in outputs:
                tried += 1
                found = [r[0] for r in rejects(place / name)]
                if found != wanted:
                    bad.append(f"{name}: rejects {found}, not {wanted}")
                elif digest(place / name) != whole:
                    bad.append(f"{name}: another output than {outputs[0]}")
                elif not verify(place / name).sound:
                    bad.append(f"{name}: verify finds problems")
        yield Row(f"good samples of another kind: {kind}", tried, bad)
