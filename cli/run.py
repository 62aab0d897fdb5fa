"""``dali-run run``: a job from start to end."""

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
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N samples.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; delete existing output.")] = False,
    append: Annotated[
        bool, typer.Option("--append", help="Add inputs that came since the last run to what is there.")
    ] = False,
    num_shards: Annotated[
        str, typer.Option(metavar="N", help="Split the data set into N parts; auto: taken from srun or torchrun.")
    ] = "1",
    shard_id: Annotated[int | None, typer.Option(min=0, metavar="I", help="Process part I (0-based).")] = None,
    part: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Part I of N; auto, or auto/N: from Slurm, torchrun, Kubernetes, AWS Batch."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="Several workers: processes:N, ray or ray://HOST:PORT."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, metavar="N", help="With --on: at most N workers.")] = None,
    cores: Annotated[int | None, typer.Option(min=1, metavar="N", help="With --on ray: cores of a worker.")] = None,
    report: Annotated[Path | None, written_to("Write report.json here, too.")] = None,
    html: Annotated[Path | None, written_to("Write the report as a page.")] = None,
    trace: Annotated[Path | None, written_to("Write a trace for chrome://tracing or ui.perfetto.dev.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show queues, operators and memory at work, as dali-run top does.")
    ] = False,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Run a job, or continue it where it stopped.

    Shards, manifest.json, rejects.jsonl and report.json are written to the path of the spec's write section.

    Exit status: 0 success; 1 failed; 2: wrong spec or usage; 3: done, with rejects inside the budget; 130: interrupted.

    \b
    Examples:
      dali-run run configs/quickstart.yaml
      dali-run run spec.yaml --set data=/mnt/train --set pipeline.batch_size=256
      dali-run run spec.yaml --device cpu --limit 1000 --fresh
      dali-run run spec.yaml --part 3/8
      srun --ntasks 8 dali-run run spec.yaml --part auto
      dali-run run spec.yaml --device gpu:all                   # a process for each GPU, one output
      dali-run run spec.yaml --on processes:4 --device cpu
      dali-run run spec.yaml --on ray://head:10001
    """
    if device is not None and on is None:  # it starts while the rest is imported
        from ..ops.gpu.early_init import start_named

        start_named(device)
    from ..pipelines.fleet.run import run as run_by_many
    from ..pipelines.job.run import run_job
    from .progress import shown

    look = None
    if html is not None:
        from ..pipelines.job.look import Look

        look = Look()
    with errors_as_json(json), shown(quiet=quiet or json, watch=watch) as progress:
        mine = _part(num_shards, shard_id, part, quiet)
        told = overrides(changes, settings)
        note = (lambda _: None) if quiet else say
        if mine is not None:
            if on is not None:
                raise typer.BadParameter("gives out all parts: leave out --part and --num-shards", param_hint="--on")
            result = run_job(spec, told, device=device, part=mine, limit=limit, fresh=fresh, append=append,
                             trace=trace, progress=heeded(progress), note=note, look=look)  # fmt: skip
        else:
            result = run_by_many(
                spec,
                told,
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

        html.write_text(run_page(result.report, look, ["dali-run", *sys.argv[1:]], spec, told), encoding="utf-8")
    end_with(result, json=json, quiet=quiet)


def _part(num_shards: str, shard_id: int | None, part: str | None, quiet: bool) -> tuple[int, int] | None:
    """The part that is asked for; None for the whole job. Only ``auto`` looks at the environment: a job that happens
    to run inside of an allocation writes everything."""
    if part is not None:
        from ..pipelines.job.launchers import part_of

        if num_shards != "1" or shard_id is not None:
            raise typer.BadParameter("says what --num-shards and --shard-id say: leave those out", param_hint="--part")
        mine, found = part_of(part, os.environ)
        if not quiet and "auto" in part:
            say(f"part {mine[0]} of {mine[1]}, by {found}")
        return mine if mine[1] > 1 else None
    if num_shards == "auto":
        from ..pipelines.job.launchers import part_from_environment

        if shard_id is not None:
            raise typer.BadParameter("comes from the environment with --num-shards auto", param_hint="--shard-id")
        mine, found = part_from_environment(os.environ)
        if not quiet:
            say(f"part {mine[0]} of {mine[1]}, by {found}")
        return mine if mine[1] > 1 else None
    if not num_shards.isdecimal() or int(num_shards) < 1:
        raise typer.BadParameter(f"must be a number from 1, or auto; got {num_shards!r}", param_hint="--num-shards")
    count = int(num_shards)
    if (shard_id or 0) >= count:
        raise typer.BadParameter(f"must be below --num-shards ({count})", param_hint="--shard-id")
    if count > 1 and shard_id is None:
        raise typer.BadParameter(f"is missing: which of the {count} parts? (or --num-shards auto)",
                                 param_hint="--shard-id")  # fmt: skip
    return (shard_id or 0, count) if count > 1 else None
