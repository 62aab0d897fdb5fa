"""``dali-run ops``: the operators, and one of them in detail."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import Json, console, print_json

NAME = "ops"


def _names(incomplete: str) -> list[str]:
    """What the shell offers after ``dali-run ops``."""
    from ..pipelines.tools.reference import describe_operators

    return [o["name"] for o in describe_operators() if o["name"].startswith(incomplete)]


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One operator, with its arguments.", autocompletion=_names)
    ] = None,
    json: Json = False,
) -> None:
    """List operators and writers, or show one with its arguments.

    \b
    Examples:
      dali-run ops
      dali-run ops resize
      dali-run ops writers.tfrecord
      dali-run ops --json | jq -r '.[] | select(.stages | index("gpu")) | .name'
    """
    from ..pipelines.tools import reference

    if name is None:
        operators = reference.describe_operators()
        if json:
            print_json(operators)
            return
        from ..pipelines.show.terminal import operators_view

        console().print(operators_view(operators))
        return
    operator = reference.describe_operator(name)
    if json:
        print_json(operator)
        return
    from ..pipelines.show.terminal import operator_view

    console().print(operator_view(operator))
