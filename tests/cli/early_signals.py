"""``python -m tests.cli.early_signals FIRST COMMAND...``: the command again and again, each time with a signal at
another moment of its start; prints how each ended. Each runs in a child that has loaded no more than the command line.
Kinds of signals take turns, from number FIRST on; "SIGINT twice" is Ctrl-C, and again 30 ms later.
"""

from __future__ import annotations

import collections
import json
import os
import signal
import sys
import threading
from typing import Any

from dali_run.cli.main import main

KINDS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGINT twice")
MOMENTS = {"text": (1, 2, 40, 900), "import": (1, 40, 200, 500)}
"""How many pieces of code made of text were run, or modules asked for, when the signal comes."""


def send(kind: str) -> None:
    """Send a signal to this process, or two."""
    name, _, twice = kind.partition(" ")
    if twice:
        threading.Timer(0.03, os.kill, (os.getpid(), signal.Signals[name])).start()
    os.kill(os.getpid(), signal.Signals[name])


def strike(kind: str, what: str, count: int) -> None:
    """Let the signal come at the ``count``-th event: inside of that code, or of the import."""
    seen: collections.Counter[str] = collections.Counter()

    def inside(frame: Any, event: str, argument: Any) -> None:
        if frame.f_code.co_filename == "<string>":
            sys.settrace(None)
            send(kind)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        happened = event
        if event == "exec" and args[0].co_filename == "<string>":
            happened = "text"
        seen[happened] += 1
        if happened == what and seen[what] == count:
            if what == "text":
                sys.settrace(inside)
            else:
                send(kind)

    sys.addaudithook(hook)


def run() -> int:
    """The exit code of the parent, which has printed those of the children; of a child, its own."""
    turn = int(sys.argv[1])
    command = sys.argv[2:]
    ended: dict[str, int] = {}
    for what, counts in MOMENTS.items():
        for count in counts:
            kind, turn = KINDS[turn % len(KINDS)], turn + 1
            child = os.fork()
            if child == 0:
                sys.argv = ["dali-run", *command]
                strike(kind, what, count)
                return main()
            ended[f"{kind}, {what} {count}"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps(ended))
    return 0


if __name__ == "__main__":
    sys.exit(run())
