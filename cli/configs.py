"""``dali-run configs``: the specs that come with dali-run."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import Json, console, print_json

NAME = "configs"


def command(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this spec.")] = None, json: Json = False
) -> None:
    """List the specs that come with dali-run, or print one of them.

    Every command takes their names for the path of a spec. To change one, print it into a file.

    \b
    Examples:
      dali-run configs
      dali-run run quickstart
      dali-run configs imagenet_train > my.yaml
    """
    from ..pipelines.spec.shipped import shipped, shipped_spec, summary, text_of

    if name is not None:
        path = shipped_spec(name)
        text = text_of(path)
        if json:
            print_json({"name": name, "path": str(path), "text": text})
        else:
            typer.echo(text, nl=False)
        return
    found = [{"name": name, "path": str(path), "summary": summary(path)} for name, path in shipped().items()]
    if json:
        print_json(found)
        return
    from ..pipelines.show.tables import table

    console().print(table(("spec", "shows"), [[one["name"], one["summary"]] for one in found]))
