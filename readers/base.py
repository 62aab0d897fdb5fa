"""The contract of readers: arguments, an open data set (a Source), and an order in which its records come."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..ops.base import Arg, Operator
from ..ops.batch import Batch, Origins
from ..ops.context import Context
from ..ops.errors import SpecError
from ..ops.storage.inventory import InventoryEntries
from .order import LIST_SEED, Order, Shuffle


class Source(Origins, Protocol):
    """An open data set.

    ``fetch`` may be called from several threads at once, for different batches and parts of them; nothing that it
    changes is shared. The rest is used by one thread at a time.
    """

    groups: npt.NDArray[np.int64] | None
    """Records of each file, where a file holds many; None where a file is a record."""

    def __len__(self) -> int:
        """How many records there are."""
        ...

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        """The records ``ctx.samples.index``, one batch an output, host memory.

        Payload bytes go into ``ctx.staging(nbytes)`` in as few and large reads as there are extents, or are views of
        a mapped file. Records that cannot be read are rejected through ``ctx``, never raised.
        """
        ...

    def fingerprint(self) -> str:
        """Identity of the data: changes when records were added, removed or edited. A job resumes only on equality."""
        ...

    def inventory(self) -> InventoryEntries:
        """Files or containers of the data set, saved with a job to find later which were added, removed or edited."""
        ...

    def close(self) -> None:
        """Let go of files and mappings."""
        ...


class Reader(Operator, abstract=True):
    """Arguments that all readers share; a format adds its own and `open`."""

    inputs = (0, 0)
    per_batch = True
    random = True

    random_shuffle: Annotated[bool, Arg("shuffle, as DALI does: through a buffer of initial_fill samples")] = False
    initial_fill: Annotated[int, Arg("samples in the shuffling buffer; 0 only where nothing is shuffled", ge=0)] = 1024
    num_shards: Annotated[int, Arg("cut the data set into this many shards", ge=1)] = 1
    shard_id: Annotated[int, Arg("read this shard", ge=0)] = 0
    stick_to_shard: Annotated[bool, Arg("read the same shard in every epoch instead of moving on")] = False
    pad_last_batch: Annotated[bool, Arg("repeat the last sample until all shards have full batches")] = False
    shuffle_after_epoch: Annotated[bool, Arg("reshuffle the files after every epoch, as DALI does")] = False
    shuffle_after_epoch_seed: Annotated[int, Arg("of that shuffle")] = LIST_SEED
    shuffle: Annotated[
        Literal["none", "window", "full"] | None,
        Arg("full: a new permutation of all records every epoch; window: as random_shuffle; instead of random_shuffle"),
    ] = None
    skip: Annotated[int, Arg("leave out this many records at the start", ge=0)] = 0
    limit: Annotated[int | None, Arg("read at most this many records", ge=1)] = None
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
    """Arguments that only say where the data is: its `Source.fingerprint` tells what it is."""
    maps_files: ClassVar[bool] = False
    """Records are views of mapped files, which a GPU may read by itself (`fetch.gpu_reads`)."""
    shuffles_list: ClassVar[bool] = False
    """random_shuffle first shuffles the whole list of records, once (DALI's readers of files)."""

    def check(self) -> None:
        if self.shard_id >= self.num_shards:
            raise SpecError(f"shard_id must be below num_shards ({self.num_shards}), got {self.shard_id}")
        if self.shuffle is not None and (self.random_shuffle or self.shuffle_after_epoch):
            raise SpecError("shuffle replaces random_shuffle and shuffle_after_epoch: give only one of them")
        if self.shuffle_after_epoch and self.random_shuffle:
            raise SpecError("shuffle_after_epoch and random_shuffle exclude each other")
        if self.shuffle_after_epoch and self.stick_to_shard:
            raise SpecError("shuffle_after_epoch and stick_to_shard exclude each other: the files of a shard change")
        if not self.initial_fill and (self.random_shuffle or self.shuffle == "window"):
            raise SpecError("initial_fill must be at least 1 where records are shuffled through it, got 0")

    def remark(self) -> str:
        if not (self.skip or self.limit is not None) or not (self.random_shuffle or self.shuffle in ("window", "full")):
            return ""
        return ("skip and limit choose records in stored order, before they are shuffled: of class folders, those of "
                "the first or the last classes. For a random part, shuffle without them, and take whole shards of the "
                "output, or give `dali-run run` --limit")  # fmt: skip

    def order(
        self, size: int, seed: int = 0, batch_size: int = 1, groups: npt.NDArray[np.int64] | None = None
    ) -> Order:
        """The order of a data set of ``size`` records; ``groups`` are the source's."""
        shuffle: Shuffle = self.shuffle or ("window" if self.random_shuffle else "none")
        if self.shuffle_after_epoch:
            shuffle, seed = "epoch", self.shuffle_after_epoch_seed
        left = max(0, size - self.skip)
        return Order(
            size=left if self.limit is None else min(left, self.limit),
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
        )

    @property
    def output_names(self) -> tuple[str, ...] | None:
        """Names of the outputs, where the Python functions give a mapping instead of a list."""
        return None

    def open(self) -> Source:
        """Open the data set. Raises SpecError where the arguments name none, JobError where it cannot be read."""
        raise NotImplementedError

    def cpu(self, ctx: Context) -> tuple[Batch, ...]:
        source: Source = ctx.source
        return source.fetch(ctx)
