"""``dali-run convert-pipeline``: convert a serialized pipeline of DALI to a spec."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..output import say, tell

NAME = "convert-pipeline"


def command(
    serialized: Annotated[Path, typer.Argument(metavar="IN.dali", help="Output of DALI's Pipeline.serialize.")],
    spec: Annotated[
        Path | None, typer.Argument(metavar="OUT.yaml", help="The spec to write (default: stdout).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Convert a serialized pipeline of DALI to a YAML spec.

    No code in the file is executed. Operators, arguments, arithmetic, conditionals and seeds are kept; pipelines with
    Python functions are rejected, because the file does not contain the functions. Other commands accept IN.dali
    directly as a spec.

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
        raise SpecError(f"{spec} already exists; use --force to overwrite it") from None
    say(f"{spec} written")
