"""Progress of a job: a bar on a terminal, a plain line every few seconds without one."""

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
    """The job's progress, after every batch."""

    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def rejected(self) -> int: ...
    @property
    def started(self) -> float:
        """time.perf_counter() of the start."""

    @property
    def status(self) -> Callable[[], Mapping[str, Any]]:
        """Gives all that is known of the job now."""


Report = Callable[[State], None]


def lively(stream: TextIO) -> bool:
    """The stream is a terminal that can draw over what it has drawn."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


@contextmanager
def counted(
    what: str, *, quiet: bool, amount: Callable[[float], str] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Callable[[int, int], None]]:  # fmt: skip
    """Something to call with what is done and with all of it: a bar, or a line every few seconds, with the rate and the
    time that is left. ``what`` is being done; ``amount`` writes a number of things, of bytes by default."""
    if quiet:
        yield lambda *_: None
        return
    from ..pipelines.wording import duration, size

    words = amount or size
    began = last = clock()

    def text(done: int, total: int, now: float) -> str:
        speed = done / max(now - began, 1e-9)
        return (f"{what} {words(done)} of {words(total)} ({done / max(total, 1):.0%}), {words(speed)}/s, "
                f"{duration((total - done) / speed)} left")  # fmt: skip

    if lively(sys.stderr):
        from rich.progress import BarColumn, Progress, TextColumn

        with Progress(BarColumn(None), TextColumn("{task.description}"), console=_console(), transient=True,
                      expand=True) as progress:  # fmt: skip
            task = progress.add_task(what, total=None)

            def draw(done: int, total: int) -> None:
                said = text(done, total, clock()) if done else what
                progress.update(task, completed=done, total=total, description=said)

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
    """Something to call with the state after every batch; shows it on stderr in the way that fits there: as a bar, with
    ``watch`` as the view of `dali-run top`, and without a terminal as lines."""
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

            looked, held = 0.0, ""

            def show_bar(state: State) -> None:
                nonlocal looked, held
                now = time.perf_counter()
                if now - looked >= _SECONDS_BETWEEN_LOOKS:
                    looked, held = now, _held(state.status())
                what = "" if state.done else "preparing"  # the first run on a machine compiles
                rejected = f"{state.rejected:,} rejected" if state.rejected else ""
                progress.update(task, description=what, completed=state.done, total=state.total, rejected=rejected,
                                held=held)  # fmt: skip

            yield show_bar
    else:
        yield Lines()


@contextmanager
def _watched() -> Iterator[Report]:
    """The view of the job itself, drawn anew a few times a second, whether batches come or not."""
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
    """A line at most every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last = clock()

    def __call__(self, state: State) -> None:
        now = self._clock()
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            remark(line(state, now))


def line(state: State, now: float) -> str:
    """``12,000 of 50,000 samples (24%), 4,000/s, 9.50 s left, 3 rejected; busiest: cpu 92%``."""
    from ..pipelines.wording import duration, rate

    elapsed = max(now - state.started, 1e-9)
    speed = state.done / elapsed
    text = f"{state.done:,} of {state.total:,} samples ({state.done / max(state.total, 1):.0%}), {rate(speed)}"
    if speed:
        text += f", {duration((state.total - state.done) / speed)} left"
    held = _held(state.status())
    return f"{text}, {state.rejected:,} rejected{f'; busiest: {held}' if held else ''}"


def _held(status: Mapping[str, Any]) -> str:
    """The busiest resource and its share: ``cpu 92%``."""
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
        """Samples per second, over the last half minute."""

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
