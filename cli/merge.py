"""``dali-run merge``: the parts of a job as one output."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import Json, check_exists, print_json, tell

NAME = "merge"


def command(
    output: Annotated[str, typer.Argument(metavar="OUT", help="The folder (or URL) that the parts wrote to.")],
    json: Json = False,
) -> None:
    """Publish the manifest of a job that ran in parts.

    The part that finishes last does so by itself; where no part saw that it was the last (file systems that show files
    late, as NFS does), or to be sure, this does it. Repeating it changes nothing.

    \b
    Examples:
      dali-run merge out/imagenet
    """
    from ..writers.shards.merge import merge

    check_exists(output)
    parts = merge(output)
    if json:
        print_json({"path": output, "parts": parts})
    else:
        tell(f"{output}: {parts} parts are one output")
