"""``dali-run port``: what a program for DALI needs that differs or is missing here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..output import JOB_FAILED, Json, check_exists, done, print_json, say, tell

NAME = "port"


def command(
    programs: Annotated[list[Path], typer.Argument(metavar="PROGRAM", help="Python files.")],
    write: Annotated[bool, typer.Option("--write", help="Rewrite the imports: nvidia.dali becomes dali_run.")] = False,
    json: Json = False,
) -> None:
    """Report what programs for DALI use that differs or is missing here.

    The programs are read, not run. What several places have in common is said once. Ends with 1 if something is
    missing or refused, or a program cannot be read; the others are still examined. A program whose imports are left
    as they are runs by `python -m dali_run.compat PROGRAM`.

    \b
    Examples:
      dali-run port train.py
      dali-run port src/*.py --write
    """
    from ...pipelines.tools.port import examine, lines_of, rewrite

    for path in programs:
        check_exists(str(path))
    reports = [examine(path) for path in programs]
    changed = [r.path for r in reports if write and rewrite(r)]
    with done(0 if all(r.runs for r in reports) else JOB_FAILED):
        if json:
            print_json([r.described(r.path in changed) for r in reports])
            return
        for line in lines_of(reports):
            tell(line)
        for report in reports:
            if report.path in changed:
                say(f"{report.path}: imports rewritten")
            if not report.findings:
                say(f"{report.path}: nothing is missing, nothing differs")
