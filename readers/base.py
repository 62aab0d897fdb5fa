"""The interface of readers: their common arguments (`Reader`), an open data set (`Source`), and the order of its
records.

The engine opens a source per reader and fetches batches from it; each format's module defines a reader and its source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..ops.base import Arg, Operator, nearest
from ..ops.batch import Batch, Origin, Origins
from ..ops.context import Context
from ..ops.errors import SpecError
from ..ops.storage.inventory import InventoryEntries
from .order import LIST_SEED, Order, Shuffle
from .selection.split import Split


class Source(Origins, Protocol):
    """An open data set. `Reader.open` creates it; the engine that called `open` closes it.

    Several threads may call ``fetch`` at the same time, for different samples; it must not change what these calls
    share. One thread at a time calls all other methods.
    """

    groups: npt.NDArray[np.int64] | None
    """Number of records in each file, if a file holds several; None if each file is one record."""

    def __len__(self) -> int:
        """Number of records in the data set."""
        ...

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        """Read the records ``ctx.samples.index`` and return one batch per output, in host memory. Their bytes are read
        into ``ctx.staging(nbytes)``, if possible with one large read for neighbouring records, or are views of a mapped
        file. Records that cannot be read are rejected through ``ctx``, never raised."""
        ...

    def fingerprint(self) -> str:
        """Hash that identifies the data. It changes when records are added, removed or edited; a job resumes only if it
        is unchanged."""
        ...

    def inventory(self) -> InventoryEntries:
        """Files or containers of the data set, with sizes and times. A job saves this list, to find later which were
        added, removed or edited."""
        ...

    def close(self) -> None:
        """Close the data set's files and memory mappings."""
        ...


class Reader(Operator, abstract=True):
    """Base class of all readers, with the arguments that they share. A subclass adds the arguments of its format and
    `open`."""

    inputs = (0, 0)
    per_batch = True
    random = True

    random_shuffle: Annotated[bool, Arg("shuffle, as DALI does: through a buffer of initial_fill samples")] = False
    initial_fill: Annotated[int, Arg("samples in the shuffling buffer; 0 only if nothing is shuffled", ge=0)] = 1024
    num_shards: Annotated[int, Arg("cut the data set into this many shards", ge=1)] = 1
    shard_id: Annotated[int, Arg("read this shard", ge=0)] = 0
    stick_to_shard: Annotated[bool, Arg("read the same shard in every epoch instead of moving on")] = False
    pad_last_batch: Annotated[bool, Arg("repeat the last sample until all shards have full batches")] = False
    shuffle_after_epoch: Annotated[bool, Arg("reshuffle the files after every epoch, as DALI does")] = False
    shuffle_after_epoch_seed: Annotated[int, Arg("seed of the shuffle of shuffle_after_epoch")] = LIST_SEED
    shuffle: Annotated[
        Literal["none", "window", "full"] | None,
        Arg("full: a new permutation of all records every epoch; window: as random_shuffle; instead of random_shuffle"),
    ] = None
    skip: Annotated[int, Arg("leave out this many records at the start", ge=0)] = 0
    limit: Annotated[int | None, Arg("read at most this many records", ge=1)] = None
    split: Annotated[
        dict[str, Any] | None,
        Arg("parts of the data set by a hash of the key, with their shares: {train: 0.9, val: 0.1, by: key, seed: 7}; "
            "by: group keeps folders together, or what the pattern `group` matches in the key"),
    ] = None  # fmt: skip
    use: Annotated[
        str | None, Arg("part of `split` to read; a job without it writes all parts, each to its own folder")
    ] = None
    prefetch_queue_depth: Annotated[int, Arg("batches read ahead", ge=1)] = 1
    lazy_init: Annotated[bool, Arg("a pipeline in Python opens the data set when it runs, not when it is built")] = (
        False
    )
    read_ahead: Annotated[bool, Arg("load whole files at once", ignored="extents are read whole anyway")] = False
    dont_use_mmap: Annotated[bool, Arg("read instead of mapping", ignored="chosen by the reader")] = False
    skip_cached_images: Annotated[bool, Arg("skip what a decoder cached", ignored="there is no decoder cache")] = False
    tensor_init_bytes: Annotated[int, Arg("size hint", ignored="buffers are sized from the index")] = 1048576

    locations: ClassVar[tuple[str, ...]] = (
        "path", "paths", "files", "labels", "file_root", "file_list", "index_path", "index_paths", "annotations_file",
    )  # fmt: skip
    """Names of the arguments that only tell where the data is, such as `file_root`. A job that resumes may change
    these, because `Source.fingerprint` identifies the data."""
    maps_files: ClassVar[bool] = False
    """Whether records are views of memory-mapped files, which a GPU can read without a copy on the host
    (`fetch.gpu_reads`)."""
    shuffles_list: ClassVar[bool] = False
    """Whether `random_shuffle` first shuffles the list of all records once, as DALI's readers of files do."""

    def check(self) -> None:
        if self.shard_id >= self.num_shards:
            raise SpecError(f"shard_id must be below num_shards ({self.num_shards}), got {self.shard_id}")
        if self.shuffle is not None and (self.random_shuffle or self.shuffle_after_epoch):
            raise SpecError("shuffle replaces random_shuffle and shuffle_after_epoch: give only one of them")
        if self.shuffle_after_epoch and self.random_shuffle:
            raise SpecError("shuffle_after_epoch and random_shuffle exclude each other")
        if self.shuffle_after_epoch and self.stick_to_shard:
            raise SpecError("shuffle_after_epoch and stick_to_shard exclude each other: the files of a shard change")
        if self.split is not None:
            parts = Split.of(self.split).shares
            if self.use is not None and self.use not in parts:
                raise SpecError(f"use: split has no part {self.use!r}{nearest(self.use, parts)} (it has: "
                                f"{', '.join(parts)})")  # fmt: skip
            if self.skip or self.limit is not None:
                raise SpecError("skip and limit choose records by their place in the data set; leave them out, split "
                                "chooses by key")  # fmt: skip
        elif self.use is not None:
            raise SpecError("use names a part of `split`: give that too")
        if not self.initial_fill and (self.random_shuffle or self.shuffle == "window"):
            raise SpecError("initial_fill must be at least 1 if records are shuffled through it, got 0")

    @property
    def leaves_records_out(self) -> bool:
        """Whether the reader may leave records out on purpose, which `left_out` then lists."""
        return False

    def left_out(self, source: Source) -> Iterator[tuple[list[Origin], str]]:
        """Yield the records that the reader left out of the open data set ``source`` on purpose, in blocks: their
        origins, and the condition that does not hold for them."""
        yield from ()

    def selects(self) -> str:
        if self.split is None:
            return ""
        split = Split.of(self.split)
        shares = ", ".join(f"{name} {share:.4g}" for name, share in split.shares.items())
        part = "all parts, one after the other," if self.use is None else f"the part {self.use}"
        return f"reads {part} of a split by {split.by}: {shares}; seed {split.seed}"

    def remark(self) -> str:
        if not (self.skip or self.limit is not None) or not (self.random_shuffle or self.shuffle in ("window", "full")):
            return ""
        return ("skip and limit choose records in stored order, before the shuffle: with class folders, images of the "
                "first or the last classes. For a random subset, shuffle without them, and use some shards of the "
                "output, or give `dali-run run` --limit")  # fmt: skip

    def order(
        self, size: int, seed: int = 0, batch_size: int = 1, groups: npt.NDArray[np.int64] | None = None,
        chosen: npt.NDArray[np.bool_] | None = None,
    ) -> Order:  # fmt: skip
        """Return the order in which a data set of ``size`` records is read. ``groups`` is `Source.groups`; ``chosen``
        marks the records to read, as `chosen_of` returned them."""
        shuffle: Shuffle = self.shuffle or ("window" if self.random_shuffle else "none")
        if self.shuffle_after_epoch:
            shuffle, seed = "epoch", self.shuffle_after_epoch_seed
        subset = None if chosen is None else np.flatnonzero(chosen)
        if subset is not None:
            size = len(subset)
            if groups is not None:
                groups = np.diff(np.searchsorted(subset, np.cumsum(groups)), prepend=0).astype(np.int64)
        remaining = max(0, size - self.skip)
        return Order(
            size=remaining if self.limit is None else min(remaining, self.limit),
            first=self.skip,
            shuffle=shuffle,
            seed=seed,
            fill=max(1, self.initial_fill),
            shuffled_list=self.shuffles_list,
            groups=groups,
            num_shards=self.num_shards,
            shard_id=self.shard_id,
            stick_to_shard=self.stick_to_shard,
            pad_last_batch=self.pad_last_batch,
            batch_size=batch_size,
            subset=subset,
        )

    def order_of(self, source: Source, seed: int, batch_size: int) -> Order:
        """Return the order in which the records of the open data set ``source`` are read. Raises JobError as
        `chosen_of`."""
        return self.order(len(source), seed, batch_size, getattr(source, "groups", None), self.chosen_of(source))

    def chosen_of(self, source: Source) -> npt.NDArray[np.bool_] | None:
        """Return which records of the open data set ``source`` the reader's arguments, such as `split`, choose:
        bool[records], or None for all. Raises JobError if the split finds no group in a record's key."""
        if self.split is None or self.use is None:
            return None
        return Split.of(self.split).part_of(self.use, source, len(source))

    @property
    def output_names(self) -> tuple[str, ...] | None:
        """Names of the outputs if the reader's Python function returns a mapping; None if it returns a list."""
        return None

    def open(self) -> Source:
        """Open the data set. Raises SpecError if the arguments name no data, JobError if the data cannot be read."""
        raise NotImplementedError

    def cpu(self, ctx: Context) -> tuple[Batch, ...]:
        source: Source = ctx.source
        return source.fetch(ctx)
