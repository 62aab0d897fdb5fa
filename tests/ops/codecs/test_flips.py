"""The part of `make torture` about flipped bits, small: verdicts of every decoder are the libraries'."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from dali_run.ops.errors import SampleError
from tests import torture_flips as flips
from tests.kit.files import jpegs
from tests.kit.files.progressive_jpegs import on_cpu


def test_a_flipped_bit_in_a_jpeg_is_found_wherever_libjpeg_warns(tmp_path: Path) -> None:
    tried, bad = flips.judged(flips.jpeg_files(), flips.on_host, flips.jpeg_problem, 25, tmp_path, 11)
    assert tried == 25 * len(flips.jpeg_files())
    assert not bad


def test_a_flipped_bit_in_another_format_is_found_where_the_libraries_refuse_the_file(tmp_path: Path) -> None:
    tried, bad = flips.judged(flips.other_files(), flips.on_host, flips.other_problem, 20, tmp_path, 12)
    assert tried == 20 * len(flips.other_files())
    assert not bad


def test_decoders_of_a_gpu_find_flipped_bits_too(tmp_path: Path) -> None:
    files = flips.jpeg_files()
    chosen = {name: files[name] for name in ("baseline 2 ", "progressive 2 ", "a scan for each component")}
    assert not flips.judged(chosen, flips.on_gpu, flips.jpeg_problem, 15, tmp_path / "jpeg", 13)[1]
    others = {name: file for name, file in flips.other_files().items() if name in ("PNG RGB", "WebP RGB False")}
    assert not flips.judged(others, flips.on_gpu, flips.other_problem, 10, tmp_path / "others", 14)[1]


ODDITIES = {
    "bytes between segments": lambda file: file[:2] + b"\xff\xfe\0\x04ab" + b"cd" + file[2:],
    "a version of JFIF": lambda file: file.replace(b"JFIF\0\1", b"JFIF\0\7"),
    "a colour transform of Adobe": lambda file: file[:2] + jpegs.segment(0xEE, b"Adobe\0\x64\0\0\0\0\x07") + file[20:],
    "spectral selection": lambda file: file.replace(b"\x03\x11\0\x3f\0", b"\x03\x11\0\x3e\0"),
    "zeros before the end": lambda file: file[:-2] + bytes(5) + file[-2:],
}


@pytest.mark.parametrize("oddity", ODDITIES)
def test_an_oddity_that_libjpeg_warns_of_hides_no_damage(oddity: str) -> None:
    """TurboJPEG tells the last warning only: one about an oddity that changes no pixel may hide one about damage."""
    whole = jpegs.encode(45, 37, 1)
    odd = ODDITIES[oddity](whole)
    with pytest.raises(ValueError):
        simplejpeg.decode_jpeg(odd)
    np.testing.assert_array_equal(on_cpu(odd), simplejpeg.decode_jpeg(whole))
    refused = 0
    for at in range(whole.index(b"\xff\xda") + 20, len(whole) - 8, 12):
        damaged = whole[:at] + b"\x55\xaa\x11" + whole[at:]
        try:
            simplejpeg.decode_jpeg(damaged)
        except ValueError:
            refused += 1
            with pytest.raises(SampleError):
                on_cpu(ODDITIES[oddity](damaged))
    assert refused > 20


def test_a_first_scan_that_lost_its_marker_is_no_padding() -> None:
    """libjpeg skips the scan's bytes with a warning about the header, and decodes the other components."""
    file = jpegs.in_scans(45, 37, 2, 2)
    at = file.index(b"\xff\xda\0\x08")
    with pytest.raises(SampleError, match="extraneous"):
        on_cpu(file[:at] + b"\xfb" + file[at + 1 :])
