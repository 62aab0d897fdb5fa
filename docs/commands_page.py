"""Generator of docs/commands.md: the help of every command, taken from the commands themselves."""

from __future__ import annotations

import re
from typing import Any

import typer

from dali_run.cli import main as cli

_HEAD = """# Commands

Written by `make docs` from the commands' own help (`dali-run COMMAND --help`). Exit codes: 0 clean, 1 failed, 2 wrong
spec or usage, 3 finished with rejects within the limit, 130 interrupted. A path on the command line that does not
exist is wrong usage; data that a spec names and that does not exist fails the job. `--json` prints the result, or the
error, as [JSON for programs](json.md). `dali-run --install-completion` sets up completion in the shell.
"""


def commands_page() -> str:
    """Return the page as Markdown."""
    group: Any = typer.main.get_command(cli.app)
    parts = [_HEAD, "| command | |", "|---|---|"]
    commands = {module.NAME: group.get_command(None, module.NAME) for module in cli.COMMANDS}
    for name, command in commands.items():
        parts.append(f"| [{name}](#{name}) | {_cell(_text(command.help).splitlines()[0])} |")
    parts += [_section(name, command) for name, command in commands.items()]
    return "\n".join(parts).rstrip() + "\n"


def _section(name: str, command: Any) -> str:
    text, examples = _text(command.help), _text(command.epilog).removeprefix("Examples:")
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not getattr(p, "hidden", False)]
    usage = " ".join(["dali-run", name, *map(_argument, arguments), "[OPTIONS]"])
    lines = ["", f"## {name}", "", f"    {usage}", "", text.strip()]
    rows = [(_argument(p), getattr(p, "help", "")) for p in arguments]
    rows += [(_option(p), p.help) for p in options if p.name != "help"]
    if rows:
        lines += ["", "| | |", "|---|---|", *(f"| `{_cell(a)}` | {_cell(b or '')} |" for a, b in rows)]
    if examples:
        lines += ["", *(f"    {line.strip()}" for line in examples.strip().splitlines())]
    return "\n".join(lines)


def _text(help: str | None) -> str:
    """Return a help text without click's marks, with each paragraph on a line of its own."""
    return re.sub(r"\n{3,}", "\n\n", (help or "").replace("\b\n", "")).strip()


def _argument(p: Any) -> str:
    name = str(p.metavar or p.name.upper()) + "..." * (p.nargs == -1)
    return name if p.required else f"[{name}]"


def _option(p: Any) -> str:
    value = "" if p.is_flag else f" {p.metavar or p.name.upper()}"
    names = ", ".join([*reversed(p.opts), *p.secondary_opts])
    return f"{names}{value}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
