"""Targets: the processors that code is compiled for.

Code in the wheel is made for the levels of x86-64 that compilers agree on; the best one that this processor has is
taken. What is compiled on the spot is made for the very processor, as always with Numba.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from functools import cache
from typing import Any

LEVELS = {
    "x86-64-v3": "avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave cx16 popcnt sse4.2 ssse3 sahf",
    "x86-64-v2": "cx16 popcnt sse4.2 ssse3 sahf",
}
"""Levels of x86-64 that the wheel has code for, the best first, and LLVM's names of their features beyond the first.

Level 4 (AVX-512) is left out: LLVM keeps to vectors of 256 bits there too. What it would gain was not measured.
"""

_TUNING = (
    "OPT",
    "BOUNDSCHECK",
    "LOOP_VECTORIZE",
    "SLP_VECTORIZE",
    "ENABLE_AVX",
    "DEBUGINFO_DEFAULT",
    "DISABLE_INTEL_SVML",
)


@cache
def versions() -> str:
    """The versions that compiled code depends on besides the processor: it is loaded by exactly these and no others."""
    import llvmlite
    import numba

    return f"cp{sys.version_info[0]}{sys.version_info[1]}-numba{numba.__version__}-llvmlite{llvmlite.__version__}"


def _settings() -> tuple[str, ...]:
    from numba import config

    return tuple(str(getattr(config, name, None)) for name in _TUNING)


@cache
def host(codegen: Any) -> str:
    """The target of ``codegen`` in a word: processor, features and whatever else changes what Numba makes."""
    described = repr((codegen.magic_tuple(), _settings()))
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def of_this_process() -> str:
    """`host` of the code that this process would compile."""
    from numba.core.registry import cpu_target

    return host(cpu_target.target_context.codegen())


def on_x86() -> bool:
    """This machine's processor is of the family x86-64."""
    return platform.machine().lower() in ("x86_64", "amd64")


def compiles_with(feature: str) -> bool:
    """Numba compiles for an x86-64 processor with this feature (LLVM's name): for this one, or for the one that
    NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name (``generic`` where one cache serves many machines).

    LLVM ends the process for an instruction that the processor lacks."""
    from llvmlite import binding
    from numba import config

    settings: Any = config  # whose names are made of the environment
    if not on_x86():
        return False
    if settings.CPU_FEATURES:
        return f"+{feature}" in settings.CPU_FEATURES.split(",")
    if settings.CPU_NAME in LEVELS:
        return feature in LEVELS[settings.CPU_NAME].split()
    return (
        settings.CPU_NAME in (None, "host")
        and settings.CPU_FEATURES is None
        and bool(binding.get_host_cpu_features().get(feature))
    )


@cache
def levels() -> tuple[str, ...]:
    """The levels of the wheel whose code this process may run, the best first.

    None where NUMBA_CPU_NAME or NUMBA_CPU_FEATURES asks for a processor; the level itself may be asked for by name."""
    from llvmlite import binding
    from numba import config

    if not on_x86() or sys.platform != "linux":
        return ()
    settings: Any = config  # whose names are made of the environment
    if settings.BOUNDSCHECK or not settings.ENABLE_AVX or settings.OPT != 3:
        return ()
    if settings.CPU_NAME in LEVELS:
        return (settings.CPU_NAME,)
    if settings.CPU_NAME not in (None, "host") or settings.CPU_FEATURES is not None:
        return ()
    has = binding.get_host_cpu_features()
    return tuple(level for level, needs in LEVELS.items() if all(has.get(feature) for feature in needs.split()))
