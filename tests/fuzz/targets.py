"""Targets of fuzzing: a function of bytes for each of our parsers, and valid inputs to start from.

A target returns normally, whatever the bytes: errors that are part of the contract are caught here, anything else - an
exception of another kind, a hang, a read outside of the data - is a finding. Readers are driven as jobs drive them:
opened, and every record fetched in one batch.
"""

from __future__ import annotations

import atexit
import gzip
import io
import json
import math
import os
import random
import shutil
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from dali_run.ops.errors import DaliRunError
from dali_run.readers.base import Reader

from ..kit.readers import fetch

MOST_RECORDS = 64
MOST_BYTES = 1 << 14
MOST_UNPACKED = 1 << 18
"""Bytes; more of them take plain Python half a minute, and jobs nothing."""


def small_blocks() -> None:
    """Containers are walked in blocks of tens of thousands of records; here of few, so that small ones have several."""
    from dali_run.readers import lmdb, mxnet, tar_cpu, tfrecord, webdataset

    lmdb._BLOCK = mxnet._BLOCK = tfrecord._BLOCK = 3
    webdataset._BLOCK = 2 * tar_cpu.MAX_NAME // 64  # the shortest in which there is room for every name and link


def mutated(data: bytes, draw: random.Random) -> bytes:
    """A few bytes changed, and often a part cut, repeated or put elsewhere."""
    raw = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        if raw:
            at = draw.randrange(len(raw))
            raw[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, draw.randrange(256), raw[at] ^ 1 << draw.randrange(8)))
    a, b = sorted(draw.randrange(len(raw) + 1) for _ in range(2))
    kind = draw.randrange(6)
    if kind == 0:
        del raw[a:b]
    elif kind == 1:
        raw[a:a] = raw[a : min(b, a + 64)]
    elif kind == 2:
        del raw[a:]
    elif kind == 3:
        piece = raw[a : min(b, a + 64)]
        at = draw.randrange(len(raw) - len(piece) + 1)
        raw[at : at + len(piece)] = piece
    return bytes(raw[:MOST_BYTES])


@dataclass(frozen=True)
class Target:
    """A parser."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    kernels: bool = False
    """Its loops are Numba's: coverage and bounds need them as plain Python (NUMBA_DISABLE_JIT=1)."""
    needs: str = ""
    """A package that may be missing."""
    damage: Callable[[bytes, random.Random], bytes] = mutated
    """A valid input, changed."""


@cache
def folder() -> Path:
    """Where targets put the one file that they read; in memory where the system offers that."""
    memory = "/dev/shm"
    made = tempfile.mkdtemp(prefix="dali-run-fuzz-", dir=memory if os.path.isdir(memory) else None)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def file(name: str, data: bytes) -> str:
    """``data`` as a file."""
    path = folder() / name
    path.write_bytes(data)
    return str(path)


def read_all(make: Callable[[], Reader]) -> None:
    """Open the data set, fetch its first records, and look where the results point."""
    try:
        reader = make()
        reader.check()
        source = reader.open()
    except DaliRunError:
        return
    try:
        n = min(len(source), MOST_RECORDS)
        batches, rejects = fetch(reader, source, np.arange(n))
        assert all((b.shapes >= 0).all() for b in batches)
        for i in range(n):
            assert source.origin(i).key is not None
        for reject in rejects:
            assert reject.code
            assert len(reject.message) > 5
    finally:
        source.close()


# -- valid inputs -----------------------------------------------------------------------------------------------------


@cache
def _crc_table() -> list[int]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


def masked_crc(data: bytes) -> int:
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def framed(records: Sequence[bytes]) -> bytes:
    out = b""
    for record in records:
        length = struct.pack("<Q", len(record))
        out += length + struct.pack("<I", masked_crc(length)) + record + struct.pack("<I", masked_crc(record))
    return out


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


def example() -> bytes:
    """tf.train.Example with a feature of each kind."""
    kinds = {
        b"data": field(1, field(1, b"some bytes")),
        b"label": field(3, field(1, b"\x05\xff\x01")),
        b"box": field(2, field(1, struct.pack("<3f", 1, 2, 3))),
    }
    return field(1, b"".join(field(1, field(1, k) + field(2, v)) for k, v in kinds.items()))


FEATURES = {"data": "string", "label": {"dtype": "int64", "var_len": True}, "box": {"dtype": "float", "shape": [3]}}


def archive(**how: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", **how) as tar:
        for name in ("a.jpg", "a.cls", "b" * 120 + ".jpg", "c.jpg", "c.seg.png"):
            info = tarfile.TarInfo(name)
            info.size = 7
            tar.addfile(info, io.BytesIO(b"content"))
        link = tarfile.TarInfo("l.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "../../etc/passwd"
        tar.addfile(link)
    return out.getvalue()[:8192]


def sealed(data: bytes) -> bytes:
    """A tar whose headers have the right checksums, which chance never gives them."""
    raw = bytearray(data)
    for at in range(0, len(raw) - 511, 512):
        if raw[at + 257 : at + 262] == b"ustar":
            raw[at + 148 : at + 156] = b" " * 8
            raw[at + 148 : at + 156] = b"%06o\0 " % sum(raw[at : at + 512])
    return bytes(raw)


def recordio(parts: Sequence[tuple[int, bytes]]) -> bytes:
    out = b""
    for kind, data in parts:
        out += struct.pack("<II", 0xCED7230A, kind << 29 | len(data)) + data + bytes(-len(data) % 4)
    return out


def database(values: Sequence[bytes]) -> bytes:
    path = folder() / "seed.lmdb"
    path.unlink(missing_ok=True)
    with lmdb.open(str(path), map_size=1 << 20, subdir=False, lock=False) as env, env.begin(write=True) as txn:
        for i, value in enumerate(values):
            txn.put(b"%08d" % i, value)
    return path.read_bytes()


def datum() -> bytes:
    return b"\x08\x03\x10\x04\x18\x05" + field(4, bytes(60)) + b"\x28\x07\x38\x00"


def tensors() -> bytes:
    """Caffe2's TensorProtos: an image as a string, a label as int32."""
    image = b"\x08\x01\x10\x04" + field(6, b"file")
    label = b"\x08\x01\x10\x02\x20\x09"
    return field(1, image) + field(1, label)


def message_pack() -> bytes:
    return b"\x83\xa4data\xc4\x04file\xa5label\x07\xa3box\x93\xca\x3f\x80\x00\x00\x01\xcb" + struct.pack(">d", 0.5)


def table(**how: Any) -> bytes:
    """A Parquet file as Hugging Face's datasets have them."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    columns = {
        "image": [{"bytes": b"some bytes", "path": None}, {"bytes": b"others", "path": "b.jpg"}] * 4,
        "label": list(range(8)), "box": [[0.5, 1.0], [], [2.0]] * 2 + [[3.0], [4.0]], "key": list("abcdefgh"),
    }  # fmt: skip
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, row_group_size=3, **how)
    return out.getvalue()


def first_pages(**how: Any) -> bytes:
    """A table from its first page on."""
    return table(**how)[4:]


def coco() -> bytes:
    images = [{"id": 1, "file_name": "a.jpg", "width": 10, "height": 8}, {"id": 2, "file_name": "b.jpg"}]
    box = {"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "iscrowd": 0}
    marks = [
        {**box, "segmentation": [[0, 0, 5, 5, 5, 0]]},
        {**box, "iscrowd": 1, "segmentation": {"size": [8, 10], "counts": "0P2"}},
        {**box, "iscrowd": 1, "segmentation": {"size": [8, 10], "counts": [10, 20, 50]}},
    ]
    return json.dumps({"images": images, "annotations": marks, "categories": [{"id": 3, "name": "x"}]}).encode()


def array(**how: Any) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.arange(24, dtype="<f4").reshape(2, 3, 4), **how)
    return out.getvalue()


def jpeg(**how: Any) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.arange(30 * 20 * 3, dtype=np.uint8).reshape(20, 30, 3)).save(out, "JPEG", **how)
    return out.getvalue()


def direct_pictures() -> list[bytes]:
    """PNGs of all colour types besides."""
    from PIL import Image

    made = pictures()
    image = Image.fromarray(np.arange(9 * 7 * 4, dtype=np.uint8).reshape(7, 9, 4))
    for mode in ("1", "L", "LA", "P", "RGBA"):
        out = io.BytesIO()
        image.convert(mode).save(out, "PNG")
        made.append(out.getvalue())
    return made


def pictures() -> list[bytes]:
    from PIL import Image

    made = []
    image = Image.fromarray(np.arange(9 * 7 * 3, dtype=np.uint8).reshape(7, 9, 3))
    for kind in ("PNG", "BMP", "TIFF", "WEBP", "GIF", "PPM", "JPEG2000"):
        out = io.BytesIO()
        image.save(out, kind)
        made.append(out.getvalue())
    return made


def modern_pictures() -> list[bytes]:
    """AVIF, HEIC and JPEG XL besides, as far as this machine can write them."""
    from importlib.util import find_spec

    from PIL import Image, features

    made, pixels = pictures(), np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    if features.check("avif"):
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "AVIF")
        made.append(out.getvalue())
    if find_spec("imagecodecs"):
        import imagecodecs

        made += [bytes(imagecodecs.jpegxl_encode(pixels, usecontainer=boxes)) for boxes in (False, True)]
    if find_spec("pillow_heif"):
        import pillow_heif

        out = io.BytesIO()
        pillow_heif.from_pillow(Image.fromarray(pixels)).save(out)
        made.append(out.getvalue())
    return made


def exif() -> bytes:
    from PIL import Image

    block = Image.Exif()
    block[0x0112] = 6
    return block.tobytes()


SPEC = b"""version: 1
vars: {data: ./x, n: 3}
pipeline: {batch_size: "${n}", num_threads: 1, device: cpu, seed: 4}
graph:
  - {op: readers.file, file_root: "${data}", random_shuffle: true, out: [jpegs, labels]}
  - {op: decoders.image, in: jpegs, output_type: RGB, out: images}
  - {op: random.coin_flip, probability: 0.5, out: coin}
  - if: $coin
    then: [{op: flip, in: images, out: images}]
    else: [{op: copy, in: images, out: images}]
  - {op: expr, expr: "a * 2 + (b > 3)", in: [images, labels], out: sum}
outputs: {image: images, label: labels, sum: sum}
write: {writer: tfrecord, path: ./out, shard: {samples: 10}, fields: {image: {encode: jpeg}, label: {}}}
on_error: {policy: skip, max_errors: 1%}
"""


def journal() -> bytes:
    from dali_run.writers.shards.journal import _line

    header = {"format": "dali-run-journal", "version": 1, "range": [0, 10]}
    entry = {"shard": 0, "positions": [0, 4], "counts": {"written": 4}}
    return _line(header) + _line(entry) + _line({"done": True, "stop": 10})


def reject_log() -> bytes:
    from dali_run.writers.shards.rejects import RejectRow

    return RejectRow(3, "key", "a.jpg", -1, -1, "decoders.image", "corrupt_image", "is cut off").line().encode() * 2


# -- targets ----------------------------------------------------------------------------------------------------------


def spec(data: bytes, name: str = "spec.yaml") -> None:
    from dali_run.pipelines.spec.build import load_spec

    try:
        load_spec(file(name, data))
    except DaliRunError as e:
        said = str(e)
    else:
        return
    assert said.strip()


def expression(data: bytes) -> None:
    from dali_run.ops.formulas import expression

    try:
        tree = expression.parse(data.decode("utf-8", "replace"))
        expression.typed(tree, dict.fromkeys(expression.names(tree), np.dtype(np.uint8)))
    except DaliRunError:
        return


def settings(data: bytes) -> None:
    from dali_run.pipelines.bench.tune import read_settings

    try:
        read_settings(Path(file("settings.yaml", data)))
    except DaliRunError:
        return


def tfrecord(data: bytes) -> None:
    from dali_run.readers.tfrecord import TFRecord

    path = file("a.tfrecord", data)
    read_all(lambda: TFRecord(path=path, features=FEATURES))
    read_all(lambda: TFRecord(path=path, features=FEATURES, check_crc=False))


def examples(data: bytes) -> None:
    from dali_run.readers.tfrecord import TFRecord

    path = file("b.tfrecord", struct.pack("<QI", len(data), 0) + data + bytes(4))
    read_all(lambda: TFRecord(path=path, features=FEATURES, check_crc=False))


def index_of_tfrecord(data: bytes) -> None:
    from dali_run.readers.tfrecord import TFRecord

    path, index = file("c.tfrecord", framed([example()] * 2)), file("c.idx", data)
    read_all(lambda: TFRecord(path=path, index_path=index, features=FEATURES))


def unpacked(data: bytes) -> int:
    """Bytes that come out of ``data``, if it is gzip'ed; what is far beyond the bound is not counted."""
    size = 0
    with suppress(OSError, EOFError, zlib.error), gzip.open(io.BytesIO(data)) as whole:
        while size <= MOST_UNPACKED and (part := whole.read1(MOST_BYTES)):
            size += len(part)
    return size


def webdataset(data: bytes) -> None:
    from dali_run.readers.webdataset import WebDataset

    if unpacked(data) > MOST_UNPACKED:
        return
    path = file("a.tar", data)
    read_all(lambda: WebDataset(paths=path, ext=("jpg;jpeg", "cls", "seg.png"), missing_component_behavior="empty"))


def index_of_webdataset(data: bytes) -> None:
    from dali_run.readers.webdataset import WebDataset

    path, index = file("b.tar", archive()), file("b.idx", data)
    read_all(lambda: WebDataset(paths=path, index_paths=index, ext=("jpg",), missing_component_behavior="empty"))


def mxnet(data: bytes) -> None:
    from dali_run.readers.mxnet import MXNet

    path = file("a.rec", data)
    read_all(lambda: MXNet(path=path))


def index_of_mxnet(data: bytes) -> None:
    from dali_run.readers.mxnet import MXNet

    path, index = file("b.rec", recordio(RECORDS)), file("b.idx", data)
    read_all(lambda: MXNet(path=path, index_path=index))


RECORDS = [(0, struct.pack("<IfQQ", 0, 3.0, 1, 0) + b"image"), (1, struct.pack("<IfQQ", 2, 0.0, 1, 0)),
           (2, struct.pack("<2f", 1, 2)), (3, b"the rest")]  # fmt: skip


def lmdb_pages(data: bytes) -> None:
    from dali_run.readers.lmdb import LMDB

    path = file("a.mdb", data)
    read_all(lambda: LMDB(path=path))


def _value(data: bytes, make: Callable[[str], Reader]) -> None:
    path = folder() / "value.mdb"
    path.unlink(missing_ok=True)
    with lmdb.open(str(path), map_size=1 << 20, subdir=False, lock=False) as env, env.begin(write=True) as txn:
        txn.put(b"key", data)
    read_all(lambda: make(str(path)))


def caffe(data: bytes) -> None:
    from dali_run.readers.lmdb import Caffe

    _value(data, lambda path: Caffe(path=path))
    _value(data, lambda path: Caffe(path=path, encoded=False))


def caffe2(data: bytes) -> None:
    from dali_run.readers.lmdb import Caffe2

    _value(data, lambda path: Caffe2(path=path))
    _value(data, lambda path: Caffe2(path=path, encoded=False, label_type=1, num_labels=5))


def msgpack(data: bytes) -> None:
    from dali_run.readers.lmdb import LMDB

    _value(data, lambda path: LMDB(path=path, schema="msgpack", features=FEATURES))


def parquet(data: bytes) -> None:
    from dali_run.readers.parquet.reader import Parquet

    path = file("a.parquet", data)
    read_all(lambda: Parquet(path=path, columns=("image", "label", "box"), key="key"))
    read_all(lambda: Parquet(path=path, columns=("image",), nulls="empty", check_crc=False))


def parquet_pages(data: bytes) -> None:
    from dali_run.readers.parquet.pages import walk_pages

    try:
        found = walk_pages(memoryview(data), 0, len(data), 100)
        assert found.values >= 100 or found.unpacked >= 0
    except DaliRunError:
        return


def annotations(data: bytes) -> None:
    from dali_run.readers.coco import Coco

    path = file("coco.json", data)
    (folder() / "a.jpg").write_bytes(b"a")
    (folder() / "b.jpg").write_bytes(b"b")
    read_all(lambda: Coco(annotations_file=path, file_root=str(folder()), polygon_masks=True))
    read_all(lambda: Coco(annotations_file=path, file_root=str(folder()), pixelwise_masks=True, ratio=True))


def npy(data: bytes) -> None:
    from dali_run.readers.npy import Numpy

    path = file("a.npy", data)
    read_all(lambda: Numpy(files=(path,)))


def npy_decoder(data: bytes) -> None:
    from ..kit.operators import apply, batch_of, operator

    whole = np.frombuffer(array(), np.uint8)
    out, rejects = apply(operator("decoders.numpy", dtype="FLOAT"), batch_of([whole, np.frombuffer(data, np.uint8)]))
    assert out.sample(0).shape == (2, 3, 4)
    assert all(r.slot == 1 and r.code != "internal" for r in rejects)


def npy_of_shape(shape: object, kind: str = "<f4") -> bytes:
    """A .npy file whose header claims ``shape``, and 96 bytes of data."""
    text = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + bytes(96)


def fits(data: bytes) -> None:
    from dali_run.readers.fits import read_hdus, read_image

    with suppress(DaliRunError):
        for hdu in read_hdus(memoryview(data)):
            with suppress(DaliRunError):
                extents = hdu.extents("Z" if "ZNAXIS" in hdu.cards else "")
                if math.prod(extents) < MOST_UNPACKED:
                    read_image(memoryview(data), hdu)


def fits_files() -> list[bytes]:
    saved = np.load(Path(__file__).parents[1] / "golden" / "fits.npz")
    return [saved[f"{name}/file"].tobytes() for name in ("uint16", "cube", "RICE_1-int16-tiles", "GZIP_2-int16-tiles")]


def file_list(data: bytes) -> None:
    from dali_run.readers.file import read_file_list

    try:
        read_file_list(file("list.txt", data))
    except DaliRunError:
        return


def jpeg_header(data: bytes) -> None:
    from dali_run.ops.codecs.jpeg.header import OK, read_headers

    padded = np.frombuffer(b"\xff" * 8 + data + b"\xff" * 8, np.uint8)
    row = read_headers(padded, np.array([8], np.int64), np.array([len(data)], np.int64))[0]
    if row["status"] == OK:
        assert 0 < row["width"] <= 65500
        assert 0 < row["height"] <= 65500
        assert 0 < row["scan_offset"] <= len(data)
        assert (row["quant"] >= 0).all()
        assert (row["quant"] < len(data)).all()


def image_header(data: bytes) -> None:
    from dali_run.ops.codecs.formats import probe, recognise

    try:
        if recognise(memoryview(data)) == "jpeg":  # `jpeg_header` is their parser
            return
        found = probe(memoryview(data))
        assert found.width > 0
        assert found.height > 0
    except DaliRunError:
        return


def direct_picture(data: bytes) -> None:
    """Decoders of this process: what they take, Pillow takes, with the same pixels."""
    from unittest import mock

    from dali_run.ops.codecs import pillow
    from dali_run.ops.codecs.formats import probe
    from dali_run.ops.codecs.png import decoder as png
    from dali_run.ops.codecs.uncompressed import decoder as plain
    from dali_run.ops.codecs.webp import decoder as webp

    view = memoryview(data)
    try:
        header = probe(view)
    except DaliRunError:
        return
    decoders = {"png": png.stored, "webp": webp.decode, "bmp": plain.view, "pnm": plain.view}
    if header.format not in decoders or header.width * header.height > 1 << 20:
        return
    found = decoders[header.format](view, header)
    if found is None:
        return
    with mock.patch.object(webp, "decode", return_value=None):
        wanted = pillow.decode(view, header, False, 1 << 20)
    if header.bits <= 8:
        np.testing.assert_array_equal(found, wanted)


def dali_file(data: bytes) -> None:
    """A serialized pipeline of DALI's; what is made of it is a spec that can be read."""
    from dali_run.pipelines.problems import Problems
    from dali_run.pipelines.spec.dali_file import spec_text
    from dali_run.pipelines.spec.text import parse

    try:
        text = spec_text(data)
    except DaliRunError:
        return
    problems = Problems()
    parse(text, "spec.yaml", problems)
    problems.raise_any()


def dali_files() -> list[bytes]:
    saved = np.load(Path(__file__).parents[1] / "golden" / "serialized.npz")
    return [saved[f"{name}/file"].tobytes() for name in ("pictures", "sources", "conditionals", "indexing")]


def exif_block(data: bytes) -> None:
    from dali_run.ops.codecs.exif import exif_orientation

    assert 1 <= exif_orientation(memoryview(data)) <= 8


def job_journal(data: bytes) -> None:
    from dali_run.writers.shards.journal import read_journal

    try:
        read_journal(Path(file("journal.jsonl", data)))
    except DaliRunError:
        return


def verified(data: bytes, name: str) -> None:
    """An output of a job whose ``name`` is ``data``."""
    from dali_run.writers.shards.verify import verify

    root = output()
    kept = (root / name).read_bytes()
    try:
        (root / name).write_bytes(data)
        verify(root)
    except DaliRunError:
        return
    finally:
        (root / name).write_bytes(kept)


@cache
def output() -> Path:
    """A finished output with two shards and a rejected sample."""
    from dali_run.pipelines.job.run import run_job

    here = folder() / "job"
    for i in range(4):
        (here / "in" / "a").mkdir(parents=True, exist_ok=True)
        (here / "in" / "a" / f"{i}.jpg").write_bytes(jpeg() if i else b"no picture")
    job = here / "spec.yaml"
    job.write_text(
        "version: 1\npipeline: {batch_size: 2, num_threads: 1, device: cpu}\n"
        f"graph:\n  - {{op: readers.file, file_root: {here / 'in'}, out: [x, y]}}\n"
        "  - {op: decoders.image, in: x, out: x}\noutputs: {x: x, y: y}\n"
        f"write: {{writer: tfrecord, path: {here / 'out'}, shard: {{samples: 2}}, "
        "fields: {x: {encode: png}, y: {}}}\n"
        "on_error: {policy: skip, max_errors: 100%}\n"
    )
    run_job(job)
    return here / "out"


def kept(name: str) -> Callable[[], list[bytes]]:
    return lambda: [(output() / name).read_bytes()]


def index_cache(data: bytes) -> None:
    from dali_run.readers.fetch import index_cache
    from dali_run.readers.tfrecord import TFRecord

    path = file("d.tfrecord", framed([example()] * 2))
    stat = os.stat(path)
    kept = index_cache.WORTHWHILE
    index_cache.WORTHWHILE = 1
    try:
        place = index_cache._index_paths(path, "tfrecord")[0]
        body = struct.pack("<3q", 2, 2, 2) + data[: len(data) // 8 * 8]
        table = struct.pack("<6q", index_cache._MAGIC, 1, stat.st_size, stat.st_mtime_ns, 3, zlib.crc32(body)) + body
        place.write_bytes(table)
        read_all(lambda: TFRecord(path=path, features=FEATURES))
        place.unlink(missing_ok=True)
    finally:
        index_cache.WORTHWHILE = kept


TARGETS: dict[str, Target] = {
    "spec": Target(spec, lambda: [SPEC, b"version: 1\n", b"&a [*a]\n"]),
    "spec_json": Target(lambda d: spec(d, "spec.json"), lambda: [b'{"version": 1, "graph": [], "outputs": {}}']),
    "dali_file": Target(dali_file, dali_files),
    "expression": Target(expression, lambda: [b"a * 2 + (b > 3)", b"clamp(x, 0, 1.5) ** -2 // y & 3 if z else 1"]),
    "settings": Target(settings, lambda: [b"pipeline: {batch_size: 64, num_threads: 2}\n"]),
    "tfrecord": Target(tfrecord, lambda: [framed([example()] * 2), framed([b""])], kernels=True),
    "tfrecord_index": Target(index_of_tfrecord, lambda: [b"0 85\n85 85\n"], kernels=True),
    "example": Target(examples, lambda: [example()], kernels=True),
    "index_cache": Target(index_cache, lambda: [struct.pack("<6q", 12, 117, 89, 89, 0, 0)], kernels=True),
    "tar": Target(
        webdataset, lambda: [archive(), archive(format=tarfile.PAX_FORMAT), gzip.compress(archive())], kernels=True
    ),
    "tar_sealed": Target(
        lambda d: webdataset(sealed(d)), lambda: [archive(), archive(format=tarfile.PAX_FORMAT)], kernels=True
    ),
    "tar_index": Target(index_of_webdataset, lambda: [b"v1.2 2\njpg 512 7 a.jpg\njpg 2048 7 c.jpg\n"], kernels=True),
    "recordio": Target(mxnet, lambda: [recordio(RECORDS)], kernels=True),
    "recordio_index": Target(index_of_mxnet, lambda: [b"0\t0\n1\t40\n"], kernels=True),
    "lmdb": Target(lmdb_pages, lambda: [database([b"x" * 9, b"y" * 5000]), database([b"v"] * 300)], kernels=True),
    "caffe": Target(caffe, lambda: [datum()], kernels=True),
    "caffe2": Target(caffe2, lambda: [tensors()], kernels=True),
    "msgpack": Target(msgpack, lambda: [message_pack()], kernels=True),
    "parquet": Target(
        parquet, lambda: [table(), table(compression="gzip", use_dictionary=False)], kernels=True, needs="pyarrow"
    ),
    "parquet_pages": Target(
        parquet_pages, lambda: [first_pages(), first_pages(data_page_version="2.0")], needs="pyarrow"
    ),
    "coco": Target(annotations, lambda: [coco()]),
    "npy": Target(npy, lambda: [array(), array(version=(2, 0))]),
    "npy_decoder": Target(npy_decoder, lambda: [array(), npy_of_shape((2**31, 0)), npy_of_shape((3, 1, 8))]),
    "fits": Target(fits, fits_files, kernels=True),
    "file_list": Target(file_list, lambda: [b"a b.jpg 3\nc.jpg 4\n\n"]),
    "jpeg_header": Target(jpeg_header, lambda: [jpeg(), jpeg(progressive=True), jpeg(exif=exif())], kernels=True),
    "image_header": Target(image_header, modern_pictures),
    "direct_picture": Target(direct_picture, direct_pictures),
    "exif": Target(exif_block, lambda: [exif(), exif()[6:]]),
    "journal": Target(job_journal, lambda: [journal()]),
    "output_journal": Target(lambda d: verified(d, "journal.jsonl"), kept("journal.jsonl")),
    "manifest": Target(lambda d: verified(d, "manifest.json"), kept("manifest.json")),
    "rejects": Target(lambda d: verified(d, "rejects.jsonl"), lambda: [*kept("rejects.jsonl")(), reject_log()]),
}
"""By name."""
