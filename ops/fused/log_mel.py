"""Fused spectrogram, mel bands and decibels: one GPU kernel, whose thread blocks keep the spectra, which are most of
the bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from ..audio.levels import ToDecibels
from ..audio.mel import MelFilterBank, tables_on
from ..audio.spectrogram import Bands, Spectrogram, fits
from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from .resize_normalize import part

SPECTROGRAM, MEL, DECIBELS = "spectrogram.", "mel.", "decibels."
"""Prefixes that name the parts of the fused operator in reports."""


def can_join(first: Operator, second: Operator) -> bool:
    """Return whether one GPU kernel can compute both operators: a spectrogram and its mel bands; or a `LogMel` of these
    and the conversion to decibels."""
    if isinstance(first, LogMel):
        # the maximum of a sample is known only after its last value
        alone = isinstance(second, ToDecibels) and second.reference is not None and second.top_db is None
        return alone and first.decibels is None
    return isinstance(first, Spectrogram) and isinstance(second, MelFilterBank) and fits(first.size)


def joined(first: Operator, second: Operator) -> LogMel:
    """Return one fused operator that computes ``first`` and then ``second``."""
    if isinstance(first, LogMel):
        return LogMel(spectrogram=first.spectrogram, mel=first.mel, decibels=second)
    return LogMel(spectrogram=first, mel=second)


class LogMel(Operator, name="_fused.log_mel"):
    """A spectrogram, its mel bands and optionally their decibels, in one kernel. Results equal those of separate
    operators."""

    bound = "1e-5 of the largest value"

    spectrogram: Annotated[Any, Arg("the spectrogram operator")]
    mel: Annotated[Any, Arg("the mel_filter_bank operator")]
    decibels: Annotated[Any, Arg("the to_decibels operator, or none")] = None

    def infer(self, *specs: Spec) -> Spec:
        result: Spec = self.mel.infer(self.spectrogram.infer(*specs))
        if self.decibels is not None:
            result = self.decibels.infer(result)
        return result

    def cpu(self, ctx: Context, audio: Batch) -> Batch:
        out: Batch = self.mel.cpu(part(ctx, self.mel, MEL), self.spectrogram.cpu(self._first(ctx), audio))
        if self.decibels is not None:
            out = self.decibels.cpu(part(ctx, self.decibels, DECIBELS), out)
        return out

    def gpu(self, ctx: Context, audio: Batch) -> Batch:
        op: Spectrogram = self.spectrogram
        key, filters, weights = self.mel.tables(op.size // 2 + 1)
        bands = Bands(*tables_on(ctx.device, key, filters, weights), len(filters))
        if self.decibels is not None:
            factor, least = self.decibels.factors
            scale = np.float32(1) / np.float32(self.decibels.reference)
            bands = replace(bands, scale=float(scale), factor=float(factor), least=float(least))
        out: Batch = op.computed(self._first(ctx), audio, bands)
        return out

    def _first(self, ctx: Context) -> Context:
        return part(ctx, self.spectrogram, SPECTROGRAM)
