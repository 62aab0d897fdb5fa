"""``dali-run schema``: print the JSON Schema of specs, or of a command's JSON output."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import print_json

NAME = "schema"


def _names(incomplete: str) -> list[str]:
    """Return shell completions for ``--of`` of ``dali-run schema``: names that begin with ``incomplete``."""
    from ..pipelines.tools.json_output.outputs import OUTPUTS

    return [name for name in ("spec", *OUTPUTS) if name.startswith(incomplete)]


def command(
    of: Annotated[
        str,
        typer.Option("--of", metavar="NAME", help="spec, or the name of a command with --json.", autocompletion=_names),
    ] = "spec",
) -> None:
    """Print the JSON Schema of specs, or of a command's --json.

    Editors with the YAML language server complete and check specs whose first line is `# yaml-language-server:
    $schema=./spec.schema.json`.

    \b
    Examples:
      dali-run schema > spec.schema.json
      dali-run schema --of run
    """
    if of != "spec":
        from ..pipelines.tools.json_output.schema import output_schema

        print_json(output_schema(of))
        return
    from ..pipelines.spec.json_schema import spec_schema

    print_json(spec_schema())
