"""Stand-ins for outputs until they are computed: of a sample in a worker, of a batch once it is collated."""

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
    """One batch: its inputs, until they are sent."""

    batch_id: tuple[str, int]
    """The process that collects it, and its number there."""
    call_args: dict[str, list[Any]] = field(default_factory=dict)
    is_scheduled: bool = False
    """Its inputs were sent to the server."""
    is_complete: bool = False
    """It was collated: no sample is added any more."""
    samples: int = 0


@dataclass(slots=True)
class DALIOutputSampleRef:
    """Output ``output_idx`` of a sample."""

    proxy: Proxy
    pipe_run_ref: DALIPipelineRunRef
    output_idx: int
    sample_idx: int


@dataclass(slots=True)
class DALIOutputBatchRef:
    """Output ``output_idx`` of a batch."""

    pipe_run_ref: DALIPipelineRunRef
    output_idx: int


class Proxy:
    """Called with a sample's inputs, gives references to its outputs. Goes to the workers with the data set."""

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
        """References to the outputs of one sample. A single input may be given by place, several by name.

        Raises TypeError for other inputs than the pipeline has.
        """
        if args and len(self._names) == 1 and len(args) == 1 and not kwargs:
            kwargs = {self._names[0]: args[0]}
            args = ()
        if args or set(kwargs) != set(self._names):
            raise TypeError(f"the inputs are {', '.join(f'{n}=' for n in self._names)}; got {len(args)} by place and "
                            f"{', '.join(kwargs) or 'none'} by name")  # fmt: skip
        batch = self._batch()
        for name, value in kwargs.items():
            batch.call_args.setdefault(name, []).append(_as_array(value))
        place = batch.samples
        batch.samples += 1
        made = tuple(DALIOutputSampleRef(self, batch, k, place) for k in range(self._num_outputs))
        return made[0] if len(made) == 1 else made

    def _batch(self) -> DALIPipelineRunRef:
        """The batch that is being collected in this process."""
        worker = get_worker_info()
        if not self._process or self._process.split(":")[0] != str(worker.id if worker else "main"):
            self._process = f"{worker.id if worker else 'main'}:{uuid.uuid4().hex}"  # a fork has its parent's otherwise
            self._count, self._open = 0, None
        if self._open is None or self._open.is_complete:
            self._open = DALIPipelineRunRef((self._process, self._count))
            self._count += 1
        return self._open

    def collated(self, batch: DALIPipelineRunRef) -> DALIPipelineRunRef:
        """The batch is whole: its inputs go to the server now, or with the batch where the order must not depend on
        the workers."""
        batch.is_complete = True
        if not self._deterministic and not batch.is_scheduled:
            self._requests.put((batch.batch_id, batch.call_args))
            batch.call_args, batch.is_scheduled = {}, True
        return batch


def _as_array(value: Any) -> Any:
    """A tensor, picture or number as a NumPy array."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)


def _collate(samples: Sequence[DALIOutputSampleRef], *, collate_fn_map: Any = None) -> DALIOutputBatchRef:
    """References of one output, of all samples of a batch, as one. Raises RuntimeError where they are not that."""
    del collate_fn_map
    first = samples[0]
    for k, sample in enumerate(samples):
        if sample.pipe_run_ref is not first.pipe_run_ref or sample.output_idx != first.output_idx:
            raise RuntimeError("samples of different batches, or different outputs, cannot be collated")
        if sample.sample_idx != k:
            raise RuntimeError("the samples of a batch must be collated in the order in which they were made, and all "
                               "of them")  # fmt: skip
    return DALIOutputBatchRef(first.proxy.collated(first.pipe_run_ref), first.output_idx)


default_collate_fn_map[DALIOutputSampleRef] = _collate
