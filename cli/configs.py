"""``dali-run configs``: list the specs that are part of dali-run."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import Json, console, print_json

NAME = "configs"


def command(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print the text of this spec.")] = None,
    json: Json = False,
) -> None:
    """List the specs that are part of dali-run, or print one.

    Every command accepts these names instead of the path of a spec. To change a spec, print it to a file.

    \b
    Examples:
      dali-run configs
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
    rows = [{"name": name, "path": str(path), "summary": summary(path)} for name, path in shipped().items()]
    if json:
        print_json(rows)
        return
    from ..pipelines.show.tables import table

    console().print(table(("spec", "shows"), [[row["name"], row["summary"]] for row in rows]))
