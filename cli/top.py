"""``dali-run top``: watch running jobs from another terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from .output import Json, console, done, print_json

NAME = "top"
_SECONDS = 0.5
_AT_WORK = ("preparing", "running")


def command(
    output: Annotated[
        str | None, typer.Argument(metavar="OUT", help="Output folder (or URL) of the job (default: all jobs).")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the state once and exit.")] = False,
    json: Json = False,
) -> None:
    """Watch running jobs from another terminal.

    The view shows rate, queues, operators, rejects and memory of this user's jobs on this machine, or on machines with
    the same home folder. It ends with the job, or with Ctrl-C, which does not affect the job. Without a terminal, and
    with --json, the state is printed once.

    \b
    Examples:
      dali-run top
      dali-run top out/imagenet --json | jq '.[0].samples_per_second'
    """
    from ..ops.errors import JobError
    from ..pipelines.job.live import statuses
    from .progress import lively

    jobs = statuses(output)
    if output is not None and not jobs:
        raise JobError(f"found no job of this user that writes to {output}")
    if json:
        print_json(jobs)
        return
    if output is None:
        jobs = [s for s in jobs if s["state"] in _AT_WORK]
    with done(0):
        if once or not lively(sys.stdout) or not _at_work(jobs):
            console().print(_view(jobs))
            return
        _watch(output)


def _at_work(jobs: Sequence[Mapping[str, Any]]) -> bool:
    return any(s["state"] in _AT_WORK for s in jobs)


def _view(jobs: Sequence[Mapping[str, Any]]) -> Any:
    from ..pipelines.show.live import live_view, live_views

    if not jobs:
        return "no job of this user is running on this machine"
    return live_view(jobs[0]) if len(jobs) == 1 else live_views(jobs)


def _watch(output: str | None) -> None:
    """Show the jobs until all of them end; the last view stays on the terminal."""
    from rich.live import Live

    from ..pipelines.job.live import statuses

    with Live(console=console(), auto_refresh=False) as view:
        try:
            while True:
                jobs = [s for s in statuses(output) if output is not None or s["state"] in _AT_WORK]
                view.update(_view(jobs), refresh=True)
                if not _at_work(jobs):
                    return
                time.sleep(_SECONDS)
        except KeyboardInterrupt:
            return
