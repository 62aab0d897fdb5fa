"""Find objects that refer to each other in a cycle, which only the garbage collector frees."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable


def left_in_rings(run: Callable[[], object]) -> Counter[str]:
    """Return how many objects of this project ``run()`` leaves to the garbage collector, by type. Memory of a batch or
    job in a reference cycle stays until the collector runs, and that of several adds up."""
    gc.collect()
    collecting, debug = gc.isenabled(), gc.get_debug()
    gc.disable()
    try:
        run()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.garbage)
    finally:
        gc.set_debug(debug)
        gc.garbage.clear()
        if collecting:
            gc.enable()
    return Counter({name: n for name, n in found.items() if name.startswith("dali_run.")})
