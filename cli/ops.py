"""``dali-run ops``: list all operators, or show one in detail."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import Json, console, print_json

NAME = "ops"


def _names(incomplete: str) -> list[str]:
    """Return shell completions for ``dali-run ops``: names of operators that begin with ``incomplete``."""
    from ..pipelines.tools.reference import list_operators

    return [o["name"] for o in list_operators() if o["name"].startswith(incomplete)]


def command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show this operator or writer with its arguments.", autocompletion=_names),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="TRANSFORM",
            help="Find the equivalent of a transform of albumentations, torchvision or imgaug, or of an old name in "
            "DALI.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List operators and writers, or show one of them.

    \b
    Examples:
      dali-run ops resize
      dali-run ops --like albumentations.ColorJitter
    """
    if like is not None:
        from ..pipelines.tools.like import operators_like

        steps = operators_like(like)
        if json:
            print_json(steps)
            return
        from ..pipelines.show.terminal import like_view

        console().print(like_view(steps), crop=False)  # not cropped, because steps are copied into specs
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
