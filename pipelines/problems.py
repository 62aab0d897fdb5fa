"""Problems of a spec: collected while it is read, so that all of them are reported at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..ops.errors import SpecError

MOST_FOUND = 100
"""Where looking for more ends: the rest of such a file is no better."""
MOST_SHOWN = 50
MOST_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class Mark:
    """Where something stands in the user's text (1-based); column 0 is the whole line, line 0 all of ``file``."""

    file: str
    line: int
    column: int
    label: str = ""
    """The place in words: ``step 3 (resize)``."""

    def __str__(self) -> str:
        return ":".join([self.file, *(str(n) for n in (self.line, self.column) if n)])


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
            more = len(problems) - MOST_SHOWN
            shown.append(f"... and {more} more" + (" at least" if len(problems) >= MOST_FOUND else ""))
        super().__init__("\n".join(shown))


@dataclass(slots=True)
class Problems:
    """A list that knows no duplicates."""

    found: dict[Problem, None] = field(default_factory=dict)

    def add(self, mark: Mark | None, text: object) -> None:
        """Note ``text`` at ``mark``. Texts are kept to one line of bounded length, whatever the spec quotes into it.

        Raises SpecErrors when there are `MOST_FOUND`.
        """
        line = " ".join(str(text).split())
        if len(line) > MOST_CHARACTERS:
            line = line[: MOST_CHARACTERS - 4] + " ..."
        self.found[Problem(mark, line)] = None
        if len(self.found) >= MOST_FOUND:
            self.raise_any()

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
