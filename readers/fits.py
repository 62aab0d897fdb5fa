"""readers.fits: read images of FITS files (FITS Standard 4.0, fits.gsfc.nasa.gov), uncompressed or in compressed
tiles."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..ops.base import Arg, Spec
from ..ops.batch import Batch, check_extents
from ..ops.context import Context
from ..ops.conversion import saturate
from ..ops.errors import JobError, SampleError, SpecError
from ..ops.kernels import Kernels
from ..ops.types import DALIDataType, to_numpy
from .base import Reader
from .file import FileSet, check_choice, chosen_files

_kernels: Any = Kernels(".fits_cpu", __package__)

_BLOCK, _CARD = 2880, 80
_TYPES = {8: ">u1", 16: ">i2", 32: ">i4", 64: ">i8", -32: ">f4", -64: ">f8"}
_MOST_HDUS, _MOST_BLOCKS = 10_000, 4096
_MAX_ELEMENTS = 1 << 31
_MOST_BLOCK = 4096
"""Largest number of integers in a block of Rice's code that is accepted; it is usually 16 or 32. A crafted file could
claim a block that holds all pixels in one byte."""
_WIDEST = 8
"""Size in bytes of the largest pixel type."""

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Hdu:
    """One HDU (header and data unit) of a FITS file: its header, and the offset of its data in the file."""

    cards: dict[str, Value]
    start: int
    size: int

    def integer(self, name: str, default: int | None = None) -> int:
        """Return the integer value of the header card ``name``, or ``default`` if there is no such card. Raises
        SampleError if the card holds something else, or if there is neither card nor default."""
        value = self.cards.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise SampleError("corrupt_data", f"header card {name} must be an integer, got {value!r:.60}")
        return value

    def number(self, name: str, default: float) -> float:
        """Return the numeric value of the header card ``name``, or ``default`` if there is no such card. Raises
        SampleError if the card holds something else."""
        value = self.cards.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise SampleError("corrupt_data", f"header card {name} must be a number, got {value!r:.60}")
        return float(value)

    def extents(self, prefix: str = "") -> tuple[int, ...]:
        """Shape of the HDU's array in C order, from its cards NAXISn, the last axis first. Raises SampleError."""
        count = self.integer(prefix + "NAXIS")
        if not 0 <= count <= 999:
            raise SampleError("corrupt_data", f"{prefix}NAXIS is {count}")
        found = tuple(self.integer(f"{prefix}NAXIS{k}") for k in range(count, 0, -1))
        check_extents(found, _WIDEST)
        if math.prod(found) > _MAX_ELEMENTS:
            raise SampleError("too_large", f"extents of {list(found)}")
        return found


def read_hdus(data: memoryview) -> Iterator[Hdu]:
    """Iterate over the HDUs (header and data units) of a FITS file, in their order. Raises SampleError."""
    at = 0
    for number in range(_MOST_HDUS):
        if at > len(data):
            raise SampleError("truncated", f"the file ends {at - len(data)} bytes before its HDU {number} does")
        if len(data) - at < _BLOCK and number:
            return
        if number == 0 and bytes(data[:6]) != b"SIMPLE":
            raise SampleError("not_an_image", "is not a FITS file: it does not begin with SIMPLE")
        cards, at = _header(data, at)
        hdu = Hdu(cards, at, 0)
        extents = hdu.extents()
        size = math.prod(extents) * abs(hdu.integer("BITPIX")) // 8 if extents else 0
        if number:
            size = (size + hdu.integer("PCOUNT", 0) * (abs(hdu.integer("BITPIX")) // 8)) * hdu.integer("GCOUNT", 1)
        if not 0 <= size <= len(data) - at:
            raise SampleError("truncated", f"HDU {number + 1} needs {size} bytes, {len(data) - at} are left")
        yield Hdu(cards, at, size)
        at += -(-size // _BLOCK) * _BLOCK


def _header(data: memoryview, at: int) -> tuple[dict[str, Value], int]:
    cards: dict[str, Value] = {}
    for _ in range(_MOST_BLOCKS):
        block = bytes(data[at : at + _BLOCK])
        if len(block) < _BLOCK:
            raise SampleError("truncated", "the file ends in a header")
        at += _BLOCK
        for k in range(0, _BLOCK, _CARD):
            card = block[k : k + _CARD].decode("latin-1")
            name = card[:8].rstrip()
            if name == "END":
                return cards, at
            if card[8:10] == "= " and name not in cards:
                cards[name] = _value(card[10:])
    raise SampleError("corrupt_data", "a header has no end")


def _value(text: str) -> Value:
    text = text.strip()
    if text.startswith("'"):
        inner, k = [], 1
        while k < len(text):
            if text[k] == "'":
                if text[k + 1 : k + 2] != "'":
                    break
                k += 1
            inner.append(text[k])
            k += 1
        return "".join(inner).rstrip()
    text = text.partition("/")[0].strip()
    if text in ("T", "F"):
        return text == "T"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text.replace("D", "E").replace("d", "e"))
    except ValueError:
        return None


def read_image(data: memoryview, hdu: Hdu) -> npt.NDArray[Any]:
    """Pixels of an HDU as a C-contiguous array of native byte order, scaled by BSCALE and BZERO: unsigned integers if
    these imply them, else float32, or float64 if the stored type has 32 bits or more. Raises SampleError."""
    if hdu.cards.get("ZIMAGE") is True:
        stored = _tiles(data, hdu)
    else:
        if hdu.cards.get("XTENSION", "IMAGE") != "IMAGE":
            raise SampleError("unsupported", f"the HDU is a {hdu.cards['XTENSION']}, not an image")
        extents = hdu.extents()
        if not extents or math.prod(extents) == 0:
            raise SampleError("bad_shape", "the HDU has no pixels")
        kind = _TYPES.get(hdu.integer("BITPIX"))
        if kind is None:
            raise SampleError("corrupt_data", f"BITPIX is {hdu.integer('BITPIX')}")
        if math.prod(extents) * np.dtype(kind).itemsize > hdu.size:
            raise SampleError("corrupt_data", f"{list(extents)} pixels in {hdu.size} bytes")
        stored = np.frombuffer(data, kind, math.prod(extents), hdu.start).reshape(extents)
        stored = stored.astype(stored.dtype.newbyteorder("="))
    scale, zero = hdu.number("BSCALE", 1.0), hdu.number("BZERO", 0.0)
    if scale == 1 and zero == 0:
        return stored
    if stored.dtype.kind in "iu" and scale == 1:
        width = stored.dtype.itemsize
        if stored.dtype.kind == "i" and zero == 2.0 ** (8 * width - 1):
            unsigned: npt.NDArray[Any] = stored.view(f"u{width}") ^ np.array(2 ** (8 * width - 1), f"u{width}")
            return unsigned
        if width == 1 and zero == -128:
            return (stored ^ np.uint8(128)).view(np.int8)
    wide = np.float64 if stored.dtype.itemsize >= 4 and stored.dtype != np.float32 else np.float32
    scaled: npt.NDArray[Any] = (stored.astype(np.float64) * scale + zero).astype(wide)
    return scaled


def _tiles(data: memoryview, hdu: Hdu) -> npt.NDArray[Any]:
    """Decode an image that is stored as a table of compressed tiles (section 10 of the FITS standard). Raises
    SampleError."""
    extents = hdu.extents("Z")
    bits = hdu.integer("ZBITPIX")
    if bits not in (8, 16, 32) or "ZSCALE" in {v for k, v in hdu.cards.items() if k.startswith("TTYPE")}:
        raise SampleError("unsupported", "compressed images are supported if they hold integers of 8, 16 or 32 bits")
    if not extents or math.prod(extents) == 0:
        raise SampleError("bad_shape", "the HDU has no pixels")
    method = hdu.cards.get("ZCMPTYPE")
    if method not in ("RICE_1", "RICE_ONE", "GZIP_1", "GZIP_2", "NOCOMPRESS"):
        raise SampleError("unsupported", f"compression {method!r} is not supported; RICE_1, GZIP_1 and GZIP_2 are")
    column, wide, row_bytes = _column(hdu)
    ndim = len(extents)
    tile = tuple(hdu.integer(f"ZTILE{k}", extents[-1] if k == 1 else 1) for k in range(ndim, 0, -1))
    if min(tile) < 1:
        raise SampleError("corrupt_data", f"tiles of {list(tile)}")
    counts = [-(-e // t) for e, t in zip(extents, tile, strict=True)]
    rows = hdu.integer("NAXIS2")
    if math.prod(counts) != rows:
        raise SampleError("corrupt_data", f"{rows} tiles, but the image needs {math.prod(counts)}")
    if rows * row_bytes > hdu.size:
        raise SampleError("corrupt_data", f"a table of {rows} tiles in {hdu.size} bytes")
    options = {hdu.cards.get(f"ZNAME{k}"): hdu.cards.get(f"ZVAL{k}") for k in range(1, 10)}
    heap = hdu.start + hdu.integer("THEAP", hdu.integer("NAXIS1") * rows)
    end = hdu.start + hdu.size
    if heap < hdu.start:
        raise SampleError("corrupt_data", "the heap of the tiles begins before their table")
    out = np.empty(extents, {8: np.uint8, 16: np.int16, 32: np.int32}[bits])
    for number, place in enumerate(itertools.product(*map(range, counts))):
        window = tuple(slice(p * t, min((p + 1) * t, e)) for p, t, e in zip(place, tile, extents, strict=True))
        shape = tuple(w.stop - w.start for w in window)
        at = hdu.start + number * row_bytes + column
        size, offset = np.frombuffer(data, ">i8" if wide else ">i4", 2, at).tolist()
        if not 0 <= offset <= offset + size <= end - heap:
            raise SampleError("corrupt_data", f"tile {number} lies outside of the file's heap")
        packed = np.frombuffer(data, np.uint8, size, heap + offset)
        out[window] = _tile(packed, str(method), options, out.dtype, math.prod(shape), number).reshape(shape)
    return out


def _column(hdu: Hdu) -> tuple[int, bool, int]:
    """Return three facts about a table of compressed tiles: the offset in a row of the descriptor of the compressed
    data, whether the descriptor has 64 bits, and the row's size in bytes."""
    widths = {"L": 1, "B": 1, "I": 2, "J": 4, "K": 8, "A": 1, "E": 4, "D": 8, "P": 8, "Q": 16}
    at = 0
    found: tuple[int, bool] | None = None
    for k in range(1, hdu.integer("TFIELDS") + 1):
        form = str(hdu.cards.get(f"TFORM{k}", ""))
        digits = form[: len(form) - len(form.lstrip("0123456789"))]
        kind = form[len(digits) : len(digits) + 1]
        if kind not in widths:
            raise SampleError("unsupported", f"a column of the format {form!r}")
        if hdu.cards.get(f"TTYPE{k}") == "COMPRESSED_DATA" and kind in "PQ":
            found = at, kind == "Q"
        at += int(digits or 1) * widths[kind]
    if found is None or at != hdu.integer("NAXIS1"):
        raise SampleError("corrupt_data", "the table of tiles has no column COMPRESSED_DATA, or rows of another size")
    return *found, at


def _tile(
    packed: npt.NDArray[np.uint8], method: str, options: dict[Any, Any], dtype: np.dtype[Any], count: int, number: int
) -> npt.NDArray[Any]:
    problem = SampleError("corrupt_data", f"tile {number} is damaged")
    if method.startswith("RICE"):
        width, block = options.get("BYTEPIX", 4), options.get("BLOCKSIZE", 32)
        if type(width) is not int or width not in (1, 2, 4) or type(block) is not int or not 1 <= block <= _MOST_BLOCK:
            raise SampleError("unsupported", f"Rice's code with BYTEPIX {width} and BLOCKSIZE {block}")
        decoded = np.empty(count, np.int64)
        if not _kernels.rice(packed, width, block, decoded):
            raise problem
        return decoded.astype(dtype)
    raw = packed.tobytes()
    need = count * dtype.itemsize
    if method != "NOCOMPRESS":
        try:
            inflater = zlib.decompressobj(wbits=31)
            raw = inflater.decompress(raw, need + 1)
        except zlib.error:
            raise problem from None
    if len(raw) != need:
        raise problem
    values = np.frombuffer(raw, np.uint8)
    if method == "GZIP_2":  # first all first bytes of the elements, then all second bytes, ...
        values = np.ascontiguousarray(values.reshape(dtype.itemsize, count).T).reshape(-1)
    return values.view(dtype.newbyteorder(">")).astype(dtype)


class _Images(FileSet):
    """Data set of the reader `Fits`, opened: files of images. The first readable file determines the dtypes and numbers
    of dimensions of all files."""

    def __init__(self, root: str | None, names: list[bytes], reader: Fits, *, only_files: bool) -> None:
        super().__init__(root, names, only_files=only_files)
        self._reader = reader
        problem = "it has no files"
        for i in range(min(len(self), 100)):
            try:
                self._models = [(a.dtype, a.ndim) for a in self._decode(memoryview(self.head(i, _MAX_ELEMENTS)[0]))]
                return
            except (OSError, SampleError) as e:
                problem = f"{self.path(i)}: {e}"
        raise JobError(f"no FITS image can be read: {problem}")

    def _decode(self, data: memoryview) -> list[npt.NDArray[Any]]:
        wanted = self._reader.hdu_indices
        found: dict[int, npt.NDArray[Any]] = {}
        count = 0
        for number, hdu in enumerate(read_hdus(data), 1):
            count = number
            if number in wanted:
                found[number] = read_image(data, hdu)
            if number >= max(wanted):
                break
        missing = [w for w in wanted if w not in found]
        if missing:
            raise SampleError("missing_feature", f"there is no HDU {missing[0]}; the file has {count}, from 1 on")
        types = self._reader.dtypes or ()
        arrays = []
        for k, w in enumerate(wanted):
            kind = to_numpy(types[k]) if types else found[w].dtype
            arrays.append(saturate(found[w], kind) if kind != found[w].dtype else found[w])
        return arrays

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        files = self.read(ctx, ctx.samples.index)
        refused = {r.slot for r in ctx.rejects}
        empty = [np.zeros((0,) * ndim, dtype) for dtype, ndim in self._models]
        rows: list[list[npt.NDArray[Any]]] = []
        for i, (start, size) in enumerate(zip(files.offsets.tolist(), files.sizes.tolist(), strict=True)):
            rows.append(empty)
            if int(ctx.samples.slot[i]) in refused:
                continue
            try:
                arrays = self._decode(memoryview(files.data[start : start + size]))
                for a, (dtype, ndim) in zip(arrays, self._models, strict=True):
                    if a.dtype != dtype or a.ndim != ndim:
                        raise SampleError("bad_shape", f"holds {a.dtype} of {a.ndim} dimensions, the first file "
                                          f"{dtype} of {ndim}")  # fmt: skip
            except SampleError as e:
                ctx.reject(i, e.code, str(e))
            else:
                rows[-1] = arrays
        return tuple(Batch.from_list(list(column), "", ctx.samples) for column in zip(*rows, strict=True))


class Fits(Reader, name="readers.fits"):
    """Read images of FITS files: ``file_root/*.fits`` and ``file_root/<folder>/*.fits``, or a list of files.

    One output per number in ``hdu_indices``, in C order (NAXIS1 is last). BSCALE and BZERO are applied: unsigned
    integers stay integers, other scales give floats. Tiles compressed by Rice's code or gzip are supported if they hold
    integers. Without ``dtypes`` an output has the dtype of the first file's data (DALI: UINT8).
    """

    aliases = ("experimental.readers.fits",)
    example = "{op: readers.fits, file_root: ./sky, hdu_indices: [2], out: images}"
    shuffles_list: ClassVar[bool] = True

    file_root: Annotated[str | None, Arg("folder, or the base of relative names in a list")] = None
    files: Annotated[tuple[str, ...] | None, Arg("paths of the files")] = None
    file_list: Annotated[str | None, Arg("text file with a name on every line")] = None
    file_filter: Annotated[str, Arg("pattern of file names below file_root")] = "*.fits"
    hdu_indices: Annotated[tuple[int, ...], Arg("HDUs to read, counted from 1; the first after the primary", ge=1)] = (
        2,
    )
    dtypes: Annotated[tuple[DALIDataType, ...] | None, Arg("dtypes of the outputs; values round and saturate")] = None

    def check(self) -> None:
        super().check()
        check_choice(self.file_root, self.files, self.file_list)
        if not self.hdu_indices:
            raise SpecError("hdu_indices needs at least one number")
        if self.dtypes is not None and len(self.dtypes) != len(self.hdu_indices):
            raise SpecError(f"{len(self.dtypes)} dtypes for {len(self.hdu_indices)} hdu_indices")

    @property
    def num_outputs(self) -> int:
        return len(self.hdu_indices)

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        return tuple(Spec(None, self.dtypes[k] if self.dtypes else None) for k in range(len(self.hdu_indices)))

    def open(self) -> _Images:
        root, names, only_files = chosen_files(self.file_root, self.files, self.file_list, self.file_filter)
        return _Images(root, names, self, only_files=only_files)
