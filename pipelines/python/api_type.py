"""PipelineAPIType: the ways to run a pipeline, of which a program uses one."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator


class PipelineAPIType(enum.Enum):
    """Way to run a pipeline: `Pipeline.run`, an iterator of a framework, or `schedule_run` with `share_outputs`."""

    BASIC = 0
    ITERATOR = 1
    SCHEDULED = 2


class ApiCheck:
    """Check of one pipeline, owned by it: another way than the first one is refused, as DALI does. Each way may use the
    others' methods (`scope`)."""

    __slots__ = ("used", "wanted")

    def __init__(self) -> None:
        self.used: PipelineAPIType | None = None
        """The first way; None before the first run."""
        self.wanted = True
        """Whether mixtures are refused at the moment."""

    def check(self, way: PipelineAPIType) -> None:
        """Raise RuntimeError if the pipeline was run in another ``way``."""
        if self.wanted and self.used is not way:
            if self.used is not None:
                raise RuntimeError(
                    f"the pipeline is run in two ways: {self.used.name} before, now {way.name}; use run() alone, an "
                    "iterator alone, or schedule_run() with share_outputs() (enable_api_check(False) allows mixtures)"
                )
            self.used = way

    @contextlib.contextmanager
    def scope(self, way: PipelineAPIType) -> Iterator[None]:
        """Check ``way``, and nothing in the body."""
        self.check(way)
        before, self.wanted = self.wanted, False
        try:
            yield
        finally:
            self.wanted = before
