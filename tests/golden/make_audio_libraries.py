"""Makes audio_libraries.npz with librosa 0.11 and soxr 1.1, and with the published formulas of torchaudio.functional
.resample, torchaudio.compliance.kaldi.fbank (dither 0) and Whisper's log_mel_spectrogram, in float64."""

from pathlib import Path

import librosa
import numpy as np
import soxr
from audio_inputs import source

OUT = Path(__file__).with_name("audio_libraries.npz")


def torchaudio_resample(x, before, after):
    """lowpass_filter_width 6, rolloff 0.99, sinc_interp_hann; by a loop over outputs."""
    divisor = np.gcd(before, after)
    before, after = before // divisor, after // divisor
    base = min(before, after) * 0.99
    width = int(np.ceil(6 * before / base))
    out = []
    for k in range(int(np.ceil(len(x) * after / before))):
        block, phase = divmod(k, after)
        at = block * before + np.arange(-width, width + before)
        t = (-phase / after + np.arange(-width, width + before) / before) * base
        t = np.clip(t, -6, 6)
        weights = np.sinc(t) * np.cos(t * np.pi / 12) ** 2 * base / before
        inside = (at >= 0) & (at < len(x))
        out.append((weights[inside] * x[at[inside]]).sum())
    return np.array(out)


def kaldi_fbank(x, bands=80):
    """Povey window, DC removed, preemphasis 0.97, snip_edges, power, natural logarithm."""
    count = 1 + (len(x) - 400) // 160
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85
    low, high = (1127 * np.log(1 + f / 700) for f in (20.0, 8000.0))
    delta = (high - low) / (bands + 1)
    mel = 1127 * np.log(1 + np.arange(256) * 16000 / 512 / 700)
    rows = []
    for m in range(bands):
        left, middle, right = low + m * delta, low + (m + 1) * delta, low + (m + 2) * delta
        rows.append(np.maximum(0, np.minimum((mel - left) / (middle - left), (right - mel) / (right - middle))))
    frames = []
    for t in range(count):
        frame = x[t * 160 : t * 160 + 400].astype(float)
        frame = frame - frame.mean()
        frame = frame - 0.97 * np.concatenate([frame[:1], frame[:-1]])
        power = np.abs(np.fft.rfft(frame * window, 512)) ** 2
        frames.append(np.log(np.maximum(np.array(rows) @ power[:256], np.finfo(np.float32).eps)))
    return np.array(frames)


def whisper_log_mel(x, samples):
    x = np.pad(x.astype(float), (0, max(0, samples - len(x))))[:samples]
    spectrum = librosa.stft(x, n_fft=400, hop_length=160, window="hann", center=True, pad_mode="reflect")
    mel = librosa.filters.mel(sr=16000, n_fft=400, n_mels=80, dtype=np.float64) @ np.abs(spectrum[:, :-1]) ** 2
    logs = np.log10(np.maximum(mel, 1e-10))
    return (np.maximum(logs, logs.max() - 8) + 4) / 4


if __name__ == "__main__":
    x = source(1, "quiet", (3000,))
    loud = source(2, "int16", (3000,))
    mel = librosa.feature.melspectrogram(y=x, sr=16000, n_fft=512, win_length=400, hop_length=160, n_mels=80)
    found = {
        "librosa mel": mel,
        "librosa db": librosa.power_to_db(mel, ref=np.max, top_db=30.0),
        "librosa mfcc": librosa.feature.mfcc(S=librosa.power_to_db(mel), n_mfcc=13, lifter=22),
        "whisper": whisper_log_mel(x, 4000),
        "kaldi float": kaldi_fbank(x),
        "kaldi int16": kaldi_fbank(loud),
    }
    for before, after in ((44100, 16000), (16000, 44100), (48000, 16000), (8000, 16000)):
        found[f"torchaudio {before} {after}"] = torchaudio_resample(x.astype(float), before, after)
        found[f"librosa {before} {after}"] = librosa.resample(x, orig_sr=before, target_sr=after)
        found[f"soxr {before} {after}"] = soxr.resample(x, before, after, quality="HQ")
    np.savez_compressed(OUT, **{k: v.astype(np.float32) for k, v in found.items()})
