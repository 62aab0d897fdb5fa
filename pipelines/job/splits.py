"""Jobs that write all parts of a split data set: one output for each part, in a folder of its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...ops.errors import SpecError
from ...readers.base import Reader
from ...readers.selection.split import Split
from .run import CLEAN, FAILED, INTERRUPTED, REJECTS, JobResult, Prepared, prepare, run_job


def split_parts(prepared: Prepared) -> tuple[str, ...]:
    """Return the names of the splits, such as ``train`` and ``val``, that the job of a spec writes one after the other.
    Empty if the readers divide no data set, or read only one of the splits. Raises SpecError if readers differ in their
    splits."""
    readers = [(n, n.op) for n in prepared.built.graph.nodes if isinstance(n.op, Reader)]
    split = [(n, op.split) for n, op in readers if op.split is not None and op.use is None]
    if not split:
        return ()
    names = [tuple(Split.of(given).shares) for _, given in split]
    if len(split) < len(readers) or len(set(names)) > 1:
        raise SpecError(f"{split[0][0].where}: a job that writes every part of a split needs the same parts at all "
                        "readers, or `use` at all of them")  # fmt: skip
    return names[0]


def run_one_process(
    path: str | Path, overrides: Mapping[str, Any] | None = None, *, device: str | None = None,
    part: tuple[int, int] | None = None, **options: Any,
) -> JobResult:  # fmt: skip
    """Run the job of a spec in this process as `run_job` does. If the readers split the data set (train, val, ...), run
    the job once for each split."""
    prepared = prepare(path, overrides, device=device, part=part, ahead=True)
    given: dict[str, Any] = {"device": device, "part": part, **options}
    if names := split_parts(prepared):
        return run_each_part(names, prepared, overrides or {}, lambda changes: run_job(path, changes, **given))
    return run_job(path, overrides, prepared=prepared, **given)


def run_each_part(
    parts: tuple[str, ...], prepared: Prepared, overrides: Mapping[str, Any],
    run: Callable[[Mapping[str, Any]], JobResult],
) -> JobResult:  # fmt: skip
    """Run the job once for each split (train, val, ...) in ``parts``, each into a subfolder of ``write.path``, and
    return one result for all. ``run`` runs the job with the overrides for one split. Stop at the first split that fails
    or is interrupted."""
    write = prepared.spec.write
    if write is None:
        raise SpecError(f"{prepared.spec.file}: there is no `write:` section, so there is nothing to run")
    place = str(write.path).rstrip("/")
    names = [n.name for n in prepared.built.graph.nodes if isinstance(n.op, Reader)]
    results: dict[str, JobResult] = {}
    for part in parts:
        changes = dict(overrides) | {f"graph.{name}.use": part for name in names}
        results[part] = run(changes | {"write.path": f"{place}/{part}"})
        if results[part].exit_code in (FAILED, INTERRUPTED):
            break
    codes = [r.exit_code for r in results.values()]
    code = next((c for c in (INTERRUPTED, FAILED, REJECTS) if c in codes), CLEAN)
    samples: Counter[str] = Counter()
    for result in results.values():
        samples.update(result.report.get("samples", {}))
    last = next(reversed(results.values()))
    splits = {part: r.report.get("samples", {}) for part, r in results.items()}
    seconds = sum(r.report.get("seconds", 0.0) for r in results.values())
    rate = round(samples["read"] / seconds, 1) if seconds else None
    report = {**last.report, "samples": dict(samples), "seconds": seconds, "samples_per_second": rate, "splits": splits}
    message = "; ".join(f"{part}: {r.message}" for part, r in results.items())
    return JobResult(code, message, report, place, ran=any(r.ran for r in results.values()))
