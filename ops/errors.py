"""The exceptions of dali-run, and the codes that a rejected sample carries.

DaliRunError
|-- SpecError        the spec or the arguments are wrong: exit code 2, nothing was read
|   `-- ArgumentNameError, ArgumentValueError, ArgumentTypeError: those that are also Python's KeyError, ValueError and
|       TypeError, which DALI raises in their place
|-- JobError         the job cannot go on (disk full, changed inputs, error budget spent): exit code 1
|-- DeviceError      a GPU was asked for and is missing or failed: exit code 1
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
    "missing_feature",  # a record lacks a feature that the spec asks for
    "not_an_image",  # no known signature
    "not_audio",  # nothing that libsndfile knows
    "unsupported",  # a valid file of a kind that no decoder here takes
    "truncated",  # the file ends before its data does
    "corrupt_data",  # the decoder found the data damaged
    "too_large",  # dimensions or sizes over the limit (decompression bombs)
    "bad_shape",  # a shape that the operator cannot take
    "out_of_bounds",  # a window outside the data, where the policy is to refuse
    "bad_argument",  # a per-sample argument outside its range
    "encode_failed",  # the writer's encoder refused the data
    "user_function",  # a Python function of the user's raised
    "decoder_crashed",  # the decoder's process died of it, twice
    "decoder_timeout",  # the decoder did not end in time, twice
    "internal",  # an operator of ours raised: a bug, reported with the sample that shows it
]
REJECT_CODES: tuple[str, ...] = get_args(RejectCode)


class DaliRunError(RuntimeError):
    """Base of all errors that are meant for the user; a RuntimeError, as programs for DALI expect. Its text says where,
    what, what is allowed, and what to do."""


class SpecError(DaliRunError):
    """The spec, or an argument of an operator, is wrong: nothing was done.

    Where DALI raises another kind, it is of that kind, too: KeyError for an argument that there is not, ValueError for
    values, inputs and layouts that are not taken, TypeError for types.
    """

    def at(self, where: str) -> Self:
        """The same error, with the place where it arose before its text."""
        return type(self)(f"{where}: {self}")


class ArgumentNameError(SpecError, KeyError):
    """There is no such argument."""

    __str__ = BaseException.__str__  # KeyError's puts quotes around the text


class ArgumentValueError(SpecError, ValueError):
    """An argument, an input, or its layout, that the operator does not take."""


class ArgumentTypeError(SpecError, TypeError):
    """An argument or an input of a type that cannot be taken."""


class RaggedError(ValueError, RuntimeError):
    """The samples of a batch differ where they must not: ValueError as NumPy has it, RuntimeError as DALI has it. No
    DaliRunError, because in an operator it is a fault of that operator's."""


class UnlikeSamplesError(RaggedError):
    """One call of a kernel cannot compute all of its samples: lists of arguments differ in length, or inputs in a
    length that the kernel takes for all. The engine calls the kernel again for each group of samples that are alike, so
    that no sample is judged by another one."""

    def __init__(self, shapes: npt.NDArray[Any]) -> None:
        """``shapes`` [N, K]: samples with equal rows are alike."""
        super().__init__("the samples of one call differ in the lengths of lists or inputs")
        self.shapes = shapes


class MixedTypesError(ValueError, TypeError):
    """The samples of a batch differ in dtype or number of dimensions."""


class JobError(DaliRunError):
    """The job, or the pipeline, cannot go on: data that cannot be read, too many rejects, a full disk, another job in
    the same output. What was finished before is kept; a job goes on with the same call or command."""


class SampleFailedError(JobError):
    """A sample was rejected in a job whose policy is ``fail``. Another try ends in the same way."""


class SampleValueError(SampleFailedError, ValueError):
    """A sample was rejected for its shape or for the value of an argument: DALI raises ValueError for some of them."""


class MixedBatchError(JobError, ValueError):
    """Samples of one batch differ in type or number of dimensions, and neither the spec nor a data set says what is
    right: a batch that a program fed. A RuntimeError, as DALI raises for such a batch."""


class DeviceError(DaliRunError):
    """A device was asked for that is missing, or it failed."""


class SampleError(DaliRunError):
    """One sample cannot be processed."""

    def __init__(self, code: RejectCode, message: str) -> None:
        super().__init__(message)
        self.code: RejectCode = code

    def bare(self) -> SampleError:
        """The same words without the frames that the error came through, to be kept or raised later: frames hold what
        their functions held, whole batches among them."""
        return type(self)(self.code, str(self))


def kept(error: E) -> E:
    """``error``, to be kept, or raised in another thread. Where it came through is told by a note of its own; the
    frames themselves go, and what they and the functions around them held, whole batches among it."""
    if isinstance(error, Exception) and not vars(error).get(_TOLD):  # and no Ctrl-C
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
    """Why one sample was dropped, as operators report it; the engine adds where it came from."""

    slot: int
    code: RejectCode
    message: str
    part: str = ""
    """Which of the operators that were joined into one, as their arguments are prefixed: ``decode.``."""
    kept: bool = False
    """The sample is not dropped, only noted."""
