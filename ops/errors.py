"""Exceptions of dali-run, and the codes of rejected samples.

DaliRunError
|-- SpecError        the spec or the arguments are wrong: exit code 2, nothing was read
|   `-- ArgumentNameError, ArgumentValueError, ArgumentTypeError: also Python's KeyError, ValueError and
|       TypeError, which DALI raises in these cases
|-- JobError         the job cannot continue (disk full, changed inputs, too many rejects): exit code 1
|-- DeviceError      a requested GPU is missing or failed: exit code 1
`-- SampleError      one sample cannot be processed: a line in rejects.jsonl, never the end of a run
"""

from __future__ import annotations

import threading
import traceback
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar, get_args

import numpy.typing as npt

E = TypeVar("E", bound=BaseException)

RejectCode = Literal[
    "read_failed",  # the bytes could not be read (missing file, I/O error, short read)
    "corrupt_record",  # the container's framing or checksum is wrong
    "missing_feature",  # a record lacks a feature that the spec requires
    "not_an_image",  # no known signature
    "not_audio",  # no format that libsndfile supports
    "unsupported",  # a valid file of a kind that no decoder supports
    "truncated",  # the file ends before its data does
    "corrupt_data",  # the decoder found corrupt data
    "too_large",  # dimensions or sizes over the limit (decompression bombs)
    "bad_shape",  # a shape that the operator does not support
    "out_of_bounds",  # a window outside the data, if the policy is to reject
    "bad_argument",  # a per-sample argument outside its range
    "encode_failed",  # the writer's encoder rejected the data
    "user_function",  # a Python function of the user raised an exception
    "decoder_crashed",  # the decoder's process crashed on this sample, twice
    "decoder_timeout",  # the decoder did not finish in time, twice
    "internal",  # an operator of dali-run raised: a bug, reported with the sample that shows it
]
REJECT_CODES: tuple[str, ...] = get_args(RejectCode)


class DaliRunError(RuntimeError):
    """Base class of all errors for users; a RuntimeError, as programs for DALI expect. Its text says where the error
    is, what happened, what is allowed, and what to do."""


class SpecError(DaliRunError):
    """Raised if the spec or an operator's argument is wrong; nothing was done. As in DALI, subclasses are also KeyError
    for an unknown argument, ValueError for unsupported values, inputs and layouts, TypeError for wrong types."""

    def at(self, where: str) -> Self:
        """Return the same error, its text preceded by ``where``, the place in the spec."""
        return type(self)(f"{where}: {self}")


class ArgumentNameError(SpecError, KeyError):
    """Raised if an operator has no argument of this name."""

    __str__ = BaseException.__str__  # KeyError's puts quotes around the text


class ArgumentValueError(SpecError, ValueError):
    """Raised if an argument, input or layout has a value that the operator does not support."""


class ArgumentTypeError(SpecError, TypeError):
    """Raised if an argument or input has a type that the operator does not support."""


class RaggedError(ValueError, RuntimeError):
    """Raised if samples of a batch have different shapes where they must be equal. A ValueError, as in NumPy, and a
    RuntimeError, as in DALI. Not a DaliRunError, because the operator that raises it is at fault."""


class UnlikeSamplesError(RaggedError):
    """Raised if one kernel call cannot compute these samples together, because their list arguments or inputs differ in
    length. The engine then calls the kernel once for each group of equal lengths."""

    def __init__(self, shapes: npt.NDArray[Any]) -> None:
        """``shapes`` [N, K]: one row per sample; samples with equal rows can be computed together."""
        super().__init__("the samples of one call differ in the lengths of lists or inputs")
        self.shapes = shapes


class MixedTypesError(ValueError, TypeError):
    """Raised if the samples of a batch differ in dtype or number of dimensions."""


class JobError(DaliRunError):
    """Raised if the job or pipeline cannot continue, for example because data is unreadable, too many samples were
    rejected, or the disk is full. Finished work is kept; the same call or command continues the job."""


class SampleFailedError(JobError):
    """Raised if a sample was rejected and the job's policy is ``fail``. A repeated run fails in the same way."""


class SampleValueError(SampleFailedError, ValueError):
    """Raised if a sample was rejected for its shape or an argument's value; also a ValueError, which DALI raises for
    some of these."""


class MixedBatchError(JobError, ValueError):
    """Raised if samples of a batch from the user's program differ in type or number of dimensions, and neither the spec
    nor a data set says which is right. A RuntimeError, as in DALI."""


class DeviceError(DaliRunError):
    """Raised if a requested device is missing or failed."""


class SampleError(DaliRunError):
    """Raised if one sample cannot be processed; the text says why. The sample is then rejected."""

    def __init__(self, code: RejectCode, message: str) -> None:
        super().__init__(message)
        self.code: RejectCode = code

    def bare(self) -> SampleError:
        """Return the same error without traceback, so that it can be kept. The frames of a traceback would keep local
        variables alive, such as whole batches."""
        return type(self)(self.code, str(self))


def without_frames(error: E) -> E:
    """Return ``error`` without its traceback, so that it can be kept or raised in another thread. A note in the error
    lists the traceback's lines; its frames would keep local variables alive, such as whole batches."""
    if isinstance(error, Exception) and not vars(error).get(_TOLD):  # but not KeyboardInterrupt
        lines = "".join(traceback.format_exception(error)).rstrip()
        error.add_note(f"It was raised in thread {threading.current_thread().name!r}:\n{lines}")
        vars(error)[_TOLD] = True
    todo: list[BaseException | None] = [error]
    seen = set()
    while todo:
        one = todo.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            todo += [one.__cause__, one.__context__]
    return error


_TOLD = "_its_lines_are_told"


@dataclass(frozen=True, slots=True)
class Reject:
    """Kernel's report that one sample is rejected or flagged as damaged, with the reason. The engine adds where the
    sample came from."""

    slot: int
    code: RejectCode
    message: str
    part: str = ""
    """Name of the operator within a fused operator, such as ``decode.`` (prefix of its arguments there); empty outside
    of fused operators."""
    kept: bool = False
    """Whether the sample stays in the batch and is only logged; else it is dropped."""
