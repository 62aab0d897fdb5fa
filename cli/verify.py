"""``dali-run verify``: is an output what it says?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from .output import JOB_FAILED, Json, check_exists, print_json, say, tell

NAME = "verify"


def command(
    output: Annotated[str, typer.Argument(metavar="OUT", help="The folder (or URL) that a job wrote.")],
    deep: Annotated[bool, typer.Option("--deep", help="Compare SHA-256, too, where the job has listed it.")] = False,
    json: Json = False,
) -> None:
    """Check an output: checksums, counts, every record, and that every file in it is known.

    Every problem is a line on stderr: file, record, what is wrong. Ends with 1 if there is one.
    What could not be checked is named: the report, and records of writers that cannot read them.
    Files are compared by CRC-32C and by a tree of checksums; `write: {checksums: sha256}` lists SHA-256, too.

    \b
    Examples:
      dali-run verify out/quickstart
      dali-run verify out/quickstart --json
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
                tell(f"{without} without SHA-256: checked by CRC-32C and tree (write: {{checksums: sha256}} lists it)")
    raise typer.Exit(0 if verdict.sound else JOB_FAILED)
