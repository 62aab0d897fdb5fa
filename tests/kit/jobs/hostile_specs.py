"""Specs with random damage, and a hook that records suspicious requests to Python."""

from __future__ import annotations

import random
import re
from typing import Any

FORBIDDEN = ("os.system", "subprocess.", "os.exec", "os.posix_spawn", "os.fork", "socket.", "os.remove", "os.rename",
             "os.mkdir", "shutil.", "ctypes.dlopen", "urllib.", "pty.", "exec", "compile", "import")  # fmt: skip


watched: dict[str, Any] = {"on": False, "events": []}


def note_event(event: str, arguments: tuple[Any, ...]) -> None:
    if not watched["on"]:
        return
    if event == "open":
        watched["events"].append(f"open {arguments[0]}")
    elif event.startswith(FORBIDDEN):
        watched["events"].append(f"{event} {arguments[:1]}"[:200])


PIECES = ["$", "${", "${root}", "}", "{", "[", "]", ":", ": ", ",", "- ", "&a ", "*a", "!!x ", "'", '"', "\t", "\n",
          "#", "|", ">", "%", "@", "012", "1e9", "yes", "null", "-1", "99999999999999999999", "0.5", "lambda", "<<: ",
          "é", "\U0001f600", "\x07", "images", "flag", "if", "op", "$flag", "**", "(", ")", "[]", "{}"]  # fmt: skip


def mutated(text: str, rng: random.Random) -> str | bytes:
    """Damage ``text`` at random: its characters, words, lines or bytes."""
    at = rng.randrange(len(text))
    kind = rng.randrange(8)
    words = list(re.finditer(r"\w+", text))
    one, other = rng.choice(words), rng.choice(words)
    if kind == 0:
        return text[:at] + rng.choice(PIECES) + text[at:]
    if kind == 1:
        return text[:at] + text[at + rng.randint(1, 20) :]
    if kind == 2:
        to = rng.randrange(len(text))
        return text[:to] + text[at : at + rng.randint(1, 40)] + text[to:]
    if kind == 3:
        lines = text.splitlines(keepends=True)
        i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
        lines[i], lines[j] = lines[j], lines[i]
        return "".join(lines)
    if kind == 4:
        raw = bytearray(text.encode())
        raw[rng.randrange(len(raw))] = rng.randrange(256)
        return bytes(raw)
    replacement = other[0] if kind < 7 else rng.choice(PIECES)
    return text[: one.start()] + replacement + text[one.end() :]
