"""``dali-run doctor``: report what this machine supports."""

from __future__ import annotations

from ..output import Json, console, print_json

NAME = "doctor"


def command(json: Json = False) -> None:
    """Show what this machine supports, and what to install.

    The report covers CPU, GPU, codecs, versions and folders, with a remedy for each problem.

    \b
    Examples:
      dali-run doctor
      dali-run doctor --json | jq '.findings[] | select(.status != "ok")'
    """
    from ...pipelines.tools.doctor import examine

    diagnosis = examine()
    if json:
        print_json(diagnosis)
        return
    from ...pipelines.show.terminal import doctor_view

    console().print(doctor_view(diagnosis))
