"""One pipeline in the main process for a torch DataLoader with many workers: they send samples, it gives batches."""

from __future__ import annotations

from .loader import DataLoader
from .server import DALIServer

__all__ = ["DALIServer", "DataLoader"]
