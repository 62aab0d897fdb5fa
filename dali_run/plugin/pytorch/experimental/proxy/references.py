"""References that stand for outputs until they are computed: for a sample in a worker, and for a batch after it is
collated."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map


@dataclass(slots=True)
class DALIPipelineRunRef:
    """One batch that a worker collects: its inputs, until they are sent to the server."""

    batch_id: tuple[str, int]
    """Identifier of the process that collects the batch, and the batch's number in that process."""
    call_args: dict[str, list[Any]] = field(default_factory=dict)
    is_scheduled: bool = False
    """Whether the inputs were sent to the server."""
    is_complete: bool = False
    """Whether the batch was collated, so that no more samples are added."""
    samples: int = 0


@dataclass(slots=True)
class DALIOutputSampleRef:
    """Reference to output ``output_idx`` of one sample."""

    proxy: Proxy
    pipe_run_ref: DALIPipelineRunRef
    output_idx: int
    sample_idx: int


@dataclass(slots=True)
class DALIOutputBatchRef:
    """Reference to output ``output_idx`` of a batch."""

    pipe_run_ref: DALIPipelineRunRef
    output_idx: int


class Proxy:
    """Function object that takes the inputs of a sample and returns references to its outputs. Each worker gets a copy
    with the data set."""

    def __init__(self, names: Sequence[str], num_outputs: int, requests: Any, deterministic: bool) -> None:
        self._names = tuple(names)
        self._num_outputs = num_outputs
        self._requests = requests
        self._deterministic = deterministic
        self._process = ""
        self._count = 0
        self._open: DALIPipelineRunRef | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": "", "_count": 0, "_open": None}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return references to the outputs of one sample. The only input may be positional; several must be given by
        name.

        Raises TypeError if the inputs are not those of the pipeline.
        """
        if args and len(self._names) == 1 and len(args) == 1 and not kwargs:
            kwargs = {self._names[0]: args[0]}
            args = ()
        if args or set(kwargs) != set(self._names):
            raise TypeError(f"the inputs are {', '.join(f'{n}=' for n in self._names)}; got {len(args)} positional and "
                            f"{', '.join(kwargs) or 'none'} by name")  # fmt: skip
        batch = self._batch()
        for name, value in kwargs.items():
            batch.call_args.setdefault(name, []).append(_as_array(value))
        index = batch.samples
        batch.samples += 1
        references = tuple(DALIOutputSampleRef(self, batch, k, index) for k in range(self._num_outputs))
        return references[0] if len(references) == 1 else references

    def _batch(self) -> DALIPipelineRunRef:
        """Return the batch that this process is collecting."""
        worker = get_worker_info()
        if not self._process or self._process.split(":")[0] != str(worker.id if worker else "main"):
            # a forked worker starts with the value of its parent
            self._process = f"{worker.id if worker else 'main'}:{uuid.uuid4().hex}"
            self._count, self._open = 0, None
        if self._open is None or self._open.is_complete:
            self._open = DALIPipelineRunRef((self._process, self._count))
            self._count += 1
        return self._open

    def collated(self, batch: DALIPipelineRunRef) -> DALIPipelineRunRef:
        """Mark the batch as complete and return it.

        Its inputs go to the server now. With ``deterministic`` they go there with the collated batch instead, so that
        the order does not depend on the workers.
        """
        batch.is_complete = True
        if not self._deterministic and not batch.is_scheduled:
            self._requests.put((batch.batch_id, batch.call_args))
            batch.call_args, batch.is_scheduled = {}, True
        return batch


def _as_array(value: Any) -> Any:
    """Return a tensor, image or number as a NumPy array."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)


def _collate(samples: Sequence[DALIOutputSampleRef], *, collate_fn_map: Any = None) -> DALIOutputBatchRef:
    """Return one reference to an output of a batch for the references of all its samples.

    Raises RuntimeError if the references belong to several batches or outputs, or are in another order.
    """
    del collate_fn_map
    first = samples[0]
    for k, sample in enumerate(samples):
        if sample.pipe_run_ref is not first.pipe_run_ref or sample.output_idx != first.output_idx:
            raise RuntimeError("samples of different batches or outputs cannot be collated into one batch")
        if sample.sample_idx != k:
            raise RuntimeError("all samples of a batch must be collated, in the order in which they were "
                               "created")  # fmt: skip
    return DALIOutputBatchRef(first.proxy.collated(first.pipe_run_ref), first.output_idx)


default_collate_fn_map[DALIOutputSampleRef] = _collate
