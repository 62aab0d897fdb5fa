"""Targets: the processors for which code is compiled.

Code in the wheel is compiled for the levels of x86-64 that compilers agree on; the best level that this processor
supports is used. Code that is compiled on this machine is for exactly its processor, as always with Numba.
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
"""Levels of x86-64 (such as v3) for which the wheel has compiled code, best first, with LLVM's names of the features
that each adds to the baseline. Level 4 (AVX-512) is left out: LLVM uses 256-bit vectors there too. Its gain was not
measured."""

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
    """Return the versions of Python, Numba and llvmlite as text. Only these exact versions can load compiled code."""
    import llvmlite
    import numba

    return f"cp{sys.version_info[0]}{sys.version_info[1]}-numba{numba.__version__}-llvmlite{llvmlite.__version__}"


def _settings() -> tuple[str, ...]:
    from numba import config

    return tuple(str(getattr(config, name, None)) for name in _TUNING)


@cache
def host(codegen: Any) -> str:
    """Return a digest of the processor, its features and all settings that change Numba's output. ``codegen``: Numba's
    code generator."""
    described = repr((codegen.magic_tuple(), _settings()))
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def of_this_process() -> str:
    """Return the digest, see `host`, of the processor and settings for which this process compiles."""
    from numba.core.registry import cpu_target

    return host(cpu_target.target_context.codegen())


def on_x86() -> bool:
    """Return whether this machine's processor is of the x86-64 family."""
    return platform.machine().lower() in ("x86_64", "amd64")


def compiles_with(feature: str) -> bool:
    """Return whether Numba compiles for an x86-64 processor with this feature (LLVM's name). The processor is this
    machine's, or the one named by NUMBA_CPU_NAME and NUMBA_CPU_FEATURES (``generic`` if one cache serves many
    machines). LLVM ends the process if it must compile an instruction that the processor lacks."""
    from llvmlite import binding
    from numba import config

    settings: Any = config  # its attributes are generated from NUMBA_* variables
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
    """Return the levels of x86-64 whose compiled code in the wheel this process may run, best first. If NUMBA_CPU_NAME
    or NUMBA_CPU_FEATURES selects a processor, return none, unless it selects one of these levels by name."""
    from llvmlite import binding
    from numba import config

    if not on_x86() or sys.platform != "linux":
        return ()
    settings: Any = config  # its attributes are generated from NUMBA_* variables
    if settings.BOUNDSCHECK or not settings.ENABLE_AVX or settings.OPT != 3:
        return ()
    if settings.CPU_NAME in LEVELS:
        return (settings.CPU_NAME,)
    if settings.CPU_NAME not in (None, "host") or settings.CPU_FEATURES is not None:
        return ()
    has = binding.get_host_cpu_features()
    return tuple(level for level, needs in LEVELS.items() if all(has.get(feature) for feature in needs.split()))
