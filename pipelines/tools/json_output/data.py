"""JSON of data sets and outputs: what is in them, and whether it is sound."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class Record(TypedDict):
    """One record of a data set."""

    key: str
    source: str
    record: int
    fields: dict[str, Any]
    problem: str


class InspectedData(TypedDict):
    """The first records of a data set."""

    target: str
    kind: str
    records: int | None
    samples: list[Record]


class Damage(TypedDict):
    """One thing that is wrong with an output."""

    file: str
    where: str
    message: str


class Verified(TypedDict):
    """The findings of ``verify`` in an output."""

    sound: bool
    problems: list[Damage]
    shards: int
    samples: int
    rejects: int
    bytes: int
    files: int
    hashed: int
    """Files whose SHA-256 was compared."""
    unchecked: list[str]
    """Parts of the output that were not checked, with the reason."""


class Merged(TypedDict):
    """An output of parts that is one now."""

    path: str
    parts: int


class Refused(TypedDict):
    """A sample that does not decode, or (``kept``) only with damage."""

    key: str
    source: str
    record: int
    operator: str
    code: str
    message: str
    kept: bool


class Measured(TypedDict):
    """A data set in numbers, or what a spec makes of one.

    ``fields`` (of a spec: ``outputs``) hold facts by what they are. Stored bytes: ``bytes``, ``sizes``, ``formats``.
    Numbers: ``spread``, and of few integers ``classes`` and ``counts``. Arrays: ``extents``, and ``mean``, ``std``,
    ``min`` and ``max`` of each channel. A spread is ``min``, ``p5``, ``median``, ``p95``, ``max`` and ``mean``.
    """

    target: str
    kind: str
    name: NotRequired[str]
    samples: int
    corrupt: int
    codes: dict[str, int]
    rejects: list[Refused]
    seconds: float
    samples_per_second: float | None
    device: str
    chosen_at_random: bool
    fields: NotRequired[dict[str, dict[str, Any]]]
    outputs: NotRequired[dict[str, dict[str, Any]]]
    images: NotRequired[dict[str, Any] | None]
    sounds: NotRequired[dict[str, Any] | None]


class CocoSample(TypedDict):
    """The part of sample data with boxes and masks."""

    images: int
    annotations: int


class SamplePicture(TypedDict):
    """One JPEG of sample data."""

    name: str
    number: int
    label: int
    width: int
    height: int
    subsampling: str
    gray: bool
    progressive: bool
    orientation: int
    quality: int


class Sampled(TypedDict):
    """Sample data that was made, or (``already_there``) had been."""

    version: int
    count: int
    seed: int
    classes: list[str]
    train: int
    val: int
    coco: CocoSample
    sounds: int
    pictures: list[SamplePicture]
    already_there: NotRequired[bool]
