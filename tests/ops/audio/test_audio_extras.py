"""Messages where a package that is only for audio or video is not installed."""

from __future__ import annotations

import sys

import pytest

from dali_run.ops.audio.decoders import Audio
from dali_run.ops.audio.encoders import EncodeAudio
from dali_run.ops.audio.resample import AudioResample
from dali_run.ops.base import Operator
from dali_run.ops.errors import SpecError
from dali_run.ops.video.decoders import Video
from dali_run.readers.nemo import NemoAsr
from dali_run.readers.videos.reader import ExperimentalVideo


@pytest.mark.parametrize(
    ("package", "op"),
    [
        ("soundfile", Audio()),
        ("soundfile", NemoAsr(manifest_filepaths=("a",))),
        ("soundfile", EncodeAudio(sample_rate=8000.0)),
        ("soxr", AudioResample(scale=0.5, parity="soxr")),
        ("soxr", Audio(sample_rate=8000.0, parity="librosa")),
        ("av", Video()),
        ("av", ExperimentalVideo(filenames=("a",), sequence_length=2)),
    ],
)
def test_the_extra_is_named(package: str, op: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # importing it fails from now on
    with pytest.raises(SpecError, match=rf"needs the package {package}: pip install 'dali-run\[media\]'"):
        op.check()
