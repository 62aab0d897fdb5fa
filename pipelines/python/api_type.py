"""PipelineAPIType: the three ways to run a pipeline, which a program must not mix."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator


class PipelineAPIType(enum.Enum):
    """A way to run a pipeline: `Pipeline.run`, an iterator of a framework, or `schedule_run` with `share_outputs`."""

    BASIC = 0
    ITERATOR = 1
    SCHEDULED = 2


class ApiCheck:
    """Check, as in DALI, that a program does not mix several ways to run one pipeline, such as `Pipeline.run` and
    `schedule_run`. Owned by the pipeline. Inside `scope`, methods of the other ways may be called too."""

    __slots__ = ("used", "wanted")

    def __init__(self) -> None:
        self.used: PipelineAPIType | None = None
        """The way in which the pipeline was run first, such as `Pipeline.run`; None before the first run."""
        self.wanted = True
        """Whether `check` is switched on: it is off inside `scope`."""

    def check(self, api: PipelineAPIType) -> None:
        """Raise RuntimeError if the pipeline was already run in a way other than ``api``."""
        if self.wanted and self.used is not api:
            if self.used is not None:
                raise RuntimeError(
                    f"the pipeline is run in two ways: {self.used.name} before, now {api.name}; use run() alone, an "
                    "iterator alone, or schedule_run() with share_outputs() (enable_api_check(False) allows mixing)"
                )
            self.used = api

    @contextlib.contextmanager
    def scope(self, api: PipelineAPIType) -> Iterator[None]:
        """Return a context manager that calls `check` for ``api`` at its start, and switches the check off in its
        body."""
        self.check(api)
        before, self.wanted = self.wanted, False
        try:
            yield
        finally:
            self.wanted = before
