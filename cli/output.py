"""Parts of all commands: options with one meaning everywhere, and where output goes."""

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


Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="YAML spec of a job, or a name of dali-run configs.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a variable (data=...) or a value (pipeline.seed=7, graph.resize.size=64).",
    ),
]
Plugins = Annotated[bool, typer.Option("--plugins", help="Run the Python files that the spec names.")]
FollowLinks = Annotated[
    bool, typer.Option("--follow-links", help="Read what symbolic links lead to, outside of the data set, too.")
]
Settings = Annotated[
    Path | None, typer.Option("--settings", metavar="FILE", help="Overrides in a YAML file, as dali-run tune writes.")
]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="DEVICE", help="auto, cpu, gpu, gpu:N, gpu:all; instead of the spec's."),
]


def writable(path: Path | None) -> Path | None:
    """Refuses, before any work is done, a file that could not be written in the end."""
    if path is None:
        return None
    folder = path.parent
    if path.is_dir():
        problem = f"{path} is a folder"
    elif not folder.is_dir():
        problem = f"{folder} is no folder"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        problem = f"{path} cannot be written"
    else:
        return path
    raise typer.BadParameter(f"{problem}; name a file in a folder that exists")


def written_to(help: str) -> Any:
    """The option of a file that is written when all is done: ``PATH``, checked before."""
    return typer.Option(metavar="PATH", help=help, callback=writable)


def check_exists(path: str) -> None:
    """Refuses a path that is not there: what a command line names and is missing is wrong usage (2), whatever the
    command. URLs are looked at when they are opened. Raises SpecError."""
    from ..ops.errors import SpecError
    from ..ops.storage.urls import is_url, plain_path

    if not is_url(path) and not os.path.exists(plain_path(path)):
        raise SpecError(f"{path}: there is no such file or folder")


def overrides(changes: list[str] | None, settings: Path | None = None) -> dict[str, Any]:
    """The ``--set`` options as a mapping; values are YAML texts. They win over those of a ``--settings`` file."""
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
    """A line of the command's result, on stdout."""
    typer.echo(_broken(printable(text), sys.stdout))


def remark(text: str) -> None:
    """A line on stderr as it is. Nobody may be there to read it: that is no reason to end a job."""
    with contextlib.suppress(OSError, ValueError):
        typer.echo(_broken(printable(text), sys.stderr), err=True)
        return
    to_nowhere(2)


def _broken(text: str, stream: Any) -> str:
    """A sentence broken between words where a terminal would break it within them; elsewhere, and where it is more than
    one line, as it is. A command in it stays on a line of its own, to be copied."""
    width = shutil.get_terminal_size().columns
    if len(text) <= width or "\n" in text or not stream.isatty():
        return text
    head, command, rest = text.partition(": dali-run ")
    lines = textwrap.wrap(f"{head}:" if command else head, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*lines, *([command[2:] + rest] if command else [])])


def say(line: str) -> None:
    """A line for the user that is not the command's result, on stderr."""
    remark(line if _has_place(line) else f"dali-run: {line}")


def to_nowhere(fd: int) -> None:
    """Discard everything printed to ``fd`` from here on; Python's own flush at its end, too."""
    null = os.open(os.devnull, os.O_WRONLY)
    if null != fd:
        os.dup2(null, fd)
        os.close(null)


class Unfailing:
    """A stream that forgets what nobody takes."""

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
    """A process that was started without stdin, stdout or stderr (``>&-``) gets empty ones: else the next file that it
    opens, a shard, say, would be what libraries print into."""
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
    """The stream takes every character."""
    return "utf" in (getattr(stream, "encoding", None) or "utf-8").lower()


def _has_place(line: str) -> bool:
    """The line starts with file:line:column, which editors and people find better bare."""
    head = line.split(": ", 1)[0].rsplit(":", 2)
    return len(head) == 3 and head[1].isdigit() and head[2].isdigit()


def print_json(data: Any) -> None:
    """The command's result for machines."""
    text = json.dumps(data, indent=2, ensure_ascii=not _any_text(sys.stdout), default=str)
    typer.echo(CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text))  # as `printable`, in JSON's way


_PLAIN = str.maketrans("━─▁▂▃▄▅▆▇█…", "=-..::+*##~")
"""Instead of characters that a stream without UTF-8 cannot show."""


def console(stream: Any = None) -> Console:
    """Where tables go: stdout, as wide as the terminal; without one as wide as COLUMNS says, else 110 columns."""
    from rich.console import Console
    from rich.segment import Segment

    class Safe(Console):
        """Escapes what is printed where it becomes text and colours of ours are still apart from it."""

        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            plain = not _any_text(self.file)
            for segment in super().render(renderable, options):
                if segment.control is None and (safe := printable(segment.text)) != segment.text:
                    segment = Segment(safe, segment.style)
                yield Segment(segment.text.translate(_PLAIN), segment.style, segment.control) if plain else segment

    terminal = (sys.stdout if stream is None else stream).isatty()
    asked = os.environ.get("COLUMNS", "")
    piped = (int(asked) if asked.isdecimal() else 0) or 110
    return Safe(file=stream, highlight=False, soft_wrap=False, width=None if terminal else piped)


@contextmanager
def errors_as_json(wanted: bool) -> Iterator[None]:
    """``--json`` of a job: what fails before there is a result is JSON on stdout, too, beside its lines on stderr;
    Ctrl-C, too. (`main` does it for the errors of all commands.)"""
    try:
        yield
    except KeyboardInterrupt:
        if wanted:
            error_as_json(INTERRUPTED, "interrupted")
        say("interrupted")
        raise


def error_as_json(code: int, message: str) -> None:
    """An error in the form of a job's result."""
    print_json({"exit_code": code, "message": message, "path": None, "report": {}})


@contextmanager
def done(exit_code: int) -> Iterator[None]:
    """For printing a result, then ending with ``exit_code``. A reader that has gone (``| head -1``), or a disk without
    room for the words, changes nothing: the job is what counts."""
    try:
        yield
        sys.stdout.flush()
    except (OSError, ValueError, SystemExit) as e:  # rich ends the process where it cannot print
        to_nowhere(1)
        if not isinstance(e, (BrokenPipeError, SystemExit)):
            say(f"the result could not be printed: {getattr(e, 'strerror', None) or e}")
    raise typer.Exit(exit_code)


def end_with(result: JobResult, *, json: bool, quiet: bool) -> None:
    """Print the result of a job, as one JSON object or for people, and end with its exit code."""
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
