"""external_source as a function and as a class; this module has the name of DALI's module."""

from __future__ import annotations

from .pipelines.python.functions import ExternalSourceClass as ExternalSource
from .pipelines.python.sources.source import external_source

__all__ = ["ExternalSource", "external_source"]
