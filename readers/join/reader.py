"""JoiningReader: the base of readers that have the argument `join`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from ...ops.arrays.json_values import VALUE_SPECS
from ...ops.base import Arg, Spec
from ...ops.batch import Origin
from ...ops.errors import SpecError
from ..base import Reader, Source
from .argument import Join


class JoiningReader(Reader, abstract=True):
    """Base of readers with the argument `join`: samples get additional outputs, the fields of the table row that has
    the sample's key. A format declares its own outputs in `own_outputs`, `own_specs`, `own_names`, and opens its data
    set in `open_records`. Joined fields come after a format's own outputs."""

    join: Annotated[
        dict[str, Any] | None,
        Arg("table whose rows belong to the samples by key: {file: labels.csv, key: filename, fields: [caption]}"),
    ] = None

    @property
    def own_outputs(self) -> int:
        """Number of outputs of the format itself, without joined fields."""
        return 1

    @property
    def own_names(self) -> tuple[str, ...] | None:
        """Names of the format's own outputs if Python programs get a mapping; None if they get a list."""
        return None

    def own_specs(self) -> tuple[Spec, ...]:
        """Specs of the format's own outputs: number of dimensions, dtype and layout."""
        raise NotImplementedError

    def open_records(self) -> Source:
        """Open the data set without the joined table. Raises SpecError, JobError."""
        raise NotImplementedError

    @property
    def leaves_records_out(self) -> bool:
        return self.join is not None and Join.of(self.join).missing == "leave_out"

    def left_out(self, source: Source) -> Iterator[tuple[list[Origin], str]]:
        from .source import JoinedSource

        if isinstance(source, JoinedSource):
            yield from source.left_out()

    @property
    def num_outputs(self) -> int:
        return self.own_outputs + (len(Join.of(self.join).fields) if self.join is not None else 0)

    @property
    def output_names(self) -> tuple[str, ...] | None:
        names = self.own_names
        return names if names is None or self.join is None else (*names, *Join.of(self.join).fields)

    def check(self) -> None:
        super().check()
        if self.join is not None:
            joined, names = Join.of(self.join).fields, self.own_names or ()
            for name in joined:
                if name in names:
                    raise SpecError(f"join: the field {name!r} is already an output of the reader")

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        own = self.own_specs()
        return own if self.join is None else (*own, *(VALUE_SPECS[t] for t in Join.of(self.join).fields.values()))

    def open(self) -> Source:
        if self.join is None:
            return self.open_records()
        from .source import JoinedSource
        from .table import Table

        table = Table(Join.of(self.join))
        return JoinedSource(self.open_records(), table, self.own_outputs)
