"""``dali-run run``: run a job."""

from __future__ import annotations

import json as json_
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from .interrupts import heeded
from .output import (
    Device,
    Json,
    Set,
    Settings,
    Spec,
    end_with,
    errors_as_json,
    overrides,
    say,
    written_to,
)

NAME = "run"


def command(
    spec: Spec,
    changes: Set = None,
    settings: Settings = None,
    device: Device = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Process only the first N samples.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete existing output and start over.")] = False,
    append: Annotated[
        bool, typer.Option("--append", help="Add inputs that are new since the last run to the output.")
    ] = False,
    num_shards: Annotated[
        str,
        typer.Option(metavar="N", help="Split the data set into N parts; auto: as many as srun or torchrun started."),
    ] = "1",
    shard_id: Annotated[int | None, typer.Option(min=0, metavar="I", help="Process part I, counted from 0.")] = None,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Process part I of N; auto or auto/N: taken from Slurm, torchrun, Kubernetes, AWS Batch.",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="Use several workers: processes:N, ray or ray://HOST:PORT."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, metavar="N", help="With --on: use at most N workers.")] = None,
    cores: Annotated[int | None, typer.Option(min=1, metavar="N", help="With --on ray: cores per worker.")] = None,
    report: Annotated[Path | None, written_to("Also write report.json to this file.")] = None,
    html: Annotated[Path | None, written_to("Write the report to this file as an HTML page.")] = None,
    trace: Annotated[
        Path | None, written_to("Write a trace for chrome://tracing or ui.perfetto.dev to this file.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show queues, operators and memory while the job runs, like dali-run top.")
    ] = False,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
) -> None:
    """Run a job, or continue it where it stopped.

    Shards, manifest.json, rejects.jsonl and report.json are written to the path in the spec's write section.

    Exit status: 0 success; 1 failed; 2 wrong spec or usage; 3 done, with rejects within the limit; 130 interrupted.

    \b
    Examples:
      dali-run run spec.yaml --set data=/mnt/train --device gpu:all
      srun --ntasks 8 dali-run run spec.yaml --part auto
    """
    if device is not None and on is None:  # CUDA starts while other modules are imported
        from ..ops.gpu.early_init import start_named

        start_named(device)
    from ..pipelines.fleet.run import run as run_by_many
    from ..pipelines.job.splits import run_one_process
    from .progress import shown

    look = None
    if html is not None:
        from ..pipelines.job.look import Look

        look = Look()
    with errors_as_json(json), shown(quiet=quiet or json, watch=watch) as progress:
        mine = _part(num_shards, shard_id, part, quiet)
        overridden = overrides(changes, settings)
        note = (lambda _: None) if quiet else say
        if mine is not None:
            if on is not None:
                raise typer.BadParameter("distributes all parts: omit --part and --num-shards", param_hint="--on")
            result = run_one_process(spec, overridden, device=device, part=mine, limit=limit, fresh=fresh,
                                     append=append, trace=trace, progress=heeded(progress), note=note,
                                     look=look)  # fmt: skip
        else:
            result = run_by_many(
                spec,
                overridden,
                on=on,
                workers=workers,
                cores=cores,
                device=device,
                limit=limit,
                fresh=fresh,
                append=append,
                trace=trace,
                progress=heeded(progress),
                note=note,
                look=look,
            )
    if report is not None:
        report.write_text(json_.dumps(result.report, indent=2) + "\n")
    if html is not None and result.report:
        from ..pipelines.job.page import run_page

        html.write_text(run_page(result.report, look, ["dali-run", *sys.argv[1:]], spec, overridden), encoding="utf-8")
    end_with(result, json=json, quiet=quiet)


def _part(num_shards: str, shard_id: int | None, part: str | None, quiet: bool) -> tuple[int, int] | None:
    """Return the part of the job to run as (index, number of parts); None for the whole job. The environment of a
    scheduler is read only for ``auto``: otherwise a job inside an allocation writes everything."""
    if part is not None:
        from ..pipelines.job.launchers import part_of

        if num_shards != "1" or shard_id is not None:
            raise typer.BadParameter("replaces --num-shards and --shard-id: omit them", param_hint="--part")
        chosen, source = part_of(part, os.environ)
        if not quiet and "auto" in part:
            say(f"part {chosen[0]} of {chosen[1]}, from {source}")
        return chosen if chosen[1] > 1 else None
    if num_shards == "auto":
        from ..pipelines.job.launchers import part_from_environment

        if shard_id is not None:
            raise typer.BadParameter(
                "is taken from the environment with --num-shards auto: omit it", param_hint="--shard-id"
            )
        chosen, source = part_from_environment(os.environ)
        if not quiet:
            say(f"part {chosen[0]} of {chosen[1]}, from {source}")
        return chosen if chosen[1] > 1 else None
    if not num_shards.isdecimal() or int(num_shards) < 1:
        raise typer.BadParameter(f"must be a number from 1, or auto; got {num_shards!r}", param_hint="--num-shards")
    count = int(num_shards)
    if (shard_id or 0) >= count:
        raise typer.BadParameter(f"must be below --num-shards ({count})", param_hint="--shard-id")
    if count > 1 and shard_id is None:
        raise typer.BadParameter(f"is missing: choose one of the {count} parts, or use --num-shards auto",
                                 param_hint="--shard-id")  # fmt: skip
    return (shard_id or 0, count) if count > 1 else None
