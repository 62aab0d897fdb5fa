"""``dali-run doctor``: what this machine can do."""

from __future__ import annotations

from ..output import Json, console, print_json

NAME = "doctor"


def command(json: Json = False) -> None:
    """Show what this machine supports.

    CPU, GPU, codecs and versions, and what to install for the rest.

    \b
    Examples:
      dali-run doctor
      dali-run doctor --json | jq '.findings[] | select(.status != "ok")'
    """
    from ...pipelines.tools.doctor import examine

    found = examine()
    if json:
        print_json(found)
        return
    from ...pipelines.show.terminal import doctor_view

    console().print(doctor_view(found))
