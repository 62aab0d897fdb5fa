"""The command ``dali-run``: help, exit codes and one-line errors for all commands, which have one file each.

Only typer is imported before a command runs, so that help and completion respond at once.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from inspect import cleandoc
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

from . import (
    bench,
    configs,
    convert,
    dedupe,
    init,
    inspect,
    merge,
    ops,
    plan,
    retry_failed,
    run,
    sample_data,
    schema,
    serve_model,
    stats,
    top,
    tune,
    validate,
    verify,
)
from .dali import convert_pipeline, port
from .interrupts import interruptible
from .machine import doctor, warm
from .output import INTERRUPTED, JOB_FAILED, USAGE, error_as_json, open_missing_streams, remark, say, tell, to_nowhere


class _Commands(TyperGroup):
    """Group of all commands. Its help prints their summaries in full, which click shortens on narrow terminals."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, self.commands[name].get_short_help_str(limit=200)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _show_version(requested: bool) -> None:
    if requested:
        from ..version import __version__

        tell(f"dali-run {__version__}")
        raise typer.Exit


def options(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Process media data sets from a YAML spec, on CPU and GPU.

    A job reads samples, transforms them, writes shards, and reports on its speed and on rejected samples.
    """
    del version  # its callback has printed it
    if ctx.invoked_subcommand is None:
        remark(ctx.get_help())
        raise typer.Exit(USAGE)


COMMANDS = (
    init, run, top, validate, plan, inspect, stats, dedupe, verify, merge, retry_failed, convert, convert_pipeline,
    bench, tune, ops, configs, schema, doctor, warm, sample_data, port, serve_model,
)  # fmt: skip


def _typer(modules: Iterable[Any]) -> typer.Typer:
    """Return the command line ``dali-run`` with the commands that ``modules`` define."""
    group = typer.Typer(
        name="dali-run",
        cls=_Commands,
        epilog="\b\nExamples:\n  dali-run sample-data data\n  dali-run run quickstart",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    group.callback(invoke_without_command=True)(options)
    for module in modules:
        purpose, _, examples = cleandoc(module.command.__doc__).partition(
            "\n\b\nExamples:"
        )  # printed last, as an epilog
        group.command(module.NAME, help=purpose, epilog=f"\b\nExamples:{examples}")(module.command)
    return group


app = _typer(COMMANDS)
_NAMES = {module.NAME: module for module in COMMANDS}


@cache
def _with(command: str) -> Any:
    """Return the command line ``dali-run`` with only one command, to start faster: typer reads the signature of each
    registered command, which takes 3 ms."""
    return typer.main.get_command(_typer([_NAMES[command]]))


_ClickError: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException; typer may bundle its own copy of click


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code. Errors become lines on stderr, never a traceback."""
    open_missing_streams()
    if arguments is None:  # the process ends afterwards, and a garbage collection at exit would take 0.1 to 0.3 s
        atexit.register(gc.freeze)
    code = INTERRUPTED
    try:
        with interruptible(process=arguments is None):
            code = _run(arguments)
    except KeyboardInterrupt:  # a second interrupt, while the first one was handled
        if arguments is not None:
            raise
    if arguments is None:
        _leave_hung_gpus(code)
    return code


def _leave_hung_gpus(code: int) -> None:
    """End the process immediately if a GPU hangs: at a normal exit, CUDA would wait for it."""
    watchdog = sys.modules.get("dali_run.ops.gpu.watchdog")
    if watchdog is not None and watchdog.any_hung():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        words = sys.argv[1:] if arguments is None else arguments
        line = _with(words[0]) if words and words[0] in _NAMES else app
        return line(args=arguments, prog_name="dali-run", standalone_mode=False) or 0  # 130 for Ctrl-C
    except KeyboardInterrupt:  # outside of typer's handler
        return INTERRUPTED
    except BrokenPipeError:  # the reader has ended: `dali-run ops | head`
        to_nowhere(1)
        return 0
    except Exception as e:
        usage = isinstance(e, _ClickError)
        if not usage and os.environ.get("DALI_RUN_DEBUG") == "1":
            raise
        code, message = _usage(e) if usage else _error(e)
        for line in message.splitlines():
            (remark if usage else say)(line)
        if "--json" in (sys.argv[1:] if arguments is None else arguments):
            with contextlib.suppress(OSError, ValueError):  # stdout has no reader
                error_as_json(code, message)
        return code


def _usage(error: Exception) -> tuple[int, str]:
    """Return exit code and message for an error in the use of the command line."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx else "dali-run"
    message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
    option = getattr(error, "option_name", "")
    if option and getattr(error, "possibilities", None) is not None:
        others = [name for name in _NAMES if option in _options(name)]
        message += f"; {option} is an option of {', '.join(others)}" if others else ""
    return USAGE, f"{path}: {message}; see {path} --help"


def _options(command: str) -> set[str]:
    """Return the options of a command, such as ``--limit``."""
    return {option for parameter in _with(command).commands[command].params for option in parameter.opts}


def _error(error: Exception) -> tuple[int, str]:
    """Return exit code and message for an exception that a command raised."""
    from ..ops.errors import DaliRunError, SpecError

    if isinstance(error, DaliRunError):
        return USAGE if isinstance(error, SpecError) else JOB_FAILED, str(error)
    from ..pipelines.engine.errors import as_user_error

    if isinstance(user_error := as_user_error(error), DaliRunError):
        return JOB_FAILED, str(user_error)
    if isinstance(error, OSError):
        return JOB_FAILED, f"{error.filename}: {error.strerror}" if error.filename else str(error)
    text = " ".join(str(error).split())
    return JOB_FAILED, (
        f"internal error: {type(error).__name__}: {text}; please report it, with the output of the same command under "
        "DALI_RUN_DEBUG=1 and the output of dali-run doctor"
    )


if __name__ == "__main__":
    sys.exit(main())
