"""Progress of a job: a bar on a terminal, otherwise a line of text every few seconds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task
    from rich.text import Text

from .output import Unfailing, console, remark

SECONDS_BETWEEN_LINES = 5.0
_REFRESHES_PER_SECOND = 8
_WATCHED_PER_SECOND = 4
_SECONDS_BETWEEN_LOOKS = 0.5


class State(Protocol):
    """Protocol of a job's progress, which is reported after every batch."""

    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def rejected(self) -> int: ...
    @property
    def started(self) -> float:
        """Time at which the job started, as a value of `time.perf_counter`."""

    @property
    def status(self) -> Callable[[], Mapping[str, Any]]:
        """Function that returns the job's present state as a mapping, with facts such as its speed and bottleneck."""


Report = Callable[[State], None]


def lively(stream: TextIO) -> bool:
    """Return whether the stream is a terminal on which text can be overwritten."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


@contextmanager
def counted(
    verb: str, *, quiet: bool, amount: Callable[[float], str] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Callable[[int, int], None]]:  # fmt: skip
    """Context manager that shows the progress of some work on stderr, as a bar or as a line every few seconds, with
    rate and remaining time. It yields a function to call with (amount done, total). ``verb`` begins the text;
    ``amount`` formats an amount, by default as bytes."""
    if quiet:
        yield lambda *_: None
        return
    from ..pipelines.wording import duration, size

    words = amount or size
    began = last = clock()

    def text(done: int, total: int, now: float) -> str:
        speed = done / max(now - began, 1e-9)
        return (f"{verb} {words(done)} of {words(total)} ({done / max(total, 1):.0%}), {words(speed)}/s, "
                f"{duration((total - done) / speed)} left")  # fmt: skip

    if lively(sys.stderr):
        from rich.progress import BarColumn, Progress, TextColumn

        with Progress(BarColumn(None), TextColumn("{task.description}"), console=_console(), transient=True,
                      expand=True) as progress:  # fmt: skip
            task = progress.add_task(verb, total=None)

            def draw(done: int, total: int) -> None:
                label = text(done, total, clock()) if done else verb
                progress.update(task, completed=done, total=total, description=label)

            yield draw
    else:

        def tell(done: int, total: int) -> None:
            nonlocal last
            now = clock()
            if now - last >= SECONDS_BETWEEN_LINES and done:
                last = now
                remark(text(done, total, now))

        yield tell


@contextmanager
def shown(*, quiet: bool, watch: bool = False) -> Iterator[Report]:
    """Context manager that shows the progress of a job on stderr, as a bar, or as lines if it is not a terminal. With
    ``watch`` it shows the view of `dali-run top`. It yields a function to call with the state after every batch."""
    from ..ops.compiled.times import messages_to

    if quiet:
        with messages_to(lambda _: None):
            yield lambda _: None
    elif lively(sys.stderr) and watch:
        with _watched() as show:
            yield show
    elif lively(sys.stderr):
        with _bar() as progress, messages_to(lambda text: progress.console.print(text, highlight=False)):
            task = progress.add_task("", total=None, rejected="", held="")

            last_look, held = 0.0, ""

            def show_bar(state: State) -> None:
                nonlocal last_look, held
                now = time.perf_counter()
                if now - last_look >= _SECONDS_BETWEEN_LOOKS:
                    last_look, held = now, _held(state.status())
                what = "" if state.done else "preparing"  # the first run on a machine compiles
                rejected = f"{state.rejected:,} rejected" if state.rejected else ""
                progress.update(task, description=what, completed=state.done, total=state.total, rejected=rejected,
                                held=held)  # fmt: skip

            yield show_bar
    else:
        yield Lines()


@contextmanager
def _watched() -> Iterator[Report]:
    """Context manager that shows the job's view of `dali-run top`, refreshed several times a second, even if no batches
    arrive. It yields a function to call with the state after every batch."""
    from rich.live import Live
    from rich.text import Text as RichText

    from ..pipelines.show.live import live_view

    last: State | None = None

    def view() -> Any:
        if last is None:
            return RichText("preparing")
        status = last.status()
        return live_view(status) if status else RichText(line(last, time.perf_counter()))

    def show(state: State) -> None:
        nonlocal last
        last = state

    with Live(get_renderable=view, console=_console(), refresh_per_second=_WATCHED_PER_SECOND, transient=True):
        yield show


class Lines:
    """Progress of a job as lines on stderr, with at least `SECONDS_BETWEEN_LINES` between two lines."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last = clock()

    def __call__(self, state: State) -> None:
        now = self._clock()
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            remark(line(state, now))


def line(state: State, now: float) -> str:
    """Return progress as text: ``12,000 of 50,000 samples (24%), 4,000/s, 9.50 s left, 3 rejected; busiest: cpu
    92%``."""
    from ..pipelines.wording import duration, rate

    elapsed = max(now - state.started, 1e-9)
    speed = state.done / elapsed
    text = f"{state.done:,} of {state.total:,} samples ({state.done / max(state.total, 1):.0%}), {rate(speed)}"
    if speed:
        text += f", {duration((state.total - state.done) / speed)} left"
    held = _held(state.status())
    return f"{text}, {state.rejected:,} rejected{f'; busiest: {held}' if held else ''}"


def _held(status: Mapping[str, Any]) -> str:
    """Return the busiest resource of a job and its share as text: ``cpu 92%``; empty if unknown."""
    if "bottleneck" not in status:
        return ""
    from ..pipelines.show.live import held_back

    return held_back(status)


def _console() -> Console:
    return console(Unfailing(sys.stderr))


def _bar() -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text as RichText

    class Rate(ProgressColumn):
        """Column of a progress bar with the samples per second over the last 30 seconds."""

        def render(self, task: Task) -> Text:
            from ..pipelines.wording import rate

            return RichText(rate(task.speed or task.finished_speed), "cyan")

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(None),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
        TextColumn("[yellow]{task.fields[rejected]}"),
        TextColumn("{task.fields[held]}"),
        console=_console(),
        expand=True,
        refresh_per_second=_REFRESHES_PER_SECOND,
        transient=True,
    )
