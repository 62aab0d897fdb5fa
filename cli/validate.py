"""``dali-run validate``: check specs without reading data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import USAGE, Json, Plugins, Set, overrides, print_json, say, tell

NAME = "validate"


def command(
    specs: Annotated[list[Path], typer.Argument(metavar="SPEC", help="YAML specs.")],
    changes: Set = None,
    plugins: Plugins = False,
    json: Json = False,
) -> None:
    """Check specs without reading data.

    Each spec is compiled for CPU and GPU. Every problem is a line on stderr: file:line:column: what is wrong, what is
    allowed. Python files of a spec are run only with --plugins.

    Exit status: 0 valid; 2 there are problems.

    \b
    Examples:
      dali-run validate configs/*.yaml
      dali-run validate spec.yaml --set data=/mnt/train
    """
    from ..pipelines.tools.preview import check_spec, problem_line

    results = [check_spec(spec, overrides(changes), plugins) for spec in specs]
    if json:
        print_json(results)
    else:
        for result in results:
            for problem in result["problems"]:
                say(problem_line(problem))
            for note in result["notes"]:
                say(problem_line({**note, "text": f"note: {note['text']}"}))
            if not result["problems"]:
                tell(f"{result['file']}: {result['summary']}")
    raise typer.Exit(USAGE if any(r["problems"] for r in results) else 0)
