"""readers.mix: several data sets as one, with weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ...ops.base import Arg, Spec
from ...ops.batch import Origin
from ...ops.errors import JobError, SpecError
from ..base import Reader, Source
from ..order import Order
from .data_sets import DataSet, data_sets
from .order import MixedOrder, samples_of_epoch
from .source import MixedSource


class Mix(Reader, name="readers.mix"):
    """Read several data sets as one, in proportion to their weights.

    ``of`` names the data sets: each is a reader with its arguments, and a ``weight``; without weights every record
    counts the same. All readers give the same number of outputs, of the same types. A sample's key is its data set's
    name, ``/``, and its key there. Each data set is walked in its own order, over epochs from where the last one ended,
    and samples of all data sets are spread evenly over an epoch. The order depends on sizes, weights and the seed
    alone, so that jobs resume and run in parts. ``shuffle`` is for the data sets that have none of their own.
    """

    example = (
        "{op: readers.mix, of: {web: {op: readers.webdataset, paths: [web.tar], ext: [jpg, cls], weight: 3}, "
        "own: {op: readers.webdataset, paths: [own.tar], ext: [jpg, cls], weight: 1}}, out: [jpegs, cls]}"
    )

    of: Annotated[dict[str, Any], Arg("data sets by name: {web: {op: readers.webdataset, ..., weight: 3}, ...}")]
    epoch: Annotated[
        Literal["shortest", "longest"],
        Arg("shortest: an epoch ends before a data set would be repeated; longest: when each was read completely"),
    ] = "shortest"
    epoch_samples: Annotated[int | None, Arg("samples of an epoch, instead of `epoch`", ge=1)] = None

    def members(self) -> tuple[DataSet, ...]:
        """Data sets of the mixture, parsed from the argument ``of``. Raises SpecError."""
        return data_sets(self.of, self.shuffle or ("window" if self.random_shuffle else "none"))

    @property
    def num_outputs(self) -> int:
        return self.members()[0].reader.num_outputs

    @property
    def output_names(self) -> tuple[str, ...] | None:
        return self.members()[0].reader.output_names

    @property
    def leaves_records_out(self) -> bool:
        return any(m.reader.leaves_records_out for m in self.members())

    def left_out(self, source: Source) -> Iterator[tuple[list[Origin], str]]:
        assert isinstance(source, MixedSource)
        for member, inner in zip(source.members, source.sources, strict=True):
            for origins, condition in member.reader.left_out(inner):
                yield [replace(o, key=f"{member.name}/{o.key}") for o in origins], condition

    def selects(self) -> str:
        weights = [f"{m.name} ({'its size' if m.weight is None else f'{m.weight:g}'})" for m in self.members()]
        end = self.epoch if self.epoch_samples is None else f"{self.epoch_samples} samples"
        return f"mixes data sets by weight: {', '.join(weights)}; epoch: {end}"

    def check(self) -> None:
        super().check()
        for name in ("skip", "limit", "split", "shuffle_after_epoch"):
            if getattr(self, name):
                raise SpecError(f"{name}: give it to the data sets in `of`; a mixture has weights")
        self.members()

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        members = self.members()
        inferred = [m.reader.infer() for m in members]
        columns = zip(*((one,) if isinstance(one, Spec) else one for one in inferred), strict=True)
        return tuple(_common(k, [m.name for m in members], column) for k, column in enumerate(columns))

    def open(self) -> Source:
        members = self.members()
        sources: list[Source] = []
        try:
            for member in members:
                try:
                    sources.append(member.reader.open())
                except (SpecError, JobError) as e:
                    raise type(e)(f"of: {member.name}: {e}") from None
                if not len(sources[-1]):
                    raise JobError(f"of: {member.name}: the data set has no records")
        except BaseException:
            for source in sources:
                source.close()
            raise
        return MixedSource(members, sources)

    def order_of(self, source: Source, seed: int, batch_size: int) -> Order:
        assert isinstance(source, MixedSource)
        orders = [
            m.reader.order_of(s, seed + 1 + k, batch_size)
            for k, (m, s) in enumerate(zip(source.members, source.sources, strict=True))
        ]
        for member, order in zip(source.members, orders, strict=True):
            if not order.size:
                raise JobError(f"of: {member.name}: no record is left to read")
        sizes = [order.size for order in orders]
        weights = [size if m.weight is None else m.weight for m, size in zip(source.members, sizes, strict=True)]
        counts = samples_of_epoch(sizes, weights, self.epoch, self.epoch_samples)
        even = self.shuffle in (None, "none") and not self.random_shuffle
        return MixedOrder(
            size=int(counts.sum()), shuffle="full", seed=seed, num_shards=self.num_shards, shard_id=self.shard_id,
            stick_to_shard=self.stick_to_shard, pad_last_batch=self.pad_last_batch, batch_size=batch_size,
            parts=tuple(orders), counts=counts, offsets=source.offsets, even=even,
        )  # fmt: skip

    def chosen_of(self, source: Source) -> npt.NDArray[np.bool_] | None:
        return None


def _common(k: int, names: list[str], specs: tuple[Spec, ...]) -> Spec:
    """Return the spec (shape, dtype, layout) of output number ``k`` of the mixture: what holds for the outputs of all
    its data sets. Raises SpecError if their types differ."""
    first = specs[0]
    for name, spec in zip(names, specs, strict=True):
        same = spec.ndim == first.ndim or None in (spec.ndim, first.ndim)
        if (
            (spec.dtype != first.dtype and None not in (spec.dtype, first.dtype))
            or not same
            or spec.layout != first.layout
        ):
            raise SpecError(f"of: output {k} is {first} in {names[0]} and {spec} in {name}; a mixture needs one type")
    shapes = [s.shape for s in specs]
    if any(s is None for s in shapes):
        return Spec(None, first.dtype, first.layout)
    shape = tuple(d[0] if len(set(d)) == 1 else None for d in zip(*(s for s in shapes if s is not None), strict=True))
    return Spec(shape, first.dtype if all(s.dtype == first.dtype for s in specs) else None, first.layout)
