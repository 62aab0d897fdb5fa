"""Our TIFF decoder: libtiff's pixels, and never more than Pillow with libtiff takes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.batch import Batch
from dali_run.ops.codecs import pillow
from dali_run.ops.codecs.decoders import Image as ImageDecoder
from dali_run.ops.codecs.decoders import ImageCrop
from dali_run.ops.codecs.format import Header
from dali_run.ops.codecs.formats import probe
from dali_run.ops.codecs.png import decoder as png
from dali_run.ops.codecs.tiff import decoder
from dali_run.ops.context import Context, KernelServices
from dali_run.ops.errors import SampleError
from dali_run.ops.types import DALIImageType
from tests.kit.files.tiffs import deep, good_files, literal, lzw, packed, picture, plain_tags, saved
from tests.kit.operators import batch_of


def by_pillow(data: bytes, header: Header) -> Any:
    """Its pixels, or the error's code."""
    try:
        return pillow.decode(memoryview(data), header, False, 10**8)
    except SampleError as e:
        return e.code


def agrees(data: bytes) -> bool:
    """Whether the decoder takes the file; then Pillow does, too, with the same pixels."""
    try:
        header = probe(memoryview(data))
    except SampleError:
        return False
    if header.format != "tiff" or header.width * header.height > 10**7:
        return False
    got = decoder.stored(memoryview(data), header)
    if got is None:
        return False
    np.testing.assert_array_equal(got, by_pillow(data, header))
    return True


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("coding", [1, 5, 8, 32773])
def test_16_bits(coding: int, channels: int, order: str) -> None:
    """As they are stored, and rounded to 8."""
    if coding == 8 and not png.available():
        pytest.skip("no libdeflate here")
    for k, (tiled, predictor) in enumerate([(False, 1), (True, 1), (False, 2), (True, 2)]):
        if (coding == 32773 and k) or (coding == 1 and predictor == 2):
            continue
        data, pixels = deep(k, channels, coding, order, tiled=tiled, predictor=predictor)
        if coding == 32773:  # no runs: each strip is cut into literals
            data, pixels = literal(pixels, channels, order), pixels
        header = probe(memoryview(data))
        assert (header.bits, header.channels) == (16, channels)
        got = decoder.stored(memoryview(data), header)
        assert got is not None
        assert got.dtype == np.uint16
        np.testing.assert_array_equal(got, pixels)
        for kind in (DALIImageType.ANY_DATA, DALIImageType.RGB, DALIImageType.BGR):
            out, rejects, taken = run(ImageCrop(crop=(31, 17), crop_pos_x=0.4, output_type=kind), [data])
            assert not rejects
            assert taken == {"tiff": 1}
            wanted = (pixels[20:51, 29:46].astype(np.int64) * 2 + 257) // 514
            if kind is not DALIImageType.ANY_DATA:
                wanted = wanted[..., :3] if channels >= 3 else wanted.repeat(3, axis=2)
                wanted = wanted[..., ::-1] if kind is DALIImageType.BGR else wanted
            np.testing.assert_array_equal(out.sample(0), wanted)


def test_16_bits_of_odd_kinds_are_for_others() -> None:
    data, pixels = deep(1, 3, 1, "<")
    for change in ({262: 0}, {339: [2] * 3}, {258: [16, 16, 8]}, {258: [16, 8, 16]}, {258: [12] * 3}):
        tags = {**plain_tags(70, 90, 3, 1, 16), 278: 70, **change}
        assert decoder.stored(memoryview(packed([pixels.tobytes()], tags, "<")), probe(memoryview(data))) is None
    with_alpha = packed([pixels[..., :2].tobytes()], {**plain_tags(70, 90, 2, 1, 16), 278: 70}, "<")
    assert decoder.stored(memoryview(with_alpha), probe(memoryview(with_alpha))) is None


@pytest.fixture(scope="module")
def good() -> dict[str, bytes]:
    return good_files()


def test_plain_kinds(good: dict[str, bytes]) -> None:
    without = [name for name in good if "deflate" in name] if not png.available() else []
    assert [name for name, data in good.items() if not agrees(data)] == without


def test_lzw_of_any_length_of_strings() -> None:
    rng = np.random.default_rng(5)
    for k in range(12):
        n = int(rng.integers(1, 4000))
        runs = rng.integers(0, 3, n).repeat(rng.integers(1, 2 + 40 * (k % 4), n))[: 16 * (1 + n // 16)]
        width = 16
        pixels = np.resize(runs.astype(np.uint8), (max(1, len(runs) // width), width, 1))
        tags = {**plain_tags(len(pixels), width, 1, 5), 278: len(pixels)}
        assert agrees(packed([lzw(pixels.tobytes())], tags, "<>"[k % 2]))


def test_changed_files_get_the_same_verdict(good: dict[str, bytes]) -> None:
    """Whatever a byte becomes, what the decoder takes is what Pillow makes of the file."""
    rng, taken, tried = np.random.default_rng(9), 0, 0
    for data in good.values():
        directory = struct.unpack_from("<I" if data[:1] == b"I" else ">I", data, 4)[0]
        for n in range(50):
            # half of the changes are to the directory, which decides over the memory
            low, high = (directory, min(directory + 170, len(data))) if n % 2 else (4, len(data))
            at, byte = int(rng.integers(low, high)), bytes([int(rng.integers(0, 256))])
            changed = data[:at] + byte + data[at + 1 :]
            taken += agrees([changed, changed, data[:at] + data[at + 1 :], data[:at]][n // 2 % 4])
            tried += 1
    assert 0 < taken < tried


def test_odd_kinds_are_for_others() -> None:
    gray = picture(0, 1, 32, 32).tobytes()
    tags = {**plain_tags(32, 32, 1, 1), 278: 32}
    assert agrees(packed([gray], tags, "<"))
    odd: list[dict[int, Any]] = [
        {266: 2}, {284: 2}, {317: 2}, {338: 0}, {339: 2}, {258: [4]}, {262: 3}, {259: 7}, {278: 0}, {278: 16},
        {322: 32, 323: 32}, {32997: 2}, {256: 0}, {257: 65535},
    ]  # fmt: skip
    for change in odd:
        assert not agrees(packed([gray], {**tags, **change}, "<")), change
    tiled = {**tags, 322: 32, 323: 32}
    del tiled[278]
    assert agrees(packed([gray], tiled, "<"))
    assert not agrees(packed([gray], {**tiled, 273: 8}, "<"))
    assert not agrees(packed([gray], {**tiled, 279: 1024}, "<"))
    assert not agrees(packed([gray[:-1]], tags, "<"))
    assert not agrees(packed([gray, gray], tags, "<"))
    assert not agrees(packed([b"\x80\x00" + gray], {**tags, 259: 5}, "<"))


def run(operator: Any, files: Sequence[bytes]) -> tuple[Batch, list[Any], dict[str, int]]:
    taken: dict[str, int] = {}

    def told(decoder: str, images: int, *_: Any) -> None:
        taken[decoder] = taken.get(decoder, 0) + images

    batch = batch_of([np.frombuffer(f, np.uint8) for f in files])
    ctx = Context(operator, "cpu", batch.samples, services=KernelServices(decoders=told))
    return operator.cpu(ctx, batch), [(r.slot, r.code, r.message) for r in ctx.rejects], taken


@pytest.mark.parametrize("kind", [DALIImageType.RGB, DALIImageType.BGR, DALIImageType.GRAY, DALIImageType.ANY_DATA])
@pytest.mark.parametrize("windowed", [False, True])
def test_in_a_batch_as_by_pillow(
    kind: DALIImageType, windowed: bool, good: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Straight into the output, cut and whole: the same pixels and rejects as without the decoder."""
    files = [data for name, data in good.items() if "deflate" not in name]
    whole = files[0], files[8], files[-1]
    files += [whole[0][:60], whole[1][:200] + bytes(40) + whole[1][240:], whole[2][:8] + bytes(8) + whole[2][16:]]
    files.append(saved(picture(1, 3), "tiff_lzw", tiffinfo={274: 6}))
    given: dict[str, Any] = {"output_type": kind}
    operator = ImageCrop(crop=(31, 17), crop_pos_x=0.9, **given) if windowed else ImageDecoder(**given)
    ours, rejects, taken = run(operator, files)
    straight = [n for n, data in enumerate(files[:-4]) if kind is not DALIImageType.GRAY or probe_channels(data) < 3]
    assert taken["tiff"] == len(straight)
    monkeypatch.setattr(decoder, "writes_directly", lambda rows, _: np.zeros(len(rows), np.bool_))
    theirs, their_rejects, taken = run(operator, files)
    assert "tiff" not in taken
    assert sorted(rejects) == sorted(their_rejects)
    bad = {slot for slot, *_ in rejects}
    assert bad
    for i in set(range(len(files))) - bad:
        np.testing.assert_array_equal(ours.sample(i), theirs.sample(i), str(i))


def probe_channels(data: bytes) -> int:
    return probe(memoryview(data)).channels


def test_corpus(shared_data: Path) -> None:
    files = sorted((shared_data / "corpus" / "tiff").iterdir())
    assert sum(agrees(path.read_bytes()) for path in files) > 0
