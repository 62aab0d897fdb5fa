"""``dali-run convert-pipeline``: a serialized pipeline of DALI's as a spec."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..output import say, tell

NAME = "convert-pipeline"


def command(
    serialized: Annotated[Path, typer.Argument(metavar="IN.dali", help="What DALI's Pipeline.serialize wrote.")],
    spec: Annotated[Path | None, typer.Argument(metavar="OUT.yaml", help="The spec; stdout by default.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a pipeline that DALI serialized as a YAML spec.

    Nothing in the file is run. Operators, arguments, arithmetic, conditionals and seeds are kept; a Python function
    is not in such a file, and is refused. Other commands take IN.dali as a spec as it is.

    \b
    Examples:
      dali-run convert-pipeline model.dali model.yaml
      dali-run plan model.dali
    """
    from ...ops.errors import SpecError
    from ...pipelines.spec.dali_file import read_bytes, spec_text

    try:
        text = spec_text(read_bytes(serialized))
    except SpecError as e:
        raise e.at(str(serialized)) from None
    if spec is None:
        tell(text.rstrip("\n"))
        return
    try:
        with spec.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SpecError(f"{spec} is there already; --force writes over it") from None
    say(f"{spec} written")
