"""What all commands share: options with one meaning everywhere, and where output goes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

JOB_FAILED, USAGE, REJECTS, INTERRUPTED = 1, 2, 3, 130

Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="YAML spec of a job.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a variable (data=...) or a value (pipeline.seed=7)."),
]
Settings = Annotated[
    Path | None, typer.Option("--settings", metavar="FILE", help="Overrides in a YAML file, as dali-run tune writes.")
]
Device = Annotated[
    str | None, typer.Option("--device", metavar="DEVICE", help="auto, cpu, gpu or gpu:N, instead of the spec's.")
]


def overrides(changes: list[str] | None, settings: Path | None = None) -> dict[str, Any]:
    """The ``--set`` options as a mapping; values are YAML texts. They win over those of a ``--settings`` file."""
    result: dict[str, Any] = {}
    if settings is not None:
        from ..pipelines.tune import read_settings

        result |= read_settings(settings)
    for change in changes or []:
        key, equals, value = change.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"needs KEY=VALUE, got {change!r}", param_hint="--set")
        result[key] = value
    return result


def say(line: str) -> None:
    """A line for the user that is not the command's result."""
    typer.echo(line if _has_place(line) else f"dali-run: {line}", err=True)


def _has_place(line: str) -> bool:
    """The line starts with file:line:column, which editors and people find better bare."""
    head = line.split(": ", 1)[0].rsplit(":", 2)
    return len(head) == 3 and head[1].isdigit() and head[2].isdigit()


def print_json(data: Any) -> None:
    """The command's result for machines."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def console() -> Console:
    """Where tables go: stdout, as wide as the terminal, 110 columns without one."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 110)
