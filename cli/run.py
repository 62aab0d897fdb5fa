"""``dali-run run``: a job from start to end."""

from __future__ import annotations

import json as json_
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from .output import INTERRUPTED, JOB_FAILED, Device, Json, Set, Settings, Spec, console, overrides, print_json, say

NAME = "run"


def command(
    spec: Spec,
    changes: Set = None,
    settings: Settings = None,
    device: Device = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N samples.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew: what was written before is removed.")] = False,
    num_shards: Annotated[int, typer.Option(min=1, metavar="N", help="Split the data set into N parts ...")] = 1,
    shard_id: Annotated[int, typer.Option(min=0, metavar="I", help="... and do part I, from 0.")] = 0,
    report: Annotated[Path | None, typer.Option(metavar="PATH", help="Write report.json here, too.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="PATH", help="Write the report as a page.")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write a trace for chrome://tracing or ui.perfetto.dev.")
    ] = None,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Run a job, or continue it where it stopped.

    Shards, manifest.json, rejects.jsonl and report.json are written to the path of the spec's write section.

    Ends with 0: clean; 1: failed; 2: wrong spec or usage; 3: done, with rejects inside the budget; 130: interrupted.

    \b
    Examples:
      dali-run run configs/quickstart.yaml
      dali-run run spec.yaml --set data=/mnt/train --set pipeline.batch_size=256
      dali-run run spec.yaml --device cpu --limit 1000 --fresh
      dali-run run spec.yaml --num-shards 8 --shard-id 3
    """
    from ..pipelines.job import run_job
    from .progress import shown

    if shard_id >= num_shards:
        raise typer.BadParameter(f"must be below --num-shards ({num_shards})", param_hint="--shard-id")
    signal.signal(signal.SIGTERM, _interrupt)
    with shown(quiet=quiet or json) as progress:
        result = run_job(
            spec,
            overrides(changes, settings),
            device=device,
            part=(shard_id, num_shards) if num_shards > 1 else None,
            limit=limit,
            fresh=fresh,
            trace=trace,
            progress=progress,
            note=(lambda _: None) if quiet else say,
        )
    if report is not None:
        report.write_text(json_.dumps(result.report, indent=2) + "\n")
    if html is not None and result.report:
        from ..pipelines.html_report import html_report

        html.write_text(html_report(result.report))
    if json:
        print_json({"exit_code": result.exit_code, "message": result.message, "path": str(result.path),
                    "report": result.report})  # fmt: skip
    elif result.exit_code in (JOB_FAILED, INTERRUPTED):
        say(result.message)
    elif not quiet:
        if result.report:
            from ..pipelines.render import report_view

            console().print(report_view(result.report))
        typer.echo(result.message)
    raise typer.Exit(result.exit_code)


def _interrupt(*_: Any) -> None:
    """Schedulers ask by SIGTERM for what people ask by Ctrl-C."""
    raise KeyboardInterrupt
