"""Settings of a run that YAML and Python share, each declared once.

A setting is a field of `RunSettings` with its type, bounds, default and help. The ``pipeline:`` section of a spec, its
JSON Schema, ``--set``, the keywords of `Pipeline`, previews, the table in docs/spec.md and the engine's options are
derived from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args, get_origin

from ..ops.base import Arg, Parameter, coerce, nearest, parameters
from ..ops.codecs.isolation.processes import TIMEOUT, Mode
from ..ops.types import Library
from ..readers.fetch.gpu_reads import Upload
from .limits import Memory, memory_of

Rng = Literal["philox", "dali"]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of a run that do not depend on its data, such as the random numbers to use. Specs and Pipeline share
    them."""

    rng: Annotated[
        Rng,
        Arg(
            "`philox`: a sample's random numbers depend on the sample alone; `dali`: DALI's numbers, which depend "
            "on batch_size"
        ),
    ] = "philox"
    parity: Annotated[
        Library,
        Arg(
            "`torchvision`, `opencv` or `pillow`: the library whose pixels resizing, cropping, color operators, blurs "
            "and warps reproduce, if they support it; a step's own `parity` takes precedence"
        ),
    ] = "dali"
    batching: Annotated[
        Literal["positions", "full", "shapes"],
        Arg(
            "batches of iterators: `positions`, batch_size samples of the input each, less those that are left out or "
            "rejected; `full`, batch_size samples that are left; `shapes`, batch_size samples with one shape of the "
            "first output (aspect-ratio buckets). Jobs write the same files whatever it is"
        ),
    ] = "positions"
    isolation: Annotated[
        Mode,
        Arg(
            "CPU image decoders that run in separate processes, so that a file that crashes one costs only that "
            "file: `auto`, all but the JPEG decoders; `all`; `none`"
        ),
    ] = "auto"
    decode_timeout: Annotated[
        float, Arg("seconds of CPU time that a decoder in a separate process may take for an image", ge=0.01, le=86400)
    ] = TIMEOUT
    gpu_timeout: Annotated[
        float,
        Arg(
            "seconds in which a GPU must finish a batch; if a kernel or copy takes longer, the GPU "
            "counts as hung, and another process or the next run does the remaining work",
            ge=1,
            le=86400 * 7,
        ),
    ] = 600.0
    memory: Annotated[
        Memory,
        Arg(
            "memory limits of a run: `{host: 4GiB, gpu: 20GiB}`, bytes or shares (`50%` of the memory of the "
            "machine or its container, of the free GPU memory); auto: 50 %, and on the GPU 14 GiB in jobs and "
            "2 GiB in programs, more if two batches need it or the program only waits (at most 80 %, and in programs "
            "10 % of the GPU and half of its free memory)"
        ),
    ] = field(default_factory=Memory)
    upload: Annotated[
        Upload,
        Arg(
            "how files are uploaded to a GPU. Single files that it decodes go piece by piece while the rest is "
            "read; `copy`: one batch at a time, via page-locked memory. Records of containers (TFRecord, tar, LMDB, "
            "RecordIO): `copy`; `pieces`: piece by piece while the rest is copied; `registered`: the GPU reads them "
            "from the page cache; `auto`: pieces with 12 threads and more, else registered (if possible); "
            "jobs, which read each record once, copy them with 4 threads and more. `dali-run plan` prints the choice"
        ),
    ] = "auto"
    remember: Annotated[
        bool,
        Arg(
            "programs that loop over a data set cache decoding tables of its JPEGs, so that the next epoch "
            "is faster: about 0.8 % of their size on a GPU, 2.6 % on the CPU if crops follow, and at most 1/32 "
            "of `memory.host`"
        ),
    ] = True

    def shared(self) -> dict[str, Any]:
        """Return the fields of `RunSettings` without those of a subclass, as keyword arguments for another class that
        has the same fields."""
        return {name: getattr(self, name) for name in parameters(RunSettings)}

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults, in the notation of specs and of Pipeline."""
        changed = {n: getattr(self, n) for n, p in parameters(RunSettings).items() if getattr(self, n) != p.default}
        return {n: v.to_dict() if isinstance(v, Memory) else v for n, v in changed.items()}


def checked(given: Mapping[str, Any], others: Iterable[str] = ()) -> RunSettings:
    """Return the settings for a program's keyword arguments. Raises TypeError for a keyword that is neither a setting
    nor in ``others``, the other arguments of Pipeline; ValueError for a value that is not allowed."""
    known = parameters(RunSettings)
    values = {}
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"Pipeline has no argument {name!r}{nearest(name, [*known, *others])}")
        values[name] = _coerced(known[name], value)
    return RunSettings(**values)


def _coerced(p: Parameter, value: Any) -> Any:
    if p.type is Memory:
        return value if isinstance(value, Memory) else memory_of(value)
    if get_origin(p.type) is Literal and value not in get_args(p.type):
        raise ValueError(f"{p.name} must be one of {', '.join(get_args(p.type))}, got {value!r}")
    try:
        return coerce(p, value)
    except ValueError as e:
        raise ValueError(f"{p.name} {e}") from None


def table() -> str:
    """Return the rows of a Markdown table with name, default and help of every setting."""
    return "".join(f"| `{n}` | {_shown(p.default)} | {p.arg.help} |\n" for n, p in parameters(RunSettings).items())


def _shown(default: Any) -> str:
    return "auto" if isinstance(default, Memory) else f"{default:g}" if isinstance(default, float) else str(default)
