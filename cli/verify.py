"""``dali-run verify``: check whether an output is complete and undamaged."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from .output import JOB_FAILED, Json, check_exists, print_json, say, tell

NAME = "verify"


def command(
    output: Annotated[str, typer.Argument(metavar="OUT", help="Output folder (or URL) of a job.")],
    deep: Annotated[
        bool, typer.Option("--deep", help="Also compare SHA-256, for files for which the job recorded it.")
    ] = False,
    json: Json = False,
) -> None:
    """Check whether an output is complete and undamaged.

    Files are compared with their CRC-32C and a hash tree (`write: {checksums: sha256}` also records SHA-256); counts,
    every record, and the presence of unknown files are checked. Every problem is a line on stderr: file, record, what
    is wrong. Unchecked parts are listed: the report, and records of writers that cannot read them.

    Exit status: 0 no problems; 1 there are problems.

    \b
    Examples:
      dali-run verify out/quickstart
      dali-run verify out/quickstart --deep --json
    """
    from ..pipelines.plugins import known_writer
    from ..writers.shards.verify import verify
    from .progress import counted

    check_exists(output)
    with counted("checked", quiet=json) as progress:
        verdict = verify(output, progress, deep=deep, writer_of=known_writer)
    if json:
        print_json({"sound": verdict.sound, **asdict(verdict)})
    else:
        for problem in verdict.problems:
            say(f"{output.rstrip('/')}/{problem}")
        if verdict.sound:
            from ..pipelines.wording import count, size

            tell(f"{output}: verified: {count(verdict.samples, 'sample')} in {count(verdict.shards, 'shard')}, "
                       f"{size(verdict.bytes)}, {count(verdict.rejects, 'reject')}")  # fmt: skip
            for part in verdict.unchecked:
                tell(f"not checked: {part}")
            if deep and verdict.hashed < verdict.files:
                without = count(verdict.files - verdict.hashed, "file")
                tell(
                    f"{without} without SHA-256: checked by CRC-32C and hash tree (write: {{checksums: sha256}} "
                    "records it)"
                )
    raise typer.Exit(0 if verdict.sound else JOB_FAILED)
