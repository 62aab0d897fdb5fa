"""Progress of a job: a bar on a terminal, a plain line every few seconds without one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, Task
    from rich.text import Text

from .output import Unfailing, remark

SECONDS_BETWEEN_LINES = 5.0
_REFRESHES_PER_SECOND = 8


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


Report = Callable[[State], None]


@contextmanager
def shown(*, quiet: bool) -> Iterator[Report]:
    """Something to call with the state after every batch; shows it on stderr in the way that fits there."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with _bar() as progress:
            task = progress.add_task("", total=None, rejected=0)

            def show(state: State) -> None:
                what = "" if state.done else "preparing"  # the first run on a machine compiles
                progress.update(
                    task, description=what, completed=state.done, total=state.total, rejected=state.rejected
                )

            yield show
    else:
        yield Lines()


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
    """``12,000 of 50,000 samples (24 %), 4,000/s, 9.50 s left, 3 rejected``."""
    from ..pipelines.wording import duration, rate

    elapsed = max(now - state.started, 1e-9)
    speed = state.done / elapsed
    text = f"{state.done:,} of {state.total:,} samples ({state.done / max(state.total, 1):.0%}), {rate(speed)}"
    if speed:
        text += f", {duration((state.total - state.done) / speed)} left"
    return f"{text}, {state.rejected:,} rejected"


def _bar() -> Progress:
    from rich.console import Console
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
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        Rate(),
        TextColumn("eta"),
        TimeRemainingColumn(),
        TextColumn("[yellow]{task.fields[rejected]} rejected"),
        console=Console(file=Unfailing(sys.stderr)),  # type: ignore[arg-type]
        refresh_per_second=_REFRESHES_PER_SECOND,
        transient=True,
    )
