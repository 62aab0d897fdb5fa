"""Find out how the inputs of a job have changed since its output was written, and which work is left to do. Called by
`job.run` and `job.retry`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...ops.errors import JobError
from ...ops.storage.inventory import Changes, Inputs, InventoryEntries, compare
from ...writers.bytes import sidecar
from ...writers.shards.journal import differences, read_journal
from ...writers.shards.manifest import Addition, OutputFiles, addition_files_of, output_files_of
from ...writers.shards.retries import check_finished
from ..engine.inputs import Sources
from .ordered_inputs import Lineup


@dataclass(frozen=True, slots=True)
class AdditionPlan:
    """A run that a job still has to do. If ``addition`` is None, it is the run over the job's first inputs, otherwise
    over inputs that were added later. Created by `find_growth`."""

    number: int
    """Number of the run in the `Lineup` (order of all records): 0 for the first inputs, then one per addition."""
    addition: Addition | None
    inputs: Inputs
    """The inputs (files with size and time) of the run. The journal records ``inputs.identity`` for them."""

    def listing(self) -> Inputs:
        """Return the inputs, which are stored with the journal of the output."""
        return self.inputs


@dataclass(frozen=True, slots=True)
class OutputGrowth:
    """Work left to do because the inputs of a finished job have grown: the order of old and new records, and the
    remaining runs. Created by `find_growth`."""

    lineup: Lineup
    todo: tuple[AdditionPlan, ...]


def recorded_inputs(root: Path) -> list[tuple[OutputFiles, Inputs]]:
    """Return the inputs that were recorded for an output: those of the first run, then those of each later addition.
    Empty if no inputs were recorded. Raises JobError if the records cannot be read."""
    files_of_output = output_files_of(root)[:1]
    if not files_of_output or not files_of_output[0].inputs.exists():
        return []
    recorded = []
    for files in [
        files_of_output[0],
        *(s for s in addition_files_of(root) if s.addition is not None and s.addition.kind == "append"),
    ]:
        try:
            recorded.append((files, Inputs.decode(sidecar.read(files.inputs))))
        except (OSError, ValueError) as e:
            raise JobError(f"{files.inputs}: {e}; restore it, or start again with --fresh") from None
    return recorded


def lineup_of(root: Path, sources: Sources) -> Lineup:
    """Return the data sets in the order in which the output in ``root`` has their records, to retry rejected samples.
    Files may have been edited since then. Raises JobError if inputs were added or removed."""
    stages = recorded_inputs(root)
    now = sources.inputs()
    if not stages:
        return Lineup(sources, [{name: np.arange(len(p)) for name, p in now.readers.items()}])
    changes = _changes([i for _, i in stages], now)
    for name, changed in changes.items():
        for piece, what in changed.edited:
            if "records" in what.split(", "):
                raise JobError(
                    f"{os.fsdecode(piece)} has another number of records than when the job ran (one that could not be "
                    "read at all counted as one), so its samples are not those that were rejected. Convert it "
                    "alone into an output of its own, or start again with --fresh"
                )
        if changed.removed or len(changed.added):
            said = [s for s in changed.lines(now.readers[name]) if "edited:" not in s]
            raise JobError(
                f"the inputs are not those of the job: {'; '.join(said)}. Repair files where they are, without adding "
                "or removing any (run --append adds new ones)"
            )
    return Lineup(sources, _places([i for _, i in stages], changes))


def find_growth(
    root: Path, sources: Sources, identity: Mapping[str, Any], write: Mapping[str, Any], *, append: bool,
    part: tuple[int, int] | None,
) -> OutputGrowth | None:  # fmt: skip
    """Compare the present inputs with those of the output in ``root``. Return the work left to do if they have grown.

    Return None if they are the same, or if the earlier ones are unknown. Raises JobError with the differences if
    inputs were edited or removed, or if some were added without ``append``."""
    files_of_output = output_files_of(root)
    base = read_journal(files_of_output[0].journal) if files_of_output else None
    if base is None:
        return None
    before = base.header["identity"].get("inputs")
    appended = any(s.addition is not None and s.addition.kind == "append" for s in addition_files_of(root))
    stages = recorded_inputs(root) if appended or before != identity["inputs"] else []
    if not stages:
        return None
    now = sources.inputs()
    if stages[0][1].readers.keys() != now.readers.keys():
        return None
    changes = _changes([i for _, i in stages], now)
    grown = any(len(c.added) for c in changes.values())
    other_job = differences(
        {"identity": base.header["identity"], "write": base.header["write"]},
        {"identity": {**identity, "inputs": before}, "write": dict(write)},
    )
    _check_changes(root, changes, now, other_job, append)
    places = _places([i for _, i in stages], changes)
    todo = list(_unfinished(root, stages, now))
    if (todo or grown) and (
        part is not None or (files_of_output[0].part is not None and todo and todo[0].addition is None)
    ):
        raise JobError(f"{root}: inputs are added to a finished output, by one job: finish all parts with the inputs "
                       "that they began with, then run --append without --num-shards")  # fmt: skip
    if grown:
        places.append({name: c.added for name, c in changes.items()})
    lineup = Lineup(sources, places)
    for one in todo:
        said = range(*base.header["range"]) if one.addition is None else one.addition.positions
        if said != lineup.positions(one.number):
            raise JobError(f"{root}: the job was started with --limit or other numbers of records; inputs cannot be "
                           "added to it")  # fmt: skip
    if grown:
        if base.header["whole"] is None and base.header["range"] != [0, lineup.ends[0]]:
            raise JobError(f"{root} was written with --limit: inputs cannot be added to it")
        added = Inputs({name: now.readers[name].take(c.added) for name, c in changes.items()})
        todo.append(_appended(root, lineup, added))
    return OutputGrowth(lineup, tuple(todo))


def _check_changes(root: Path, changes: Mapping[str, Changes], now: Inputs, other_job: list[str], append: bool) -> None:
    """Raise JobError if inputs were edited or removed, if the job itself differs, or if inputs were added without
    ``append``."""
    grown = any(len(c.added) for c in changes.values())
    another = bool(other_job) or any(c.removed or c.edited for c in changes.values())
    if another or (grown and not append):
        lines = [f"inputs of {name}: {said}" for name, c in changes.items() for said in c.lines(now.readers[name])]
        hint = "" if another else ", add the new inputs to it with --append"
        raise JobError(
            f"{root} holds the output of another job; this one differs in\n  "
            + "\n  ".join([*other_job, *lines])
            + f"\nChoose another path{hint}, or start again with --fresh (removes the earlier output)"
        )


def _appended(root: Path, lineup: Lineup, added: Inputs) -> AdditionPlan:
    """Return the plan of the run for the ``added`` inputs, which come last in ``lineup``."""
    last, number = len(lineup.ends) - 1, len(addition_files_of(root)) + 1
    named = Inputs(added.readers, hashlib.sha256(added.encode()).hexdigest())
    return AdditionPlan(last, Addition(number, "append", lineup.positions(last)), named)


def _changes(stages: list[Inputs], now: Inputs) -> dict[str, Changes]:
    return {name: compare(_joined([k.readers[name] for k in stages]), pieces) for name, pieces in now.readers.items()}


def _joined(parts: list[InventoryEntries]) -> InventoryEntries:
    first = parts[0]
    state = {k: np.concatenate([p.state[k] for p in parts]) for k in first.state}
    blob = b"\0".join(p.blob for p in parts if len(p))
    return InventoryEntries(blob, state, np.concatenate([p.records for p in parts]), first.keys)


def _places(stages: list[Inputs], changes: Mapping[str, Changes]) -> list[dict[str, Any]]:
    """Return the indices of each run's files in the present list of files, by run and reader."""
    result: list[dict[str, Any]] = []
    for k in range(len(stages)):
        at = {name: sum(len(i.readers[name]) for i in stages[:k]) for name in changes}
        result.append({n: c.where[at[n] : at[n] + len(stages[k].readers[n])] for n, c in changes.items()})
    return result


def _unfinished(root: Path, stages: list[tuple[OutputFiles, Inputs]], now: Inputs) -> Iterator[AdditionPlan]:
    """Yield the runs (the first one and later additions) that were begun and not finished. Raises JobError if one of
    them is a retry of rejected samples, or if samples would get other keys."""
    for files in addition_files_of(root):
        if files.addition is not None and files.addition.kind == "retry" and not files.addition.published(root):
            raise JobError(f"{root}: a retry was interrupted; run dali-run retry-failed {root} to its end first")
    for number, (files, inputs) in enumerate(stages):
        if files.addition is None:
            try:
                check_finished(root)
                continue
            except JobError:
                pass
        elif files.addition.published(root):
            continue
        if any(p.keys != now.readers[name].keys for name, p in inputs.readers.items()):
            raise JobError(f"{root}: with the added inputs the samples of the interrupted run would get other keys; "
                           "remove them, run the job to its end, then add them")  # fmt: skip
        contents = read_journal(files.journal)
        assert contents is not None
        yield AdditionPlan(number, files.addition, Inputs(inputs.readers, contents.header["identity"]["inputs"]))
