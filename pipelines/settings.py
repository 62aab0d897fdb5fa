"""Settings of a run that YAML and Python share, each declared once.

A setting is a field of `RunSettings`: its type, bounds, default and help. The ``pipeline:`` section of a spec, its JSON
Schema, ``--set``, the keywords of `Pipeline`, previews, the table in docs/spec.md and the engine's options follow.
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
    """How a graph is run, on whatever data."""

    rng: Annotated[
        Rng,
        Arg("`philox`: a sample's random numbers depend on it alone; `dali`: DALI's own, which depend on batch_size"),
    ] = "philox"
    parity: Annotated[
        Library,
        Arg(
            "`torchvision`, `opencv` or `pillow`: the library whose pixels resizing, cropping, colour operators, blurs "
            "and warps give, where they know it; a step's own `parity` comes first"
        ),
    ] = "dali"
    isolation: Annotated[
        Mode,
        Arg(
            "image decoders on the CPU that run in processes of their own, so that a file that crashes one costs that "
            "file: `auto`, all but those of JPEG; `all`; `none`"
        ),
    ] = "auto"
    decode_timeout: Annotated[
        float, Arg("seconds of CPU time that such a decoder may take for an image", ge=0.01, le=86400)
    ] = TIMEOUT
    gpu_timeout: Annotated[
        float,
        Arg(
            "seconds that a GPU may take to end a batch that it was given; if a kernel or copy takes longer, the GPU "
            "counts as hung, and what is open is done by another process, or by the next run",
            ge=1,
            le=86400 * 7,
        ),
    ] = 600.0
    memory: Annotated[
        Memory,
        Arg(
            "the most that a run may hold: `{host: 4GiB, gpu: 20GiB}`, bytes or shares (`50%` of the memory of the "
            "machine or its container, of what is free on the GPU); auto: 50 %, and on the GPU 14 GiB in jobs and "
            "2 GiB in programs, more if two batches need it or the program only waits (at most 80 %, and in programs "
            "10 % of the GPU and half of what is free)"
        ),
    ] = field(default_factory=Memory)
    upload: Annotated[
        Upload,
        Arg(
            "how files come to a GPU. Single files that it decodes go up piece by piece while the rest of the batch is "
            "read; `copy`: a batch at a time, through page-locked memory. Records of containers (TFRecord, tar, LMDB, "
            "RecordIO): `copy`; `pieces`: piece by piece while the rest is copied; `registered`: the GPU gathers them "
            "out of the page cache; `auto`: pieces with 12 threads and more, else registered (if that is possible); "
            "jobs, which read each record once, copy them with 4 threads and more. `dali-run plan` prints the choice"
        ),
    ] = "auto"
    remember: Annotated[
        bool,
        Arg(
            "programs that loop over a data set keep what decoding finds out about its JPEGs, so that the next epoch "
            "is faster: on a GPU about 0.8 % of their size, on the CPU, where crops follow, 2.6 %, and at most a 32nd "
            "of `memory.host`"
        ),
    ] = True

    def shared(self) -> dict[str, Any]:
        """The fields of `RunSettings` alone, as keywords for another class that has them."""
        return {name: getattr(self, name) for name in parameters(RunSettings)}

    def to_dict(self) -> dict[str, Any]:
        """Those that differ from their defaults, as a spec or a Pipeline takes them."""
        found = {n: getattr(self, n) for n, p in parameters(RunSettings).items() if getattr(self, n) != p.default}
        return {n: v.to_dict() if isinstance(v, Memory) else v for n, v in found.items()}


def checked(given: Mapping[str, Any], others: Iterable[str] = ()) -> RunSettings:
    """The settings that keywords of a program give. Raises TypeError for one that does not exist, and is none of the
    ``others`` of Pipeline's arguments; ValueError for a value that is not allowed."""
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
    """Name, default and help of every setting, as the rows of a table in Markdown."""
    return "".join(f"| `{n}` | {_shown(p.default)} | {p.arg.help} |\n" for n, p in parameters(RunSettings).items())


def _shown(default: Any) -> str:
    return "auto" if isinstance(default, Memory) else f"{default:g}" if isinstance(default, float) else str(default)
