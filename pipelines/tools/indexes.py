"""Index files of DALI's scripts: positions of the records of a TFRecord or RecordIO file, or of the members of a tar
archive."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ...ops.errors import JobError
from ...readers import mxnet, tfrecord, webdataset


def write_tfrecord_index(source: Path, index: Path) -> int:
    """Write the index of a TFRecord file in the format of ``tfrecord2idx``: per record one line with offset and length,
    framing included. Return the number of records.

    Raises JobError for a file that is damaged or cannot be read; no index is written then.
    """
    starts, lengths = tfrecord.framed(_found(source))
    _write(index, (f"{a} {n}\n" for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)))
    return len(starts)


def write_recordio_index(source: Path, index: Path) -> int:
    """Write the index of a RecordIO file in the format of ``rec2idx``: per record one line with number and offset,
    separated by a tab. Return the number of records.

    Raises JobError for a file that is damaged or cannot be read; no index is written then.
    """
    starts = mxnet.framed(_found(source))
    _write(index, (f"{k}\t{a}\n" for k, a in enumerate(starts.tolist())))
    return len(starts)


def write_webdataset_index(source: Path, index: Path) -> int:
    """Write the index of a tar archive in the format of ``wds2idx``: ``v1.2`` and the number of samples, then one line
    per sample with extension, offset, size and name of each member. Return the number of samples.

    Raises JobError for an archive that is damaged, has no samples, or cannot be read; no index is written then.
    """
    lines: list[str] = []
    last = None
    for name, offset, size in webdataset.members_of(_found(source)):
        folder, slash, file = name.rpartition("/")
        stem, dot, extension = file.partition(".")
        if not stem or not dot:
            continue  # hidden files, and files without an extension
        part = f"{extension} {offset} {size} {name}"
        if (key := folder + slash + stem) == last:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
        last = key
    if not lines:
        raise JobError(f"{source}: has no samples")
    _write(index, (f"v1.2 {len(lines)}\n", *(f"{line}\n" for line in lines)))
    return len(lines)


def _found(source: Path) -> str:
    if not source.is_file():
        raise JobError(f"{source}: there is no such file")
    return str(source)


def _write(index: Path, lines: Iterable[str]) -> None:
    """Write ``lines`` to the file ``index``, under a temporary name until it is complete."""
    unfinished = index.with_name(f".{index.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8", errors="surrogateescape") as out:
            out.writelines(lines)
        unfinished.replace(index)
    except OSError as e:
        unfinished.unlink(missing_ok=True)
        raise JobError(f"{index} cannot be written: {e.strerror}") from None
