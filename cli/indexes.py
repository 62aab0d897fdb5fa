"""``tfrecord2idx``, ``rec2idx`` and ``wds2idx``: DALI's scripts that write index files, with DALI's arguments."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from .output import JOB_FAILED, USAGE, check_exists, say, tell


def tfrecord2idx(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``tfrecord2idx FILE INDEX``, and return its exit code."""
    from ..pipelines.tools.indexes import write_tfrecord_index

    parser = _parser("tfrecord2idx", "Write the index of a TFRecord file, for readers.tfrecord.")
    parser.add_argument("file", help="TFRecord file")
    parser.add_argument("index", help="index to write")
    options = parser.parse_args(arguments)
    return _written(write_tfrecord_index, options.file, options.index)


def rec2idx(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``rec2idx RECORD INDEX``, and return its exit code."""
    from ..pipelines.tools.indexes import write_recordio_index

    parser = _parser("rec2idx", "Write the index of a RecordIO file, for readers.mxnet.")
    parser.add_argument("record", help="RecordIO file (.rec)")
    parser.add_argument("index", help="index to write")
    options = parser.parse_args(arguments)
    return _written(write_recordio_index, options.record, options.index)


def wds2idx(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``wds2idx ARCHIVE [INDEX]``, and return its exit code. The default index is the archive's name up
    to its first dot, with ``.idx``."""
    from ..pipelines.tools.indexes import write_webdataset_index

    parser = _parser("wds2idx", "Write the index of a tar archive, for readers.webdataset.")
    parser.add_argument("archive", help="tar archive")
    parser.add_argument("index", nargs="?", help="index to write (default: ARCHIVE up to its first dot, with .idx)")
    options = parser.parse_args(arguments)
    folder, slash, name = options.archive.rpartition("/")
    index = options.index or f"{folder}{slash}{name[:1]}{name[1:].partition('.')[0]}.idx"
    return _written(write_webdataset_index, options.archive, index)


def _parser(name: str, what: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=name, description=what)


def _written(write: Callable[[Path, Path], int], source: str, index: str) -> int:
    from ..ops.errors import DaliRunError, SpecError

    try:
        check_exists(source)
        check_exists(os.path.dirname(index) or ".")
        n = write(Path(source), Path(index))
    except DaliRunError as e:
        say(str(e))
        return USAGE if isinstance(e, SpecError) else JOB_FAILED
    tell(f"{index}: {n} samples")
    return 0
