"""Tables that fit any width: narrow terminals get fewer columns, or paragraphs."""

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
"""Number of blanks between two columns."""
_READABLE = 22
"""Width in characters below which running text is hard to read."""
_INDENT = 4
_SPEAKING = ("", "on", "operator", "summary", "meaning", "type", "dtype", "field", "holds", "engine")
"""Headings to omit if rows are printed as paragraphs, because the cells are clear without them."""


@dataclass(frozen=True, slots=True)
class FittingTable:
    """A plain table, as wide as the terminal allows.

    If it is too wide, columns are omitted, in the order of ``dispensable``. If it is still too wide, every row becomes
    a paragraph: its first cell, and the others after it or below it. Cells are plain text: markup of the library rich
    in them is displayed literally.
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    numbers: Sequence[str] = ()
    """Headings of the columns that are right-aligned and never wrapped."""
    dispensable: Sequence[str] = ()
    """Headings of the columns to omit if the terminal is too narrow, the first ones first; ``""`` is the heading of
    bars."""

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

    def _least(self, shown: Sequence[int], widths: Sequence[int], width: int) -> int:
        """Return the smallest width, in characters, at which a table of the columns ``shown`` (indices) is readable."""
        return sum(self._narrowest(i, widths, width) for i in shown) + _GAP * (len(shown) - 1)

    def _narrowest(self, i: int, widths: Sequence[int], width: int) -> int:
        if self.columns[i] in self.numbers:
            return widths[i]
        return min(widths[i], width // 2 if i == 0 else _READABLE)

    def _table(self, shown: Sequence[int], rows: Sequence[Sequence[Text]], widths: Sequence[int], width: int) -> Table:
        grid = Table(box=None, header_style="dim", pad_edge=False, padding=(0, _GAP, 0, 0),
                     show_header=any(self.columns))  # fmt: skip
        for i in shown:
            number = self.columns[i] in self.numbers
            grid.add_column(Text(self.columns[i]), justify="right" if number else "left", no_wrap=number,
                            overflow="fold", min_width=self._narrowest(i, widths, width))  # fmt: skip
        for row in rows:
            grid.add_row(*(row[i] for i in shown))
        return grid

    def _paragraphs(self, shown: Sequence[int], rows: Sequence[Sequence[Text]], width: int) -> RenderResult:
        """Yield the rows as paragraphs: the first cell, and below it the others, as many per line as fit. A row with an
        empty first cell continues the row above."""
        grouped = any(not row[0].plain for row in rows)
        for row in rows:
            cells = [self._told(i, row[i]) for i in shown if row[i].plain]
            if row[0].plain:
                first = cells.pop(0)
                first.overflow = "fold"
                while cells and not grouped and _width(first) + _GAP + _width(cells[0]) <= width:
                    first = Text.assemble(first, " " * _GAP, cells.pop(0))
                yield first
            for k, line in enumerate(_packed(cells, width - 2 * _INDENT)):
                yield Padding(line, (0, 0, 0, _INDENT * (2 if grouped and k else 1)))

    def _told(self, i: int, cell: Text) -> Text:
        """Return cell ``i`` of a row as one line, preceded by the heading of its column if the cell is not clear
        alone."""
        text = Text(", ").join(cell.split("\n"))
        return text if i == 0 or self.columns[i] in _SPEAKING else Text.assemble((f"{self.columns[i]} ", "dim"), text)


def _packed(cells: Sequence[Text], width: int) -> list[Text]:
    lines: list[Text] = []
    for cell in cells:
        cell.overflow = "fold"
        if lines and _width(lines[-1]) + _GAP + _width(cell) <= width:
            lines[-1] = Text.assemble(lines[-1], " " * _GAP, cell)
        else:
            lines.append(cell)
    return lines


def _width(text: Text) -> int:
    return max((Text(line).cell_len for line in text.plain.split("\n")), default=0)


def table(
    columns: Sequence[str], rows: Sequence[Row], *, numbers: Sequence[str] = (), dispensable: Sequence[str] = ()
) -> FittingTable:
    """Return a table for the terminal. Columns in ``numbers`` are right-aligned and never wrapped; columns in
    ``dispensable`` are omitted, one after the other, if there is too little space."""
    return FittingTable(columns, rows, numbers, dispensable)


LINES = 21
"""Largest number of lines of a summary on the terminal: with the command above it and the prompt below, one screen of
24 lines."""
_FEWEST = 3
"""Number of rows that a table keeps, even if they do not fit the screen."""


@dataclass(frozen=True, slots=True)
class OneScreen:
    """A view for the terminal that fits one screen. ``of(n)`` returns the view with ``n`` of all ``rows``."""

    of: Callable[[int], RenderableType]
    rows: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for row_count in range(max(self.rows, _FEWEST), _FEWEST - 1, -1):
            view = self.of(row_count)
            if len(console.render_lines(view, options, pad=False)) <= LINES:
                break
        yield view
