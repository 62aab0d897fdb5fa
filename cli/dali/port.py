"""``dali-run port``: report where a program for DALI differs from dali-run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..output import JOB_FAILED, Json, check_exists, done, print_json, say, tell

NAME = "port"


def command(
    programs: Annotated[list[Path], typer.Argument(metavar="PROGRAM", help="Python programs that use DALI.")],
    write: Annotated[bool, typer.Option("--write", help="Rewrite the imports: nvidia.dali becomes dali_run.")] = False,
    json: Json = False,
) -> None:
    """Report where programs for DALI differ from dali-run.

    The programs are parsed, not executed. A finding at several positions is printed once. To run a program without
    rewriting its imports, use `python -m dali_run.compat PROGRAM`.

    Exit status: 0; 1 something is missing or rejected, or a program cannot be read.

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
                say(f"{report.path}: no differences found")
