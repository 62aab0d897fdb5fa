"""``dali-run schema``: JSON Schema of specs, and of what commands print as JSON."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import print_json

NAME = "schema"


def _names(incomplete: str) -> list[str]:
    """Completions that the shell offers after ``--of``."""
    from ..pipelines.tools.json_output.outputs import OUTPUTS

    return [name for name in ("spec", *OUTPUTS) if name.startswith(incomplete)]


def command(
    of: Annotated[
        str, typer.Option("--of", metavar="NAME", help="spec, or a command: of its --json.", autocompletion=_names)
    ] = "spec",
) -> None:
    """Print the JSON Schema of specs, for completion in editors; or of what a command prints with --json.

    \b
    Examples:
      dali-run schema > spec.schema.json
      dali-run schema --of run
      # first line of a spec, for editors with the YAML language server:
      # yaml-language-server: $schema=./spec.schema.json
    """
    if of != "spec":
        from ..pipelines.tools.json_output.schema import output_schema

        print_json(output_schema(of))
        return
    from ..pipelines.spec.json_schema import spec_schema

    print_json(spec_schema())
