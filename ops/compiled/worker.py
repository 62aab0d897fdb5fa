"""Process that compiles loops: reads lines of the list, answers each with a line of JSON, and exits when its input
ends.

    python -m dali_run.ops.compiled.worker [NICENESS]

An answer holds the key and the stamp under which the loop is stored, its file, and the seconds taken; or the error.
Started by `ahead.Compiler`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from importlib import import_module
from typing import Any


def compiled(line: str) -> dict[str, Any]:
    """Compile the Numba function of ``line`` (a line of loops.json), unless its code is stored already. Return the
    answer for the process that asked: key, stamp, whether the code is stored, file name, and seconds taken."""
    from . import numba_cache, store, target
    from .listed import of_line
    from .signatures import of_words
    from .stamp import PACKAGE, stamp

    wanted = of_line(line)
    began = time.perf_counter()
    import_module(f"{PACKAGE}.{wanted.module}")
    found = numba_cache.state.defined[f"{PACKAGE}.{wanted.module}", wanted.function]
    args = tuple(map(of_words, wanted.types))
    numba_cache.compile_listed(found, args)
    function = numba_cache.function_of(found)
    key, made_from = numba_cache.key_of(function, args), stamp(numba_cache.file_of(function))
    made_for = target.of_this_process()
    return {"key": key, "stamp": made_from, "kept": store.holds(key, made_from, made_for),
            "file": store.name_of(key, made_for), "seconds": time.perf_counter() - began}  # fmt: skip


def main() -> None:
    from . import numba_speed

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # end immediately: nothing incomplete is ever loaded
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.nice(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    numba_speed.install()  # only here: in a user's process, Numba is the user's, too
    for line in sys.stdin:
        try:
            answer = compiled(line)
        except Exception as e:  # for example a loop of an older list: its first caller gets the error
            answer = {"error": f"{type(e).__name__}: {e}"}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
