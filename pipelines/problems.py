"""Problems of a spec: collected while it is read, so that all of them are reported at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..ops.errors import SpecError
from .graph import Mark

MOST_SHOWN = 50
MOST_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and where."""

    mark: Mark | None
    text: str

    def __str__(self) -> str:
        return f"{self.mark}: {self.text}" if self.mark else self.text


class SpecErrors(SpecError):  # noqa: N818 - several errors in one
    """Everything that is wrong with a spec, in the order of its text; one line each."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        shown = [str(p) for p in problems[:MOST_SHOWN]]
        if len(problems) > MOST_SHOWN:
            shown.append(f"... and {len(problems) - MOST_SHOWN} more")
        super().__init__("\n".join(shown))


@dataclass(slots=True)
class Problems:
    """A list that knows no duplicates."""

    found: list[Problem] = field(default_factory=list)

    def add(self, mark: Mark | None, text: object) -> None:
        """Note ``text`` at ``mark``. Texts are kept to one line of bounded length, whatever the spec quotes into it."""
        line = " ".join(str(text).split())
        if len(line) > MOST_CHARACTERS:
            line = line[: MOST_CHARACTERS - 4] + " ..."
        problem = Problem(mark, line)
        if problem not in self.found:
            self.found.append(problem)

    def __bool__(self) -> bool:
        return bool(self.found)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.found)

    def raise_any(self) -> None:
        """Raise SpecErrors if there are problems."""
        if self.found:
            place = {p: (p.mark.line, p.mark.column) if p.mark else (0, 0) for p in self.found}
            raise SpecErrors(sorted(self.found, key=lambda p: place[p]))


def show(value: Any) -> str:
    """``value`` quoted for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else text[:56] + " ..."
