"""``dali-run ops``: the operators, and one of them in detail."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import Json, console, print_json

NAME = "ops"


def _names(incomplete: str) -> list[str]:
    """Completions that the shell offers after ``dali-run ops``."""
    from ..pipelines.tools.reference import list_operators

    return [o["name"] for o in list_operators() if o["name"].startswith(incomplete)]


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One operator, with its arguments.", autocompletion=_names)
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="TRANSFORM", help="A transform of albumentations, torchvision, imgaug, or DALI's old name."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List operators and writers, show one with its arguments, or find one by another library's name.

    \b
    Examples:
      dali-run ops
      dali-run ops resize
      dali-run ops writers.tfrecord
      dali-run ops --like albumentations.ColorJitter
      dali-run ops --json | jq -r '.[] | select(.stages | index("gpu")) | .name'
    """
    if like is not None:
        from ..pipelines.tools.like import operators_like

        found = operators_like(like)
        if json:
            print_json(found)
            return
        from ..pipelines.show.terminal import like_view

        console().print(like_view(found), crop=False)  # steps are copied into specs
        return
    from ..pipelines.tools import reference

    if name is None:
        if json:
            print_json(reference.describe_operators())
            return
        from ..pipelines.show.terminal import operators_view

        console().print(operators_view(reference.list_operators()))
        return
    operator = reference.describe_operator(name)
    if json:
        print_json(operator)
        return
    from ..pipelines.show.terminal import operator_view

    console().print(operator_view(operator, reference.without_effect(operator)))
