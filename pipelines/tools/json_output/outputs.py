"""Output types of all commands with ``--json``, declared once: JSON Schema, documentation and tests are derived from
them.

Fields may be added at any time; existing fields keep their names and types.
"""

from __future__ import annotations

from typing import Any

from .data import Deduplicated, InspectedData, Measured, Merged, Sampled, Verified
from .jobs import Finished, Live, Report
from .machines import Benched, Diagnosis, Tuned, Warmed
from .specs import Alike, Begun, Checked, Described, InspectedSpec, Planned, Ported, Served, Shipped, ShippedText

OUTPUTS: dict[str, tuple[str, Any]] = {
    "run": ("run", Finished),
    "convert": ("convert", Finished),
    "retry-failed": ("retry-failed", Finished),
    "validate": ("validate", list[Checked]),
    "plan": ("plan", Planned),
    "init": ("init", Begun),
    "inspect": ("inspect SPEC", InspectedSpec),
    "inspect-data": ("inspect DATA", InspectedData),
    "stats": ("stats", Measured),
    "verify": ("verify", Verified),
    "merge": ("merge", Merged),
    "dedupe": ("dedupe", Deduplicated),
    "ops": ("ops", list[Described]),
    "ops-name": ("ops NAME", Described),
    "ops-like": ("ops --like", list[Alike]),
    "bench": ("bench", Benched),
    "tune": ("tune", Tuned),
    "configs": ("configs", list[Shipped]),
    "configs-name": ("configs NAME", ShippedText),
    "serve-model": ("serve-model", Served),
    "warm": ("warm", Warmed),
    "top": ("top", list[Live]),
    "doctor": ("doctor", Diagnosis),
    "port": ("port", list[Ported]),
    "sample-data": ("sample-data", Sampled),
    "report": ("report.json", Report),
}
"""For each command with ``--json``, by its name for `output_schema`: (title, type) of the object that it prints."""
