"""``dali-run retry-failed``: rejected samples once more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .interrupts import heeded
from .output import Json, Set, check_exists, end_with, errors_as_json, overrides

NAME = "retry-failed"


def command(
    output: Annotated[str, typer.Argument(metavar="OUT", help="The folder (or URL) that a finished job wrote.")],
    spec: Annotated[
        Path | None, typer.Option(metavar="SPEC", help="The job's spec, if it was moved, or run elsewhere.")
    ] = None,
    changes: Set = None,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Retry the samples a finished job rejected, and add them to its output.

    Repair the files first, where they are. What succeeds goes into shards of its own (NAME-retry-001-...); what fails
    again stays in rejects.jsonl. Nothing that was written before is touched.

    The spec is the one that you ran to make OUT. What OUT says about it is not trusted: name the spec of an output that
    was made elsewhere.

    \b
    Examples:
      dali-run retry-failed out/imagenet
      dali-run retry-failed /mnt/theirs/imagenet --spec imagenet.yaml --set data=/mnt/train
    """
    from ..pipelines.job.retry import retry_failed
    from .progress import shown

    with errors_as_json(json), shown(quiet=quiet or json) as progress:
        check_exists(output)
        result = retry_failed(output, spec, overrides(changes), progress=heeded(progress))
    end_with(result, json=json, quiet=quiet)
