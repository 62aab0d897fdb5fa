"""Features of TFRecord files, by DALI's names: ``import dali_run.tfrecord as tfrec``."""

from __future__ import annotations

from .readers.example import FixedLenFeature, VarLenFeature

string = "string"
int64 = "int64"
float32 = "float"

__all__ = ["FixedLenFeature", "VarLenFeature", "float32", "int64", "string"]
