"""A CUDA JPEG decoder whose memory regions are allocated one by one, so that accesses out of bounds are found."""

from __future__ import annotations

from typing import Any

from dali_run.ops.codecs.jpeg.cuda import Decoder, Work


class ApartDecoder(Decoder):
    """Decoder for tests that find accesses out of bounds: it allocates each memory region separately, so that no other
    region follows. Slow; the caller must synchronise between batches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._owners: list[Any] = []

    def _place(
        self, work: Work, travelling: int, zeroed: dict[str, int], fixed: dict[str, int]
    ) -> tuple[int, dict[str, int]]:
        self._owners.clear()
        places = {}
        for name, size in ({"": travelling} | zeroed | fixed).items():
            owner, places[name] = self.runtime.allocate(size)
            self._owners.append(owner)
        for name, size in zeroed.items():
            work.zero(places[name], size)
        return places.pop(""), places
