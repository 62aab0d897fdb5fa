"""Declaration of operators, and the registry from which everything else is generated.

An operator is one class: a name, arguments (fields), ``infer``, and one kernel per stage that it can run in. The YAML
schema, ``dali-run ops``, the ``fn`` functions, the ``ops`` classes, the reference pages and the contract tests are
generated from it. For example:

    class Flip(Operator, name="flip"):
        '''Mirror images.'''

        horizontal: Annotated[int, Arg("1 mirrors left to right", per_sample=True)] = 1

        def cpu(self, ctx: Context, images: Batch) -> Batch: ...
        def gpu(self, ctx: Context, images: Batch) -> Batch: ...
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, dataclass_transform, get_args, get_origin

from .batch import I64, Batch, Samples
from .errors import SpecError
from .interfaces import StartedWork
from .types import DALIDataType, DALIImageType, DALIInterpType, parse_dtype

Stage = Literal["cpu", "mixed", "gpu"]
STAGES: tuple[Stage, ...] = get_args(Stage)
T = TypeVar("T")
_FLOAT_MAX = 2.0**128 * (1 - 2.0**-25)
"""Largest number that becomes a finite float32. Most kernels compute in float32, in which larger numbers become
infinity."""


@dataclass(frozen=True, slots=True)
class Arg:
    """Properties of an operator's argument beyond its type, such as help text and limits."""

    help: str
    """Help text for users: what the argument does, in a few words."""
    ge: float | None = None
    """Smallest allowed value (of every element)."""
    le: float | None = None
    """Largest allowed value (of every element)."""
    per_sample: bool = False
    """Whether an argument may have a value per sample: the output of a CPU operator, as DALI's argument inputs."""
    deprecated: str = ""
    """Name of the new argument that receives this deprecated argument's value; empty if this one is not deprecated."""
    ignored: str = ""
    """Reason why the argument has no effect in dali-run. It is accepted with a warning. Empty if it has an effect."""
    obsolete: bool = False
    """Whether DALI has also removed the argument; the user then gets a DeprecationWarning, as with DALI."""
    rows: bool = False
    """Whether the argument is a matrix, stored as a flat list of its rows. A two-dimensional NumPy array is accepted
    and flattened."""
    required: bool = False
    """Whether the user must pass a value although the field has a default."""
    or_default: bool = False
    """Whether an empty list means the default value."""
    tensor: bool = False
    """Whether the argument is a single number if constant, but may have several elements per sample as an input."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Properties of a batch that are known before it is computed, such as dtype and layout. None stands for unknown."""

    shape: tuple[int | None, ...] | None = None
    """Shape of one sample."""
    dtype: DALIDataType | None = None
    """Data type of the elements."""
    layout: str = ""
    """Layout: one letter per dimension (``HWC``); empty if there is none."""

    @property
    def ndim(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    def __str__(self) -> str:
        shape = "?" if self.shape is None else "x".join("?" if d is None else str(d) for d in self.shape) or "scalar"
        dtype = "?" if self.dtype is None else self.dtype.name.lower()
        return f"{dtype}[{shape}]" + (f" {self.layout}" if self.layout else "")


Kernel = Callable[..., Any]
_OPS: dict[str, type[Operator]] = {}
"""Registry: all declared operators, by name. Class statements fill it, also those of plugins."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _declared(cls: type[T]) -> type[T]:
    """Make ``cls`` a dataclass without generated methods. `Operator` defines them itself, because generating them for
    every operator is slow."""
    return dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=True, match_args=False)(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True)
@_declared
class Operator:
    """Base class of all operators: fields are arguments, methods named after a stage (``cpu``, ``mixed``, ``gpu``) are
    kernels.

    A kernel takes ``(ctx, *inputs: Batch)`` and returns a Batch, or a tuple of Batches if the operator has several
    outputs, with exactly one sample for each input sample. It must compute for every sample the result that the sample
    would have in a batch of its own: the engine cuts batches into chunks, drops samples and retries them one by one. A
    kernel reports a sample that it cannot process with ``ctx.reject`` (the sample's output may then be anything of the
    right dtype and number of dimensions, for example an empty tensor); an exception means that the operator itself is
    at fault.
    """

    name: ClassVar[str]
    """Name in YAML: ``resize``, ``decoders.image``, ``random.coin_flip``."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """DALI's older names for this operator."""
    stages: ClassVar[tuple[Stage, ...]]
    """Stages (``cpu``, ``mixed``, ``gpu``) for which the class defines a kernel, set automatically. `runs_in` returns
    those of one instance."""
    devices: ClassVar[tuple[Stage, ...]]
    """Values of ``device`` that users may set: equal to `stages`, set automatically, unless the class declares them. A
    reader that declares ``gpu`` without a gpu kernel reads in host threads, directly into GPU memory if possible."""
    inputs: ClassVar[tuple[int, int]] = (1, 1)
    """Minimum and maximum number of positional inputs."""
    layouts: ClassVar[tuple[str, ...]] = ()
    """Layouts that the first input may have; empty if any layout is accepted."""
    random: ClassVar[bool] = False
    """Whether the operator draws random numbers and takes a seed (DALI's rules for seeds apply)."""
    per_batch: ClassVar[bool] = False
    """Whether the kernel must see a whole batch at once, as for a permutation of the batch. The engine then never cuts
    the batch into chunks."""
    reads_slowly: ClassVar[bool] = False
    """Whether the kernel is slow and sees whole batches, such as a reader that also decodes. The engine then runs it
    for several batches at the same time."""
    shared: ClassVar[bool] = True
    """Whether two equal operators with equal inputs may share one result. False if the operator calls the user's Python
    function, which may count calls."""
    output_after_sync: ClassVar[bool] = False
    """Whether the gpu kernel's output is in host memory, and exists only after the device has finished the batch. The
    kernel then returns the result of `Context.finish_later`."""
    accepts_gpu: ClassVar[bool] = False
    """Whether an operator without a gpu kernel accepts inputs in GPU memory, which the engine downloads for the cpu
    kernel. True for encoders, because writers need files in host memory."""
    is_trivial: ClassVar[bool] = False
    """Whether the kernel sees whole batches and takes almost no time, for example because it only passes on the user's
    arrays."""
    metadata_only: ClassVar[bool] = False
    """Whether the kernel reads no elements: it returns only views of its inputs, or their shapes."""
    shape_only: ClassVar[bool] = False
    """Whether outputs depend only on shapes, types and layouts of the inputs. The cpu kernel then also accepts batches
    in GPU memory."""
    host_arguments: ClassVar[bool] = False
    """Whether the gpu kernel needs all inputs but the first in host memory; the engine then does not upload these."""
    leaves_out: ClassVar[bool] = False
    """Whether the operator leaves samples out on purpose (`Context.leave_out`). The compiler then keeps the operator in
    the graph even if its output is unused."""
    makes_files: ClassVar[bool] = False
    """Whether each output sample is the content of a file, which writers may store unchanged."""
    decodes: ClassVar[bool] = False
    """Whether the operator decodes images, so that the spec's settings for decoders apply to it."""
    replayable: ClassVar[bool] = False
    """Whether the engine may record the gpu kernel's launches and replay them for later batches of the same shapes,
    layouts and types. The kernel must use ``ctx.device`` only for uploads, allocations and launches, which depend only
    on shapes, layouts, types and constant arguments. If arguments are inputs, it must declare the launch parameters
    that change (`gpu.launch_recording.changing`)."""
    bound: ClassVar[str] = "exact"
    """Maximum difference between CPU and GPU results, as text for the documentation, such as ``exact``."""
    example: ClassVar[str] = ""
    """Example for the documentation: one YAML step that uses the operator."""

    per_sample: frozenset[str] = frozenset()
    """Names of the arguments that are inputs in this instance, with one value per sample. Their fields have the default
    values."""
    num_inputs: int = 0
    """Number of positional inputs of this instance, set when it becomes part of a graph. Operators with one output per
    input derive their number of outputs from it."""

    def __init_subclass__(cls, name: str = "", abstract: bool = False) -> None:
        _declared(cls)
        if abstract:
            return
        if not name:
            raise TypeError(f"{cls.__name__} needs a name: class {cls.__name__}(Operator, name=...)")
        for known in (name, *cls.aliases):
            if known in _OPS and _OPS[known].__qualname__ != cls.__qualname__:
                raise TypeError(f"operator {known!r} is declared twice: {_OPS[known].__module__} and {cls.__module__}")
            _OPS[known] = cls
        cls.name = name
        cls.stages = tuple(s for s in STAGES if callable(getattr(cls, s, None)))
        if not cls.stages:
            raise TypeError(f"operator {name!r} has no kernel: define one of {', '.join(STAGES)}")
        if "devices" not in vars(cls):
            cls.devices = cls.stages

    # A frozen dataclass whose methods are written here once for all operators: `dataclasses` would compile six methods
    # per operator, which would be most of their import time.

    def __init__(self, **given: Any) -> None:
        for f in dataclasses.fields(self):
            if f.name in given:
                value = given.pop(f.name)
            elif f.default_factory is not dataclasses.MISSING:
                value = f.default_factory()
            elif f.default is not dataclasses.MISSING:
                value = f.default
            else:
                raise TypeError(f"{type(self).__name__} needs argument {f.name!r}")
            object.__setattr__(self, f.name, value)
        if given:
            raise TypeError(f"{type(self).__name__} has no argument {next(iter(given))!r}")

    def _fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, f.name) for f in dataclasses.fields(self))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        values = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self))
        return f"{type(self).__qualname__}({values})"

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    @property
    def num_outputs(self) -> int:
        """Number of outputs of this instance."""
        return 1

    @property
    def needs_header_only(self) -> bool:
        """Whether the mixed kernel needs only the headers of encoded files in host memory, which are in their first
        bytes (`readers.fetch.header_bytes_cpu`). If the GPU does not support a file, the kernel fetches the remaining
        bytes (`gpu.readable_by_gpu.show`)."""
        return False

    def check(self) -> None:
        """Raise SpecError if the values of arguments contradict each other. Called once, before anything runs."""

    def selects(self) -> str:
        """Return a text for `dali-run plan`: which samples this instance selects. Empty if it selects all."""
        return ""

    def remark(self) -> str:
        """Return a hint for the user if the arguments are allowed but probably a mistake; empty otherwise."""
        return ""

    def runs_in(self) -> tuple[Stage, ...]:
        """Return the stages in which this instance can run: those with a kernel for its arguments."""
        return self.stages

    @property
    def loop_client(self) -> str:
        """Name by which the list of compiled loops says which loops this instance calls in common jobs."""
        return self.name

    def same_on_gpu(self) -> Operator | None:
        """Return an operator whose mixed or gpu kernel gives the results of this cpu kernel bit for bit, so that the
        compiler may move this operator to the GPU; None if there is none."""
        return None

    def infer(self, *specs: Spec) -> Spec | tuple[Spec, ...]:
        """Return the spec of each output, as far as the specs of the inputs determine it. Raises SpecError for inputs
        that the operator does not accept."""
        return specs[0] if specs else Spec()

    def shows(self) -> Mapping[int, str]:
        """Return which outputs debugging tools can draw onto the image: by index of the output, the kind of annotation.
        Kinds are ``boxes xyXY`` (or another order of bbox_layout; in fractions of the image or in pixels), ``labels``
        of these boxes, ``polygons`` and ``vertices`` in the format of readers.coco, and ``classes`` (class of every
        pixel)."""
        return {}

    def estimate_memory(self, stage: Stage, *inputs: Batch) -> tuple[I64, I64] | None:
        """Estimate the memory that the kernel of ``stage`` needs, for example from images' headers. Return for each
        sample the number of output elements, and the bytes of working memory, int64[N] each. If the result is None, the
        engine assumes the declared shape, or the size of the first input."""
        return None

    def start_early(self, ctx: Any, *inputs: Batch) -> StartedWork | None:
        """Start the part of a mixed kernel that runs on CPU threads, while the GPU still processes earlier batches.
        Return the started work, which the kernel finds in `Context.started`, or None. For readers, the engine calls
        this method in the order of the batches."""
        return None

    def drawn(self, streams: Any, samples: Samples) -> Batch | None:
        """Return random numbers for ``samples``, drawn from their ``streams`` (`Streams`), in place of a call of the
        kernel. For operators without inputs. None if the arguments need more than the streams: the engine then calls
        the kernel."""
        return None

    def kernel(self, stage: Stage) -> Kernel:
        """Return the kernel, a method of this class, for ``stage``."""
        found: Kernel = getattr(self, stage)
        return found

    def is_set(self, name: str) -> bool:
        """Return whether argument ``name`` was set: whether it is an input, or differs from its default."""
        return name in self.per_sample or getattr(self, name) != parameter(type(self), name).default

    def has_value(self, name: str) -> bool:
        """Return whether argument ``name`` was set to anything but an empty list. For regions, axes and sizes, an empty
        list means "not set"."""
        return self.is_set(name) and (name in self.per_sample or getattr(self, name) != ())


# -- arguments --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameter:
    """Description of one argument of an operator or writer, from which schema, docs and stubs are generated."""

    name: str
    type: Any
    arg: Arg
    default: Any

    @property
    def required(self) -> bool:
        return self.arg.required or self.default is dataclasses.MISSING

    @property
    def is_vector(self) -> bool:
        """Whether the argument is a list of values: as an input, one list per sample."""
        return _is_tuple(self.type)


@cache
def _is_tuple(tp: Any) -> bool:
    return get_origin(strip_optional(tp)) is tuple


def parameters(op: type[Any]) -> dict[str, Parameter]:
    """Return the arguments of ``op`` (an operator, or a writer) by name, in the order of its fields."""
    return _parameters(op)  # type: ignore[arg-type]  # for mypy, classes with a __hash__ are not hashable


@cache
def _parameters(op: type[Any]) -> dict[str, Parameter]:
    homes = {name: base for base in reversed(op.__mro__) for name in inspect.get_annotations(base)}
    table: dict[str, Parameter] = {}
    for f in dataclasses.fields(op):
        if f.name in ("per_sample", "num_inputs"):
            continue
        hint = _annotation(homes[f.name], f.name)
        if get_origin(hint) is not Annotated:
            raise TypeError(f"{op.name}.{f.name}: annotate it as Annotated[type, Arg(...)]")
        base, arg = get_args(hint)
        default = f.default
        if f.default_factory is not dataclasses.MISSING:
            default = f.default_factory()
        table[f.name] = Parameter(f.name, base, arg, default)
    return table


@cache
def _annotation(home: type[Any], name: str) -> Any:
    """Return the type annotation of the field ``name`` of class ``home``, evaluated. `typing.get_type_hints` is slower:
    it also evaluates all annotations of the base class."""
    alone = types.SimpleNamespace(__annotations__={name: inspect.get_annotations(home)[name]})
    return typing.get_type_hints(alone, vars(sys.modules[home.__module__]), include_extras=True)[name]


def parameter(op: type[Operator], name: str) -> Parameter:
    """Return argument ``name`` of ``op``. Raises KeyError if there is none."""
    return parameters(op)[name]


def strip_optional(tp: Any) -> Any:
    """Return ``T`` for ``T | None``, else ``tp`` itself."""
    if get_origin(tp) in (types.UnionType, typing.Union):
        rest = [t for t in get_args(tp) if t is not type(None)]
        return rest[0] if len(rest) == 1 else typing.Union[tuple(rest)]  # noqa: UP007
    return tp


def _is_optional(tp: Any) -> bool:
    return get_origin(tp) in (types.UnionType, typing.Union) and type(None) in get_args(tp)


def coerce(param: Parameter, value: Any) -> Any:
    """Convert ``value`` to the type of ``param``: lists become tuples, names become enumeration members, ranges are
    checked.

    Raises ValueError with the allowed values.
    """
    if value is None:
        if _is_optional(param.type) or param.default is None:
            return None
        raise ValueError(f"needs {type_name(param.type)}, got nothing")
    if param.arg.rows and hasattr(value, "__array__") and getattr(value, "ndim", 1) == 2:
        value = value.reshape(-1)
    result = _coerce(strip_optional(param.type), value)
    if param.arg.or_default and result == ():
        return param.default
    for v in _flat(result) if param.arg.ge is not None or param.arg.le is not None else ():
        if isinstance(v, (int, float)) and not isinstance(v, (bool, enum.Enum)):
            if param.arg.ge is not None and not v >= param.arg.ge:
                raise ValueError(f"must be at least {param.arg.ge:.10g}, got {v!r}")
            if param.arg.le is not None and not v <= param.arg.le:
                raise ValueError(f"must be at most {param.arg.le:.10g}, got {v!r}")
    return result


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for v in value:
            yield from _flat(v)
    else:
        yield value


def _coerce(tp: Any, value: Any) -> Any:
    origin = get_origin(tp)
    if tp is Any:
        return value
    if origin is Literal:
        return _literal(get_args(tp), value)
    if origin in (types.UnionType, typing.Union):
        problems = []
        for option in get_args(tp):
            try:
                return _coerce(option, value)
            except ValueError as e:
                problems.append(str(e))
        raise ValueError(f"needs {type_name(tp)}, got {value!r}")
    if origin is tuple:
        return _tuple(get_args(tp), value)
    if origin in (dict, Mapping) or tp is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"needs a mapping, got {value!r}")
        return dict(value)
    return _scalar(tp, value)


def plain_number(value: Any) -> Any:
    """Return a NumPy number, or an array of one element of any library, as a Python number. Return anything else
    unchanged."""
    return value.item() if isinstance(getattr(value, "ndim", None), int) and math.prod(value.shape) == 1 else value


def _literal(allowed: tuple[Any, ...], value: Any) -> Any:
    """Return the one of the ``allowed`` values that ``value`` is; the case of text does not matter."""
    if isinstance(value, str) and value not in allowed:
        value = next((a for a in allowed if isinstance(a, str) and a.lower() == value.lower()), value)
    if value not in allowed:
        raise ValueError(f"{value!r} is not one of {', '.join(map(repr, allowed))}")
    return value


def _tuple(items: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """Return ``value`` as a tuple with ``items`` of these types; ``...`` repeats the first. One value is a tuple of
    one."""
    several = isinstance(value, (list, tuple)) or (hasattr(value, "__array__") and getattr(value, "ndim", 1) != 0)
    values = list(value) if several else [value]
    if items[-1] is ...:
        if items[0] is str and all(type(v) is str for v in values):  # there may be a million file names
            return tuple(values)
        return tuple(_coerce(items[0], v) for v in values)
    if len(values) != len(items):
        raise ValueError(f"needs {len(items)} values, got {len(values)}")
    return tuple(_coerce(t, v) for t, v in zip(items, values, strict=True))


def _member(tp: type[enum.Enum], value: Any) -> enum.Enum:
    """Return the member of an enumeration that ``value`` names, with or without ``INTERP_``, or whose number it is."""
    if isinstance(value, str):
        for name in (value, value.upper(), f"INTERP_{value}", f"INTERP_{value.upper()}"):
            if name in tp.__members__:
                return tp[name]
    elif isinstance(value, int) and not isinstance(value, bool) and value in [int(m.value) for m in tp]:
        return tp(value)
    raise ValueError(f"{value!r} is not one of {', '.join(tp.__members__)}")


def _scalar(tp: Any, value: Any) -> Any:
    value = plain_number(value)
    if tp is DALIDataType:
        return parse_dtype(value)
    if isinstance(tp, type) and issubclass(tp, enum.Enum):
        return _member(tp, value)
    if tp is bool and isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    if tp is int and (isinstance(value, (bool, int)) or (isinstance(value, float) and value.is_integer())):
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"must be an integer of 64 bits, got {value!r:.80}")
        return int(value)
    if tp is float and isinstance(value, (int, float)):
        if _FLOAT_MAX < abs(value) < math.inf:
            raise ValueError(f"must be within 3.4e38 of zero, as numbers of 32 bits are, got {value!r:.80}")
        return float(value)
    if tp is str and isinstance(value, (str, os.PathLike)):
        return os.fsdecode(value)
    if isinstance(tp, type) and tp not in (bool, int, float, str) and isinstance(value, tp):
        return value
    raise ValueError(f"needs {type_name(tp)}, got {value!r}")


_NAMES = {int: "an integer", float: "a number", str: "a text", bool: "true or false", DALIDataType: "a data type",
          DALIInterpType: "a filter", DALIImageType: "an image type", Any: "anything"}  # fmt: skip


def type_name(tp: Any) -> str:
    """Return the type ``tp`` as text for messages and help, such as ``a list of floats``."""
    origin = get_origin(tp)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, get_args(tp)))
    if origin in (types.UnionType, typing.Union):
        return " or ".join(type_name(t) for t in get_args(tp) if t is not type(None))
    if origin is tuple:
        items = get_args(tp)
        if get_origin(items[0]) is Literal:
            return "a list of any of " + ", ".join(map(repr, get_args(items[0])))
        inner = type_name(items[0]).removeprefix("an ").removeprefix("a ")
        return f"a list of {inner}s" if items[-1] is ... else f"{len(items)} {inner}s"
    return _NAMES.get(tp, getattr(tp, "__name__", str(tp)))


# -- the registry -----------------------------------------------------------------------------------------------------


def operators() -> dict[str, type[Operator]]:
    """Return all operators by YAML name, sorted, without aliases."""
    return {n: op for n, op in sorted(_OPS.items()) if n == op.name}


def is_known(name: str) -> bool:
    """Return whether an operator has this name or alias."""
    return name in _OPS


def find(name: str) -> type[Operator]:
    """Return the operator with the name or alias ``name``. Raises SpecError, which suggests similar names, if there is
    none."""
    if name in _OPS:
        return _OPS[name]
    raise SpecError(f"there is no operator {name!r}{hint(name, _OPS) or '; `dali-run ops` lists them'}")


def hint(name: str, names: typing.Iterable[str]) -> str:
    """Return the end of a message about the unknown operator ``name``: that DALI has it, or similar names from
    ``names``. Operators that only the engine uses are never suggested."""
    from .dali_names import DALI_NAMES

    if name in DALI_NAMES:
        return ": DALI has one, dali-run does not (yet); `dali-run ops` lists those that it has"
    return nearest(name, [n for n in names if not any(part.startswith("_") for part in n.split("."))])


def nearest(name: str, names: typing.Iterable[str]) -> str:
    """Return ``'; did you mean ...?'`` with the names from ``names`` that are similar to ``name``; empty if none is."""
    import difflib

    close = difflib.get_close_matches(name, list(names), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def outputs_of(result: Batch | tuple[Batch, ...] | list[Batch]) -> tuple[Batch, ...]:
    """Return the result of a kernel as a tuple."""
    return (result,) if isinstance(result, Batch) else tuple(result)
