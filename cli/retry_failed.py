"""``dali-run retry-failed``: process the rejected samples of a job again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .interrupts import heeded
from .output import Json, Set, check_exists, end_with, errors_as_json, overrides

NAME = "retry-failed"


def command(
    output: Annotated[str, typer.Argument(metavar="OUT", help="Output folder (or URL) of a finished job.")],
    spec: Annotated[
        Path | None, typer.Option(metavar="SPEC", help="The job's spec, if it was moved or run elsewhere.")
    ] = None,
    changes: Set = None,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
) -> None:
    """Retry rejected samples after their files were repaired.

    Samples that now succeed are written to additional shards (NAME-retry-001-...); samples that fail again stay in
    rejects.jsonl. Existing shards are not changed.

    The spec is the one that this user ran for OUT. The spec recorded in OUT is not trusted: use --spec for an output
    that was created elsewhere.

    \b
    Examples:
      dali-run retry-failed out/imagenet
      dali-run retry-failed /mnt/theirs/imagenet --spec imagenet.yaml
    """
    from ..pipelines.job.retry import retry_failed
    from .progress import shown

    with errors_as_json(json), shown(quiet=quiet or json) as progress:
        check_exists(output)
        result = retry_failed(output, spec, overrides(changes), progress=heeded(progress))
    end_with(result, json=json, quiet=quiet)
