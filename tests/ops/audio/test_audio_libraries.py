"""Presets against librosa, soxr, torchaudio's, Kaldi's and Whisper's definitions (golden/make_audio_libraries.py)."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_run.ops.audio import filters
from dali_run.ops.audio.mel import MelFilterBank
from dali_run.ops.audio.resample import AudioResample, in_lowest_terms
from dali_run.ops.base import Spec, coerce, find, outputs_of, parameter
from dali_run.ops.batch import Batch, Samples
from dali_run.ops.context import Context
from dali_run.ops.errors import SpecError
from dali_run.ops.types import DALIDataType
from dali_run.pipelines.plugins import load_operators

from ...golden.audio_inputs import source
from ...kit.emulated_lane import EmulatedLane

load_operators()
GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "audio_libraries.npz")
X = source(1, "quiet", (3000,))
RATES = [(44100, 16000), (16000, 44100), (48000, 16000), (8000, 16000)]


def run(name: str, data: Batch | np.ndarray, lane: Any = None, **arguments: Any) -> Batch:
    batch = data if isinstance(data, Batch) else Batch.from_list([data], "", Samples.numbered(1))
    cls = find(name)
    op = cls(**{k: coerce(parameter(cls, k), v) for k, v in arguments.items()})
    op.check()
    stage: Any = "cpu" if lane is None else "gpu"
    ctx = Context(op, stage, batch.samples, device=lane)
    real = lane is not None and not isinstance(lane, EmulatedLane)
    (out,) = outputs_of(op.kernel(stage)(ctx, lane.to_device(batch) if real else batch))
    assert not ctx.rejects, ctx.rejects
    if real:
        out = lane.to_host(out)
        lane.synchronize()
    return out


def real_lane() -> Any:
    from dali_run.ops.gpu.lane import Lane

    return Lane().__enter__()


def close(got: Batch, name: str, bound: float) -> None:
    want = GOLDEN[name]
    assert got.sample(0).shape == want.shape
    assert np.abs(got.sample(0) - want).max() <= bound * np.abs(want).max()


LANES = [pytest.param(None, id="cpu"), pytest.param(EmulatedLane, id="cuda-on-cpu"),
         pytest.param(real_lane, id="gpu", marks=pytest.mark.gpu)]  # fmt: skip


@pytest.mark.parametrize("make_lane", LANES)
def test_librosa(make_lane: Any) -> None:
    lane = make_lane and make_lane()
    windows = {"nfft": 512, "window_length": 400, "window_step": 160, "parity": "librosa", "reflect_padding": False}
    mel = run("mel_filter_bank", run("spectrogram", X, lane, **windows), lane, sample_rate=16000, nfilter=80)
    close(mel, "librosa mel", 1e-5)
    close(run("to_decibels", mel, lane, top_db=30, cutoff_db=-300), "librosa db", 1e-5)
    power = run("to_decibels", mel, lane, reference=1.0, cutoff_db=-100, top_db=80)
    close(run("mfcc", power, lane, n_mfcc=13, normalize=True, lifter=22), "librosa mfcc", 1e-5)


@pytest.mark.parametrize("make_lane", LANES)
def test_whisper(make_lane: Any) -> None:
    lane = make_lane and make_lane()
    padded = np.concatenate([X, np.zeros(1000, np.float32)])
    spectrum = run("spectrogram", padded, lane, nfft=400, window_length=400, window_step=160, parity="torchaudio")
    whole = Batch.from_list([spectrum.sample(0)[:, :-1]], "ft", spectrum.samples)
    mel = run("mel_filter_bank", whole, lane, sample_rate=16000, nfilter=80)
    logs = run("to_decibels", mel, lane, multiplier=1, reference=1.0, cutoff_db=-10, top_db=8)
    want = GOLDEN["whisper"]
    assert np.abs((logs.sample(0) + 4) / 4 - want).max() <= 1e-5


@pytest.mark.parametrize("make_lane", LANES)
@pytest.mark.parametrize("kind", ["float", "int16"])
def test_kaldi(kind: str, make_lane: Any) -> None:
    lane = make_lane and make_lane()
    windows = {"nfft": 512, "window_length": 400, "window_step": 160, "parity": "kaldi", "center_windows": False}
    spectrum = run("spectrogram", X if kind == "float" else source(2, "int16", (3000,)), lane, layout="tf", **windows)
    bank = {"sample_rate": 16000, "nfilter": 80, "freq_low": 20, "mel_formula": "htk", "normalize": False}
    mel = run("mel_filter_bank", spectrum, lane, parity="kaldi", **bank)
    logs = np.log(np.maximum(mel.sample(0), np.finfo(np.float32).eps))
    want = GOLDEN[f"kaldi {kind}"]
    assert np.abs(logs - want).max() <= 1e-4


@pytest.mark.parametrize("make_lane", LANES)
@pytest.mark.parametrize(("before", "after"), RATES)
def test_torchaudio_resample(before: int, after: int, make_lane: Any) -> None:
    out = run("audio_resample", X, make_lane and make_lane(), in_rate=before, out_rate=after, parity="torchaudio")
    close(out, f"torchaudio {before} {after}", 1e-6)


@pytest.mark.parametrize(("before", "after"), RATES)
@pytest.mark.parametrize("parity", ["soxr", "librosa"])
def test_soxr(parity: str, before: int, after: int) -> None:
    pytest.importorskip("soxr")
    want = GOLDEN[f"{parity} {before} {after}"]
    got = run("audio_resample", X, in_rate=before, out_rate=after, parity=parity).sample(0)
    assert abs(len(got) - len(want)) <= (parity == "soxr")  # soxr by itself rounds the length, here it is rounded up
    n = min(len(got), len(want))
    assert np.abs(got[:n] - want[:n]).max() <= 1e-6


@pytest.mark.parametrize("make_lane", LANES)
@pytest.mark.parametrize("quality", [50, 100])
def test_what_the_lower_rate_cannot_hold_is_taken_out(quality: int, make_lane: Any) -> None:
    """A tone of 10 kHz does not survive from 44.1 to 8 kHz, as it does in DALI; one of 1 kHz does, unchanged."""
    t = np.arange(8000) / 44100
    lane = make_lane and make_lane()
    for hertz, kept in ((10000, 0.0), (4500, 0.0), (1000, 1.0)):
        tone = np.sin(2 * np.pi * hertz * t).astype(np.float32)
        rates: dict[str, Any] = {"in_rate": 44100, "out_rate": 8000, "quality": quality}
        middle = run("audio_resample", tone, lane, **rates).sample(0)[200:-200]
        assert abs(middle.std() * np.sqrt(2) - kept) < (
            2e-3 if kept else 1e-3 if hertz > 5000 or quality > 50 else 2e-2
        )
        aliased = run("audio_resample", tone, lane, **rates, parity="dali").sample(0)[200:-200]
        assert abs(aliased.std() * np.sqrt(2) - 1) < 2e-2


@pytest.mark.parametrize("make_lane", LANES)
def test_phases_and_tables_agree(make_lane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ratios of few phases have taps for each; others go through the table: with the same result."""
    lane = make_lane and make_lane()
    by_phases = run("audio_resample", X, lane, in_rate=44100, out_rate=16000).sample(0)
    monkeypatch.setattr(filters, "phases", lambda ratio, lobes: None)
    by_table = run("audio_resample", X, lane, in_rate=44100, out_rate=16000).sample(0)
    assert np.abs(by_phases - by_table).max() <= 1e-5


@pytest.mark.parametrize("make_lane", LANES[1:])
@pytest.mark.parametrize(
    ("frames", "channels", "rates"),
    [
        (4000, 1, {"scale": 0.8731}),  # polynomials, several tiles
        (4000, 2, {"scale": 1.1907}),
        (2500, 1, {"scale": 0.9301, "quality": 100}),
        (2500, 1, {"scale": 1.2, "quality": 0}),
        (9000, 2, {"scale": 0.0213}),  # as wide as polynomials are not made for
        (60, 1, {"scale": 41.7}),
        (7000, 2, {"in_rate": 44100, "out_rate": 16000}),  # phases: of several turns
        (2000, 1, {"in_rate": 44100, "out_rate": 48000}),
        (600, 1, {"in_rate": 16000, "out_rate": 44100}),
        (9000, 2, {"in_rate": 16000, "out_rate": 8000}),  # one phase, several times
        (3000, 1, {"in_rate": 16000, "out_rate": 48000, "quality": 100}),
        (12000, 2, {"in_rate": 48000, "out_rate": 11025}),  # inputs that a block takes in parts
        (30000, 1, {"in_rate": 48000, "out_rate": 60}),  # in very many
        (5000, 3, {"scale": 1.0}),
        (5000, 2, {"scale": 0.3719, "parity": "dali"}),
        (3000, 1, {"scale": 1.0911, "parity": "dali", "quality": 100}),
        (9000, 2, {"scale": 0.117, "parity": "dali"}),  # inputs that no block has room for
        (50, 1, {"scale": 51.0, "parity": "dali"}),
    ],
)
def test_kernels_resample_as_the_cpu(frames: int, channels: int, rates: dict[str, Any], make_lane: Any) -> None:
    sound = source(1, "loud", (frames, channels))
    want = run("audio_resample", sound, **rates).sample(0)
    got = run("audio_resample", sound, make_lane(), **rates).sample(0)
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    whole = (sound * 20000).astype(np.int16)
    want = run("audio_resample", whole, **rates).sample(0).astype(int)
    assert np.abs(run("audio_resample", whole, make_lane(), **rates).sample(0) - want).max() <= 1


@pytest.mark.parametrize("make_lane", LANES[1:])
def test_a_value_stays_where_the_rate_is_the_same(make_lane: Any) -> None:
    """Values beside it are not even multiplied by 0."""
    sound = X.copy()
    sound[7], sound[1000] = np.nan, np.inf
    assert np.array_equal(run("audio_resample", sound, make_lane(), scale=1.0).sample(0), sound, equal_nan=True)


@pytest.mark.parametrize("make_lane", LANES[1:])
@pytest.mark.parametrize("dtype", ["FLOAT", "INT16"])
@pytest.mark.parametrize("lengths", [[0, 1, 2, 1024, 1027, 3], [4, 8, 2048, 12]])
@pytest.mark.parametrize("border", ["clamp", "zero", "reflect"])
def test_preemphasis_of_signals_that_begin_anywhere(
    border: str, lengths: list[int], dtype: str, make_lane: Any
) -> None:
    for inputs in (X, (X * 9000).astype(np.int16)):
        batch = Batch.from_list([inputs[:n] for n in lengths], "", Samples.numbered(len(lengths)))
        want = run("preemphasis_filter", batch, border=border, dtype=dtype)
        got = run("preemphasis_filter", batch, make_lane(), border=border, dtype=dtype)
        most = 1.0 if dtype == "INT16" else 1e-6 * float(np.abs(inputs).max())
        for i in range(len(lengths)):
            assert np.abs(got.sample(i).astype(float) - want.sample(i)).max(initial=0) <= most


@pytest.mark.parametrize("ratio", [Fraction(1, 2), Fraction(1, 3), Fraction(2), Fraction(5, 7), Fraction(160, 441)])
@pytest.mark.parametrize("find", [filters.phases, filters.torchaudio_phases])
def test_phases_in_groups_are_the_same_phases(find: Any, ratio: Fraction) -> None:
    more = (16,) if find is filters.phases else ()
    found, groups = find(ratio, *more), filters.grouped(find, ratio, *more)
    assert found is not None
    assert groups is not None
    assert Fraction(groups.up, groups.down) == ratio
    assert groups.width < found.width + ratio.denominator * filters.GROUP / ratio.numerator + 1
    sound = np.random.default_rng(1).random(4 * found.width + 2 * groups.down)
    for k in range(groups.up):
        start = 2 * found.width + k // found.up * found.down + int(found.first[k % found.up])
        want = found.taps[k % found.up] @ sound[start : start + found.width]
        start = 2 * found.width + int(groups.first[k // filters.GROUP])
        got = groups.taps[k // filters.GROUP, :, k % filters.GROUP] @ sound[start : start + groups.width]
        assert abs(got - want) < 1e-6


def test_ratios_in_lowest_terms() -> None:
    before = np.array([44100, 16000, 1, 1, 0.1, 1, 3e-300, 48000, 0])
    after = np.array([16000, 44100, 0.5, np.float32(0.9), 0.2, 1 / 3, 3e-300, 1e300, 5])
    up, down = in_lowest_terms(before, after)
    for a, b, p, q in zip(before.tolist(), after.tolist(), up.tolist(), down.tolist(), strict=True):
        exact = Fraction(b) / Fraction(a) if a else Fraction(1)
        if max(exact.numerator, exact.denominator) < 1 << 53:
            assert (p, q) == exact.as_integer_ratio()
        else:
            assert max(p, q) >= 1 << 53


def test_drawn_rates_make_no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two thousand drawn float32s some are fractions of 2^16 and less; one's table of every phase took 80 ms."""
    made: list[Fraction] = []
    monkeypatch.setattr(filters, "phases", lambda ratio, lobes: made.append(ratio))
    scales = np.random.default_rng(3).uniform(0.8, 1.2, 2000).astype(np.float32)
    scales[:5] = [0.999847412109375, 0.5, 44100 / 48000, 1.0009765625, 0.9990234375]
    args = {"scale": Batch.from_dense(scales, "", Samples.numbered(2000))}
    batch = Batch.from_dense(np.zeros((2000, 1), np.float32), "", Samples.numbered(2000))
    op = find("audio_resample")(scale=1.0, per_sample=frozenset(("scale",)))
    op.cpu(Context(op, "cpu", batch.samples, args), batch)
    assert {(p.numerator, p.denominator) for p in made} >= {(1, 2), (1023, 1024)}
    assert all(p.numerator <= filters.MAX_PHASES for p in made)


def test_the_same_rate_changes_nothing() -> None:
    assert np.array_equal(run("audio_resample", X, scale=1.0).sample(0), X)
    constant = run("audio_resample", np.ones(4000, np.float32), in_rate=48000, out_rate=16000).sample(0)
    np.testing.assert_allclose(constant[200:-200], 1, atol=1e-6)


def test_samples_of_one_batch_have_rates_of_their_own() -> None:
    cls = find("audio_resample")
    op = cls(in_rate=1.0, out_rate=1.0, per_sample=frozenset(("in_rate", "out_rate")))
    clips = [X, X[:500], X[:0], X]
    batch = Batch.from_list(clips, "", Samples.numbered(4))
    rates = [[44100, 16000], [8000, 16000], [8000, 16000], [16000, 16000.3]]
    args = {name: Batch.from_dense(np.array(rates, np.float32)[:, k], "", batch.samples)
            for k, name in enumerate(("in_rate", "out_rate"))}  # fmt: skip
    together = op.cpu(Context(op, "cpu", batch.samples, args), batch)
    for i, clip in enumerate(clips):
        a, b = (float(np.float32(r)) for r in rates[i])
        alone = run("audio_resample", clip, in_rate=a, out_rate=b).sample(0)
        np.testing.assert_array_equal(together.sample(i), alone)


@pytest.mark.parametrize("rate", [8123.4, 47777.7])
@pytest.mark.parametrize("channels", [1, 2])
def test_few_outputs_are_those_of_many(rate: float, channels: int) -> None:
    """Weights of few outputs are looked up one by one, those of many lie between two rows of a table."""
    sound = np.random.default_rng(channels).uniform(-1, 1, (6000, channels)).astype(np.float32)
    many, few = (run("audio_resample", sound[:n], in_rate=16000, out_rate=rate).sample(0) for n in (6000, 60))
    assert len(few) < filters.STEPS < len(many)
    np.testing.assert_allclose(few[: len(few) // 4], many[: len(few) // 4], atol=1e-5)


def test_quality_counts_lobes_as_dali_does() -> None:
    assert [filters.lobes_of(q) for q in (0, 50, 100)] == [3, 16, 64]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"in_rate": 1.0}, "belong together"),
        ({}, "give one of"),
        ({"scale": 2.0, "out_length": 5}, "give one of"),
        ({"scale": 2.0, "dtype": "FLOAT64"}, "is not one of"),
    ],
)
def test_contradictions_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        AudioResample(**{k: coerce(parameter(AudioResample, k), v) for k, v in arguments.items()}).check()


def test_a_bank_that_is_no_bank_is_refused() -> None:
    with pytest.raises(SpecError, match="freq_low must be below freq_high"):
        MelFilterBank(sample_rate=16000.0, freq_low=7000.0, freq_high=6000.0).check()
    with pytest.raises(SpecError, match="normalize: false with parity: kaldi"):
        MelFilterBank(parity="kaldi").check()


SHORT = {"nfft": 64, "window_length": 48, "window_step": 20}


@pytest.mark.parametrize("make_lane", LANES[:2])
@pytest.mark.parametrize(
    "arguments", [{}, {"layout": "tf"}, {"power": 1}, {"parity": "kaldi", "center_windows": False}]
)
def test_silence_beside_sounds_is_silence(make_lane: Any, arguments: dict[str, Any]) -> None:
    """Windows that hold nothing but zeros are 0 exactly, whichever window shares their transform."""
    random = np.random.default_rng(2)
    signal = random.standard_normal(5000).astype(np.float32)
    for start in (0, 1100, 2000, 4300):
        signal[start : start + 600] = 0
    powers = run("spectrogram", signal, make_lane and make_lane(), **SHORT, **arguments).sample(0)
    powers = powers if arguments.get("layout") == "tf" else powers.T
    before = 24 if arguments.get("center_windows", True) else 0
    padded = np.pad(signal, (before, 48), "reflect")
    silent = np.array([not padded[20 * t : 20 * t + 48].any() for t in range(len(powers))])
    assert 50 < silent.sum() < len(silent) - 50
    np.testing.assert_array_equal(powers.any(axis=1), ~silent)


@pytest.mark.parametrize("shape", [(1, 400), (400, 1), (1, 400, 1)])
def test_axes_of_length_1_are_no_channels(shape: tuple[int, ...]) -> None:
    signal = np.random.default_rng(3).standard_normal(400).astype(np.float32)
    expected, op = run("spectrogram", signal, **SHORT).sample(0), find("spectrogram")(**SHORT)
    assert op.infer(Spec(shape, DALIDataType.FLOAT)).shape == expected.shape
    np.testing.assert_array_equal(run("spectrogram", signal.reshape(shape), **SHORT).sample(0), expected)
    with pytest.raises(SpecError, match="one channel"):
        op.infer(Spec((2, 400), DALIDataType.FLOAT))


@pytest.mark.parametrize(
    ("make_lane", "before"),
    [*((None, t) for t in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32")), (EmulatedLane, "int16")],
)
def test_the_middle_of_unsigned_integers_is_silence(make_lane: Any, before: str) -> None:
    """As DALI 2.4 converts them: 127 of uint8 is -1/255, and 0 is the lowest signed value."""
    unit = np.linspace(-0.99, 0.99, 24)
    kinds = {
        "f": lambda t, x: x,
        "i": lambda t, x: x * np.iinfo(t).max,
        "u": lambda t, x: (x + 1) / 2 * np.iinfo(t).max,
    }
    x = kinds[np.dtype(before).kind](before, unit).astype(before)
    scale = {"f": lambda t, v: v, "i": lambda t, v: v / np.iinfo(t).max, "u": lambda t, v: v * 2 / np.iinfo(t).max - 1}
    exact = scale[np.dtype(before).kind](before, x.astype(np.float64))
    types = ("UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "FLOAT")
    for after in types if make_lane is None else ("UINT8", "FLOAT"):
        for parity in ("dali-run", "dali"):
            got = run(
                "audio_resample", x, make_lane and make_lane(), scale=1.0, quality=0, parity=parity, dtype=after
            ).data
            full = 1 if got.dtype.kind == "f" else float(np.iinfo(got.dtype).max)
            want = x.astype(np.float64) if got.dtype == x.dtype else kinds[got.dtype.kind](got.dtype, exact)
            assert np.abs(got - want).max() <= max(1e-6 * full, 1 if full > 1 else 0), (after, parity)
