"""One pipeline in the main process serves a torch DataLoader with many workers: the workers send samples, the pipeline
computes the batches."""

from __future__ import annotations

from .loader import DataLoader
from .server import DALIServer

__all__ = ["DALIServer", "DataLoader"]
