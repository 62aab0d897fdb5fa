"""Growth: jobs whose inputs have changed since their output was made: the changes, and the work left to be done."""

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
    """One run that is left: of the first inputs where ``stage`` is None, else of an addition."""

    number: int
    """Of the stage in the lineup."""
    addition: Addition | None
    inputs: Inputs
    """``inputs.identity`` is what the journal says, or will say."""

    def listing(self) -> Inputs:
        """The files that the output keeps beside its journal."""
        return self.inputs


@dataclass(frozen=True, slots=True)
class OutputGrowth:
    """An output and its inputs, which have grown since its first run."""

    lineup: Lineup
    todo: tuple[AdditionPlan, ...]


def known_inputs(root: Path) -> list[tuple[OutputFiles, Inputs]]:
    """The inputs of an output's first run, and of each addition; empty where nobody wrote them down.

    Raises JobError where they cannot be read.
    """
    found = output_files_of(root)[:1]
    if not found or not found[0].inputs.exists():
        return []
    told = []
    for files in [
        found[0],
        *(s for s in addition_files_of(root) if s.addition is not None and s.addition.kind == "append"),
    ]:
        try:
            told.append((files, Inputs.decode(sidecar.read(files.inputs))))
        except (OSError, ValueError) as e:
            raise JobError(f"{files.inputs}: {e}; restore it, or start anew with --fresh") from None
    return told


def lineup_of(root: Path, sources: Sources) -> Lineup:
    """The data sets in the order in which the output in ``root`` has them, edited files included, for a retry.

    Raises JobError if inputs were added or removed.
    """
    known = known_inputs(root)
    now = sources.inputs()
    if not known:
        return Lineup(sources, [{name: np.arange(len(p)) for name, p in now.readers.items()}])
    changes = _changes([i for _, i in known], now)
    for name, changed in changes.items():
        for piece, what in changed.edited:
            if "records" in what.split(", "):
                raise JobError(
                    f"{os.fsdecode(piece)} has another number of records than when the job ran (one that could not be "
                    "read at all counted as one), so its samples are not those that were rejected. Convert it by "
                    "itself into an output of its own, or start anew with --fresh"
                )
        if changed.removed or len(changed.added):
            said = [s for s in changed.lines(now.readers[name]) if "edited:" not in s]
            raise JobError(
                f"the inputs are not those of the job: {'; '.join(said)}. Repair files where they are, without adding "
                "or removing any (run --append adds new ones)"
            )
    return Lineup(sources, _places([i for _, i in known], changes))


def find_growth(
    root: Path, sources: Sources, identity: Mapping[str, Any], write: Mapping[str, Any], *, append: bool,
    part: tuple[int, int] | None,
) -> OutputGrowth | None:  # fmt: skip
    """The work left to be done where the inputs have grown; None where they are those of the first run, or unknown.

    Raises JobError, with the differences, where more than additions happened, or ``append`` does not allow those.
    """
    found = output_files_of(root)
    base = read_journal(found[0].journal) if found else None
    if base is None:
        return None
    before = base.header["identity"].get("inputs")
    appended = any(s.addition is not None and s.addition.kind == "append" for s in addition_files_of(root))
    known = known_inputs(root) if appended or before != identity["inputs"] else []
    if not known:
        return None
    now = sources.inputs()
    if known[0][1].readers.keys() != now.readers.keys():
        return None
    changes = _changes([i for _, i in known], now)
    grown = any(len(c.added) for c in changes.values())
    spoiled = any(c.removed or c.edited for c in changes.values())
    differ = differences(
        {"identity": base.header["identity"], "write": base.header["write"]},
        {"identity": {**identity, "inputs": before}, "write": dict(write)},
    )
    if spoiled or differ or (grown and not append):
        lines = [f"inputs of {name}: {said}" for name, c in changes.items() for said in c.lines(now.readers[name])]
        hint = "" if spoiled or differ else ", add the new inputs to it with --append"
        raise JobError(
            f"{root} holds the output of another job; this one differs in\n  "
            + "\n  ".join([*differ, *lines])
            + f"\nChoose another path{hint}, or start anew with --fresh (removes the earlier output)"
        )
    places = _places([i for _, i in known], changes)
    todo = list(_unfinished(root, known, now))
    if (todo or grown) and (part is not None or (found[0].part is not None and todo and todo[0].addition is None)):
        raise JobError(f"{root}: inputs are added to a finished output, by one job: finish all parts with the inputs "
                       "that they began with, then run --append without --num-shards")  # fmt: skip
    if grown:
        places.append({name: c.added for name, c in changes.items()})
    lineup = Lineup(sources, places)
    for one in todo:
        said = range(*base.header["range"]) if one.addition is None else one.addition.positions
        if said != lineup.positions(one.number):
            raise JobError(f"{root}: the job was begun with --limit or other numbers of records; inputs cannot be "
                           "added to it")  # fmt: skip
    if grown:
        added = Inputs({name: now.readers[name].take(c.added) for name, c in changes.items()})
        named = Inputs(added.readers, hashlib.sha256(added.encode()).hexdigest())
        last = len(places) - 1
        if base.header["whole"] is None and base.header["range"] != [0, lineup.ends[0]]:
            raise JobError(f"{root} was made with --limit: inputs cannot be added to it")
        number = len(addition_files_of(root)) + 1
        todo.append(AdditionPlan(last, Addition(number, "append", lineup.positions(last)), named))
    return OutputGrowth(lineup, tuple(todo))


def _changes(known: list[Inputs], now: Inputs) -> dict[str, Changes]:
    return {name: compare(_joined([k.readers[name] for k in known]), pieces) for name, pieces in now.readers.items()}


def _joined(parts: list[InventoryEntries]) -> InventoryEntries:
    first = parts[0]
    state = {k: np.concatenate([p.state[k] for p in parts]) for k in first.state}
    blob = b"\0".join(p.blob for p in parts if len(p))
    return InventoryEntries(blob, state, np.concatenate([p.records for p in parts]), first.keys)


def _places(known: list[Inputs], changes: Mapping[str, Changes]) -> list[dict[str, Any]]:
    """For each addition, the positions of its entries in the present inventory."""
    result: list[dict[str, Any]] = []
    for k in range(len(known)):
        at = {name: sum(len(i.readers[name]) for i in known[:k]) for name in changes}
        result.append({n: c.where[at[n] : at[n] + len(known[k].readers[n])] for n, c in changes.items()})
    return result


def _unfinished(root: Path, known: list[tuple[OutputFiles, Inputs]], now: Inputs) -> Iterator[AdditionPlan]:
    """Runs that were begun. Raises JobError where a retry is among them, or keys would not be what they were."""
    for files in addition_files_of(root):
        if files.addition is not None and files.addition.kind == "retry" and not files.addition.published(root):
            raise JobError(f"{root}: a retry was interrupted; run dali-run retry-failed {root} to its end first")
    for number, (files, inputs) in enumerate(known):
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
                           "take them away, run the job to its end, then add them")  # fmt: skip
        contents = read_journal(files.journal)
        assert contents is not None
        yield AdditionPlan(number, files.addition, Inputs(inputs.readers, contents.header["identity"]["inputs"]))
