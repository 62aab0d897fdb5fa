"""DataLoader: torch's DataLoader, whose batches a DALIServer computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.utils.data

from .server import DALIServer


class DataLoader(torch.utils.data.DataLoader[Any]):  # type: ignore[misc]
    """torch.utils.data.DataLoader with a DALIServer as its first argument.

    The workers call the server's proxy and send references; the server's pipeline computes the data, which replaces the
    references in each batch.
    """

    def __init__(self, dali_server: DALIServer, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dali_server = dali_server

    def __iter__(self) -> Iterator[Any]:
        server = self.dali_server
        started = not server.is_running
        server.iterate()
        try:
            for batch in super().__iter__():
                yield server.produce_data(batch)
        finally:
            server.iterated(stop=started)
