"""Tables that fit: at any width every row says what it is about. Narrow terminals get fewer columns, or paragraphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

Row = Sequence[str | Text]

_GAP = 2
"""Blanks between columns."""
_READABLE = 22
"""Columns of the terminal below which running text is no pleasure to read."""
_INDENT = 4
_SPEAKING = ("", "on", "operator", "summary", "meaning", "type", "dtype", "field", "holds", "engine")
"""Columns whose cells need no name beside them."""


@dataclass(frozen=True, slots=True)
class FittingTable:
    """A plain table, as wide as it may be.

    Where it does not fit, columns go, in the order of ``dispensable``. Where it does not fit even then, every row
    becomes a paragraph: its first cell, and the others after it or below it. Cells are text: what looks like rich's
    markup in them is shown as it is.
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    numbers: Sequence[str] = ()
    """Columns that are right-aligned and never wrapped."""
    dispensable: Sequence[str] = ()
    """Columns that may be left out, the first ones first; an unnamed one (a bar) is ``""``."""

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(_READABLE, options.max_width), options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in self.rows]
        widths = [max([len(name), *(_width(row[i]) for row in rows)]) for i, name in enumerate(self.columns)]
        shown = [i for i, name in enumerate(self.columns) if not rows or name not in self.dispensable or
                 any(row[i].plain for row in rows)]  # fmt: skip
        for name in [None, *self.dispensable]:
            shown = [i for i in shown if name is None or self.columns[i] != name]
            if self._least(shown, widths, options.max_width) <= options.max_width:
                yield self._table(shown, rows, widths, options.max_width)
                return
        yield from self._paragraphs(shown, rows, options.max_width)

    def _least(self, shown: Sequence[int], widths: Sequence[int], room: int) -> int:
        """Columns of the terminal that the table takes at least, if it is to be read with ease."""
        return sum(self._narrowest(i, widths, room) for i in shown) + _GAP * (len(shown) - 1)

    def _narrowest(self, i: int, widths: Sequence[int], room: int) -> int:
        if self.columns[i] in self.numbers:
            return widths[i]
        return min(widths[i], room // 2 if i == 0 else _READABLE)

    def _table(self, shown: Sequence[int], rows: Sequence[Sequence[Text]], widths: Sequence[int], room: int) -> Table:
        made = Table(box=None, header_style="dim", pad_edge=False, padding=(0, _GAP, 0, 0),
                     show_header=any(self.columns))  # fmt: skip
        for i in shown:
            number = self.columns[i] in self.numbers
            made.add_column(Text(self.columns[i]), justify="right" if number else "left", no_wrap=number,
                            overflow="fold", min_width=self._narrowest(i, widths, room))  # fmt: skip
        for row in rows:
            made.add_row(*(row[i] for i in shown))
        return made

    def _paragraphs(self, shown: Sequence[int], rows: Sequence[Sequence[Text]], room: int) -> RenderResult:
        """Every row's first cell, and below it the others, as many to a line as fit. Where some first cells are empty,
        those rows belong to the one above, and first cells are headings."""
        grouped = any(not row[0].plain for row in rows)
        for row in rows:
            cells = [self._told(i, row[i]) for i in shown if row[i].plain]
            if row[0].plain:
                first = cells.pop(0)
                first.overflow = "fold"
                while cells and not grouped and _width(first) + _GAP + _width(cells[0]) <= room:
                    first = Text.assemble(first, " " * _GAP, cells.pop(0))
                yield first
            for k, line in enumerate(_packed(cells, room - 2 * _INDENT)):
                yield Padding(line, (0, 0, 0, _INDENT * (2 if grouped and k else 1)))

    def _told(self, i: int, cell: Text) -> Text:
        """A cell on its own: one line, with its column's name where it does not speak for itself."""
        text = Text(", ").join(cell.split("\n"))
        return text if i == 0 or self.columns[i] in _SPEAKING else Text.assemble((f"{self.columns[i]} ", "dim"), text)


def _packed(cells: Sequence[Text], room: int) -> list[Text]:
    lines: list[Text] = []
    for cell in cells:
        cell.overflow = "fold"
        if lines and _width(lines[-1]) + _GAP + _width(cell) <= room:
            lines[-1] = Text.assemble(lines[-1], " " * _GAP, cell)
        else:
            lines.append(cell)
    return lines


def _width(text: Text) -> int:
    return max((Text(line).cell_len for line in text.plain.split("\n")), default=0)


def table(
    columns: Sequence[str], rows: Sequence[Row], *, numbers: Sequence[str] = (), dispensable: Sequence[str] = ()
) -> FittingTable:
    """A table of ``rows``; columns named in ``numbers`` are right-aligned and never wrapped, those in ``dispensable``
    are left out, one after the other, where there is no room."""
    return FittingTable(columns, rows, numbers, dispensable)


LINES = 21
"""Lines that a summary takes at most: with the command above it and what follows it, one screen of 24."""
_FEWEST = 3
"""Rows that are shown however little room there is."""


@dataclass(frozen=True, slots=True)
class OneScreen:
    """A view that fits one screen: ``of`` makes it with so many rows at most, out of ``rows``."""

    of: Callable[[int], RenderableType]
    rows: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for most in range(max(self.rows, _FEWEST), _FEWEST - 1, -1):
            view = self.of(most)
            if len(console.render_lines(view, options, pad=False)) <= LINES:
                break
        yield view
