"""Problems of a spec: collected while it is read, so that all of them are reported at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..ops.errors import SpecError

MOST_FOUND = 100
"""Number of problems after which a spec is not checked further."""
MOST_SHOWN = 50
MOST_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class Mark:
    """A position in the user's text (line and column count from 1). Column 0 stands for the whole line, line 0 for the
    whole ``file``."""

    file: str
    line: int
    column: int
    label: str = ""
    """The position in words for the user, for example ``step 3 (resize)``."""

    def __str__(self) -> str:
        return ":".join([self.file, *(str(n) for n in (self.line, self.column) if n)])


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a spec, with its position."""

    mark: Mark | None
    text: str

    def __str__(self) -> str:
        return f"{self.mark}: {self.text}" if self.mark else self.text


class SpecErrors(SpecError):  # noqa: N818 - several errors in one
    """Error with all problems of a spec, in the order of the text, one line each."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        shown = [str(p) for p in problems[:MOST_SHOWN]]
        if len(problems) > MOST_SHOWN:
            more = len(problems) - MOST_SHOWN
            shown.append(f"... and {more} more" + (" at least" if len(problems) >= MOST_FOUND else ""))
        super().__init__("\n".join(shown))


@dataclass(slots=True)
class Problems:
    """Collection of the problems found so far in a spec, without duplicates, in the order of their discovery."""

    found: dict[Problem, None] = field(default_factory=dict)

    def add(self, mark: Mark | None, text: object) -> None:
        """Add the problem ``text`` at ``mark``. Line breaks are replaced, and long texts shortened, whatever the spec
        quotes in them.

        Raises SpecErrors when `MOST_FOUND` problems are found.
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
        """Raise SpecErrors with all problems found so far, if there are any."""
        if self.found:
            position = {p: (p.mark.line, p.mark.column) if p.mark else (0, 0) for p in self.found}
            raise SpecErrors(sorted(self.found, key=lambda p: position[p]))


def show(value: Any) -> str:
    """Return ``value`` in quotes for a message, shortened to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:56] + " ..."
