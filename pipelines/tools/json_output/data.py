"""JSON about data sets and outputs: their contents, and whether they are valid."""

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
    """The kind and the first records of a data set."""

    target: str
    kind: str
    records: int | None
    samples: list[Record]


class Damage(TypedDict):
    """One problem that ``verify`` found in an output of a job."""

    file: str
    where: str
    message: str


class Verified(TypedDict):
    """The result of ``verify``."""

    sound: bool
    problems: list[Damage]
    shards: int
    samples: int
    rejects: int
    bytes: int
    files: int
    hashed: int
    """Number of files whose SHA-256 was compared."""
    unchecked: list[str]
    """Parts of the output that were not checked, such as a shard, with the reasons."""


class Merged(TypedDict):
    """The output that ``merge`` made of the parts of a job."""

    path: str
    parts: int


class Refused(TypedDict):
    """A sample that cannot be decoded or, if ``kept`` is true, only in part."""

    key: str
    source: str
    record: int
    operator: str
    code: str
    message: str
    kept: bool


class Measured(TypedDict):
    """Statistics of a data set, or of the outputs of a spec.

    ``fields`` (for a spec: ``outputs``) are facts. Stored bytes have ``bytes``, ``sizes`` and ``formats``. Numbers have
    a ``spread`` and, if they are a few different integers, ``classes`` and ``counts``. Arrays have ``extents``, and
    ``mean``, ``std``, ``min`` and ``max`` per channel. A spread is ``min``, ``p5``, ``median``, ``p95``, ``max`` and
    ``mean``.
    """

    target: str
    kind: str
    name: NotRequired[str]
    samples: int
    corrupt: int
    codes: dict[str, int]
    rejects: list[Refused]
    left_out: dict[str, int]
    """Number of samples that each filter operator of a spec (such as `keep_if`) leaves out."""
    mixtures: dict[str, dict[str, int]]
    """For each mixture (`readers.mix`), by the reader's name, the number of samples from each data set."""
    seconds: float
    samples_per_second: float | None
    device: str
    chosen_at_random: bool
    fields: NotRequired[dict[str, dict[str, Any]]]
    outputs: NotRequired[dict[str, dict[str, Any]]]
    images: NotRequired[dict[str, Any] | None]
    sounds: NotRequired[dict[str, Any] | None]


class CocoSample(TypedDict):
    """The images with boxes and masks in sample data."""

    images: int
    annotations: int


class SamplePicture(TypedDict):
    """One JPEG in sample data."""

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
    """Sample data that was written or, if ``already_there``, existed before."""

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


class Deduplicated(TypedDict):
    """Numbers of rows that ``dedupe`` keeps and leaves out."""

    out: str
    """Path of the file with the keys to keep."""
    rows: int
    kept: int
    exact: int
    """Number of rows left out because of equal content hashes."""
    near: int
    """Number of other rows left out: near duplicates."""
    clusters: int
    """Number of clusters of more than one row."""
    largest: int
    """Number of rows in the largest cluster."""
    distance: int | None
    """Largest number of bits by which the hashes of near duplicates may differ; null if only content hashes were
    compared."""
