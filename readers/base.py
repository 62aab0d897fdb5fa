"""What a reader is: arguments, an open data set (a Source), and an order in which its records come."""

from __future__ import annotations

from typing import Annotated, Protocol

from ..ops.base import Arg, Operator
from ..ops.batch import Batch, Origins
from ..ops.context import Context


class Source(Origins, Protocol):
    """An open data set. It is used by one thread at a time."""

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

    def close(self) -> None:
        """Let go of files and mappings."""
        ...


class Reader(Operator, abstract=True):
    """Arguments that all readers share; a format adds its own and `open`."""

    inputs = (0, 0)
    per_batch = True
    random = True

    random_shuffle: Annotated[bool, Arg("shuffle, as DALI does: through a buffer of initial_fill samples")] = False
    initial_fill: Annotated[int, Arg("samples in the shuffling buffer", ge=1)] = 1024
    num_shards: Annotated[int, Arg("cut the data set into this many shards", ge=1)] = 1
    shard_id: Annotated[int, Arg("read this shard", ge=0)] = 0
    stick_to_shard: Annotated[bool, Arg("read the same shard in every epoch instead of moving on")] = False
    pad_last_batch: Annotated[bool, Arg("repeat the last sample until all shards have full batches")] = False
    shuffle_after_epoch: Annotated[bool, Arg("reshuffle the whole data set after every epoch")] = False
    skip: Annotated[int, Arg("leave out this many records at the start", ge=0)] = 0
    limit: Annotated[int | None, Arg("read at most this many records", ge=1)] = None
    prefetch_queue_depth: Annotated[int, Arg("batches read ahead", ge=1)] = 1
    lazy_init: Annotated[bool, Arg("open the data set at the first read", ignored="indexes are always lazy")] = False
    read_ahead: Annotated[bool, Arg("load whole files at once", ignored="extents are read whole anyway")] = False
    dont_use_mmap: Annotated[bool, Arg("read instead of mapping", ignored="chosen by the reader")] = False
    skip_cached_images: Annotated[bool, Arg("skip what a decoder cached", ignored="there is no decoder cache")] = False
    tensor_init_bytes: Annotated[int, Arg("size hint", ignored="buffers are sized from the index")] = 1048576

    def open(self) -> Source:
        """Open the data set. Raises SpecError where the arguments name none, JobError where it cannot be read."""
        raise NotImplementedError

    def cpu(self, ctx: Context) -> tuple[Batch, ...]:
        source: Source = ctx.source
        return source.fetch(ctx)
