"""Makes audio.npz with NVIDIA DALI 2.4 (CPU): operators on signals and spectra, and decoders.audio on small files.

Inputs that are not stored are functions of the case's number (`audio_inputs.source`).
"""

import io
import json
from pathlib import Path

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.types as types
import soundfile
from audio_inputs import source
from nvidia.dali import pipeline_def

OUT = Path(__file__).with_name("audio.npz")


def cases():
    """Operator, arguments, layout, and kind and shape of the input."""
    signal = ("float32", (1000,))
    for more in (
        {}, {"nfft": 512, "window_length": 400, "window_step": 160},
        {"window_length": 256, "window_step": 100, "power": 1},
        {"nfft": 1023, "window_length": 401, "window_step": 160},
        {"nfft": 400, "window_length": 400, "window_step": 160},
        {"nfft": 512, "window_length": 320, "window_step": 160, "center_windows": False},
        {"nfft": 512, "window_length": 400, "window_step": 160, "reflect_padding": False},
        {"window_length": 64, "window_step": 37, "layout": "tf"},
        {"window_length": 16, "window_fn": [0.5] * 15 + [1.5]},
    ):  # fmt: skip
        yield "spectrogram", more, "", *signal
    for n in (1, 2, 5, 255, 256, 257):
        yield "spectrogram", {"window_length": 512, "window_step": 256}, "", "float32", (n,)
    yield "spectrogram", {}, "", "float32", (700, 1)
    for more in (
        {}, {"sample_rate": 16000.0, "nfilter": 80}, {"sample_rate": 22050.0, "nfilter": 40, "freq_high": 8000.0},
        {"sample_rate": 16000.0, "nfilter": 80, "mel_formula": "htk", "normalize": False},
        {"sample_rate": 16000.0, "nfilter": 64, "freq_low": 20.0, "freq_high": 7600.0, "mel_formula": "htk"},
        {"sample_rate": 16000.0, "nfilter": 8, "freq_high": 9000.0},
    ):  # fmt: skip
        yield "mel_filter_bank", more, "", "power", (257, 5)
    yield "mel_filter_bank", {"nfilter": 40}, "tf", "power", (5, 257)
    yield "mel_filter_bank", {"nfilter": 10}, "", "power", (33,)
    yield "mel_filter_bank", {"nfilter": 10}, "", "power", (2, 33, 3)
    for kind in (1, 2, 3, 4):
        for normalize in (False, True) if kind > 1 else (False,):
            yield "mfcc", {"dct_type": kind, "normalize": normalize, "n_mfcc": 13}, "", "power", (40, 7)
    yield "mfcc", {"n_mfcc": 13, "lifter": 22.0}, "", "power", (40, 7)
    yield "mfcc", {"n_mfcc": 50}, "", "power", (40, 7)
    yield "mfcc", {"n_mfcc": 3, "axis": 1}, "", "power", (4, 7, 2)
    for more in ({}, {"reference": 1.0, "multiplier": 20.0, "cutoff_db": -80.0}, {"cutoff_db": -10.0}):
        yield "to_decibels", more, "ft", "power", (30, 20)
    yield "to_decibels", {}, "", "zeros", (3, 3)
    for border in ("clamp", "zero", "reflect"):
        yield "preemphasis_filter", {"border": border}, "t", "float32", (50,)
    yield "preemphasis_filter", {"preemph_coeff": 0.5}, "", "int16", (50,)
    yield "preemphasis_filter", {"dtype": "INT16"}, "", "int16", (50,)
    yield "preemphasis_filter", {}, "", "float32", (20, 2)
    for more in ({}, {"nfft": 16, "axis": 0}, {"power": 1, "nfft": 128}, {"nfft": 5}):
        yield "power_spectrum", more, "", "float32", (3, 100)
    for n in range(40):
        more = {"window_length": (64, 256, 2048)[n % 3], "cutoff_db": -(10.0, 30.0, 60.0)[n // 3 % 3]}
        more |= {"reference_power": 0.1} if n % 4 == 0 else {}
        yield "nonsilent_region", more, "", ("burst_int16", "burst")[n % 2], (100 * n + 20,)
    yield "nonsilent_region", {}, "", "zeros", (500,)
    for rates in ((44100, 16000), (16000, 44100), (48000, 16000), (8000, 16000), (16000, 16000)):
        for quality in (0.0, 50.0, 100.0):
            more = {"in_rate": float(rates[0]), "out_rate": float(rates[1]), "quality": quality}
            yield "audio_resample", more, "", "float32", (400,)
    yield "audio_resample", {"scale": 0.5}, "", "float32", (300, 2)
    yield "audio_resample", {"scale": 0.9371}, "", "float32", (600,)
    yield "audio_resample", {"out_length": 100}, "", "float32", (300,)
    yield "audio_resample", {"in_rate": 2.0, "out_rate": 1.0, "dtype": "INT16"}, "", "quiet", (300,)
    yield "audio_resample", {"in_rate": 2.0, "out_rate": 1.0}, "", "int16", (300,)
    yield "audio_resample", {"in_rate": 2.0, "out_rate": 1.0, "dtype": "FLOAT"}, "", "int16", (300,)


def files():
    """Name, bytes and arguments."""
    encodings = [("WAV", e) for e in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW")]
    encodings += [("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("AIFF", "PCM_16")]
    for format_, encoding in encodings:
        for channels in (1, 2, 3):
            signal = source(channels, "quiet", (150, channels))
            out = io.BytesIO()
            soundfile.write(out, signal, 16000, format=format_, subtype=encoding)
            settings = [{}, {"downmix": True}]
            if encoding not in ("FLOAT", "DOUBLE"):  # DALI does not scale those to integers
                settings += [{"dtype": "INT16"}, {"dtype": "INT16", "downmix": True}]
            if encoding == "PCM_16":
                settings += [{"dtype": "INT32"}, {"sample_rate": 8000.0, "downmix": True}, {"sample_rate": 11025.0}]
                settings += [{"sample_rate": rate, "dtype": "INT16"} for rate in (8000.0, 16000.0)]
            for more in settings:
                yield f"{format_} {encoding} {channels}", np.frombuffer(out.getvalue(), np.uint8), more


def run(build, data, layout):
    @pipeline_def(batch_size=1, num_threads=1, device_id=None, seed=1)
    def pipe():
        made = build(fn.external_source(source=lambda: [data], layout=layout or None))
        return tuple(made) if isinstance(made, list | tuple) else made

    p = pipe()
    p.build()
    outputs = p.run()
    return [np.array(o.at(0)) for o in outputs], [o.layout() for o in outputs]


def typed(arguments):
    upper = {k: v for k, v in arguments.items() if isinstance(v, str) and v.isupper()}
    return {**arguments, **{k: getattr(types, v) for k, v in upper.items()}}


if __name__ == "__main__":
    described, arrays = [], {}
    for number, (op, arguments, layout, kind, shape) in enumerate(cases()):
        data = source(number, kind, shape)
        outputs, layouts = run(lambda x: getattr(fn, op)(x, **typed(arguments)), data, layout)  # noqa: B023
        for k, out in enumerate(outputs):
            arrays[f"{number}.{k}"] = out
        described.append({"op": op, "arguments": arguments, "layout": layout, "kind": kind, "shape": shape,
                          "outputs": len(outputs), "out_layout": layouts[0]})  # fmt: skip
    encoded = []
    for number, (name, data, arguments) in enumerate(files()):
        outputs, _ = run(lambda x: tuple(fn.decoders.audio(x, **typed(arguments))), data, "")  # noqa: B023
        arrays |= {f"file {name}": data, f"decoded {number}.0": outputs[0], f"decoded {number}.1": outputs[1]}
        encoded.append({"file": name, "arguments": arguments})
    np.savez_compressed(OUT, cases=json.dumps(described), files=json.dumps(encoded), **arrays)
