"""Shared parts of all commands: common options, and printing of results, messages and JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..pipelines.wording import CONTROL, printable

if TYPE_CHECKING:
    from rich.console import Console

    from ..pipelines.job.run import JobResult

JOB_FAILED, USAGE, REJECTS, INTERRUPTED = 1, 2, 3, 130


Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="YAML spec of a job, or a name from `dali-run configs`.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a variable (data=...) or a value (pipeline.seed=7, graph.resize.size=64).",
    ),
]
Plugins = Annotated[bool, typer.Option("--plugins", help="Allow running the Python files that the spec names.")]
FollowLinks = Annotated[
    bool, typer.Option("--follow-links", help="Follow symbolic links in the data set that point outside of it.")
]
Settings = Annotated[
    Path | None, typer.Option("--settings", metavar="FILE", help="YAML file with overrides, written by dali-run tune.")
]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="DEVICE", help="Device instead of the spec's: auto, cpu, gpu, gpu:N, gpu:all."),
]


def writable(path: Path | None) -> Path | None:
    """Return ``path``, a file to be written at the end. Raise BadParameter if it cannot be written, before any work is
    done."""
    if path is None:
        return None
    folder = path.parent
    if path.is_dir():
        problem = f"{path} is a folder"
    elif not folder.is_dir():
        problem = f"{folder} is not a folder"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        problem = f"{path} is not writable"
    else:
        return path
    raise typer.BadParameter(f"{problem}; name a file in an existing folder")


def written_to(help: str) -> Any:
    """Return a command's option for a file that is written at the end. Whether it can be written is checked at the
    start."""
    return typer.Option(metavar="PATH", help=help, callback=writable)


def check_exists(path: str) -> None:
    """Raise SpecError if ``path`` does not exist: a missing file on the command line is wrong usage (exit code 2) for
    all commands. URLs are checked when they are opened."""
    from ..ops.errors import SpecError
    from ..ops.storage.urls import is_url, plain_path

    if not is_url(path) and not os.path.exists(plain_path(path)):
        raise SpecError(f"{path}: there is no such file or folder")


def overrides(changes: list[str] | None, settings: Path | None = None) -> dict[str, Any]:
    """Return the ``--set`` options as a mapping; values are YAML texts. They take precedence over a ``--settings``
    file."""
    result: dict[str, Any] = {}
    if settings is not None:
        from ..pipelines.bench.tune import read_settings

        result |= read_settings(settings)
    for change in changes or []:
        key, equals, value = change.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"needs KEY=VALUE, got {change!r}", param_hint="--set")
        result[key] = value
    return result


def tell(text: str) -> None:
    """Print a line that belongs to the command's result, on stdout."""
    typer.echo(_broken(printable(text), sys.stdout))


def remark(text: str) -> None:
    """Print a line on stderr without a prefix. A closed stderr must not end a job."""
    with contextlib.suppress(OSError, ValueError):
        typer.echo(_broken(printable(text), sys.stderr), err=True)
        return
    to_nowhere(2)


def _broken(text: str, stream: Any) -> str:
    """Break ``text`` between words, if it is one line that is longer than the terminal is wide. Other text is
    unchanged. A dali-run command at the end gets its own line, so that it can be copied."""
    width = shutil.get_terminal_size().columns
    if len(text) <= width or "\n" in text or not stream.isatty():
        return text
    head, command, rest = text.partition(": dali-run ")
    lines = textwrap.wrap(f"{head}:" if command else head, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*lines, *([command[2:] + rest] if command else [])])


def say(line: str) -> None:
    """Print a message that is not part of the command's result, on stderr with the prefix ``dali-run:``."""
    remark(line if _has_place(line) else f"dali-run: {line}")


def to_nowhere(fd: int) -> None:
    """Discard all further output to the file descriptor ``fd``, including Python's flush at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    if null != fd:
        os.dup2(null, fd)
        os.close(null)


class Unfailing:
    """Wrapper of a stream that ignores errors when writing."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def open_missing_streams() -> None:
    """Open empty streams for a process that was started without stdin, stdout or stderr (``>&-``). Otherwise the next
    opened file, for example a shard, would get their number, and libraries would print into it."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            to_nowhere(fd)
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, "w" if fd else "r", closefd=False, errors="replace"))  # noqa: SIM115
        elif fd and not _any_text(stream := getattr(sys, name)) and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _any_text(stream: Any) -> bool:
    """Return whether the stream can encode every character."""
    return "utf" in (getattr(stream, "encoding", None) or "utf-8").lower()


def _has_place(line: str) -> bool:
    """Return whether the line starts with file:line:column, which editors recognize without a prefix."""
    head = line.split(": ", 1)[0].rsplit(":", 2)
    return len(head) == 3 and head[1].isdigit() and head[2].isdigit()


def print_json(data: Any) -> None:
    """Print the command's result as JSON."""
    text = json.dumps(data, indent=2, ensure_ascii=not _any_text(sys.stdout), default=str)
    # escapes control characters like `printable`, but in JSON's notation
    typer.echo(CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


_PLAIN = str.maketrans("━─▁▂▃▄▅▆▇█…", "=-..::+*##~")
"""Replacements for characters that streams without UTF-8 cannot display."""


def console(stream: Any = None) -> Console:
    """Return a console for printing tables to ``stream``, by default stdout. It is as wide as the terminal; for other
    streams it has COLUMNS or else 110 columns."""
    from rich.console import Console
    from rich.segment import Segment

    class Safe(Console):
        """Console that escapes control characters in texts before it adds dali-run's own colors."""

        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            plain = not _any_text(self.file)
            for segment in super().render(renderable, options):
                if segment.control is None and (safe := printable(segment.text)) != segment.text:
                    segment = Segment(safe, segment.style)
                yield Segment(segment.text.translate(_PLAIN), segment.style, segment.control) if plain else segment

    terminal = (sys.stdout if stream is None else stream).isatty()
    columns = os.environ.get("COLUMNS", "")
    piped = (int(columns) if columns.isdecimal() else 0) or 110
    return Safe(file=stream, highlight=False, soft_wrap=False, width=None if terminal else piped)


@contextmanager
def errors_as_json(enabled: bool) -> Iterator[None]:
    """Context manager for commands that run a job. With ``--json`` (``enabled``), Ctrl-C before there is a result is
    also printed as JSON on stdout. (`main` does this for the errors of all commands.)"""
    try:
        yield
    except KeyboardInterrupt:
        if enabled:
            error_as_json(INTERRUPTED, "interrupted")
        say("interrupted")
        raise


def error_as_json(code: int, message: str) -> None:
    """Print an error as JSON on stdout, with the keys of a job's result."""
    print_json({"exit_code": code, "message": message, "path": None, "report": {}})


@contextmanager
def done(exit_code: int) -> Iterator[None]:
    """Context manager in whose body the result is printed; it then exits with ``exit_code``. A reader that has ended
    (``| head -1``) or a full disk does not change the exit code."""
    try:
        yield
        sys.stdout.flush()
    except (OSError, ValueError, SystemExit) as e:  # rich ends the process if it cannot print
        to_nowhere(1)
        if not isinstance(e, (BrokenPipeError, SystemExit)):
            say(f"the result could not be printed: {getattr(e, 'strerror', None) or e}")
    raise typer.Exit(exit_code)


def end_with(result: JobResult, *, json: bool, quiet: bool) -> None:
    """Print the result of a job, as one JSON object or as text for people, and exit with the job's exit code."""
    with done(result.exit_code):
        if json:
            print_json({"exit_code": result.exit_code, "message": result.message, "path": str(result.path),
                        "report": result.report})  # fmt: skip
        elif result.exit_code in (JOB_FAILED, INTERRUPTED):
            say(result.message)
        elif not quiet:
            if result.report and result.ran:
                from ..pipelines.show.terminal import report_view

                console().print(report_view(result.report))
            tell(result.message)
