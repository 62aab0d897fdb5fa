"""``dali-run merge``: combine the parts of a job into one output."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import Json, check_exists, print_json, tell

NAME = "merge"


def command(
    output: Annotated[str, typer.Argument(metavar="OUT", help="Output folder (or URL) of the parts.")],
    json: Json = False,
) -> None:
    """Publish the manifest of a job that ran in parts.

    The part that finishes last does this itself. Run it if no part noticed that it was the last (file systems such as
    NFS may show files late), or to be sure. Repeating it changes nothing.

    \b
    Examples:
      dali-run merge out/imagenet
      dali-run merge s3://bucket/imagenet --json
    """
    from ..writers.shards.merge import merge

    check_exists(output)
    parts = merge(output)
    if json:
        print_json({"path": output, "parts": parts})
    else:
        tell(f"{output}: {parts} combined {parts} parts into one output")
