"""Determine which part of a job this process runs: from the command line, or from the environment that a launcher
(torchrun, Slurm, MPI, Kubernetes, AWS Batch) set. Called by `dali-run run`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...ops.errors import SpecError

LAUNCHERS = (
    ("WORLD_SIZE", "RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("SLURM_NTASKS", "SLURM_PROCID"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("AWS_BATCH_JOB_ARRAY_SIZE", "AWS_BATCH_JOB_ARRAY_INDEX"),
)
"""Pairs of environment variables that launchers set: the number of processes, and the number of this process. The
variables of torchrun come first, because Slurm may have started the processes in which torchrun starts several."""
INDICES = ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX", "AWS_BATCH_JOB_ARRAY_INDEX", "RANK", "SLURM_PROCID",
           "OMPI_COMM_WORLD_RANK", "PMI_RANK")  # fmt: skip
"""Environment variables with the number of this process; used if the user gives only the number of parts."""
_PART = re.compile(r"(auto|\d{1,9})(?:/(\d{1,9}))?")
_HELP = "give --part as I/N, or as auto/N where only the number of parts is not in the environment"


def part_of(text: str, environment: Mapping[str, str]) -> tuple[tuple[int, int], str]:
    """Parse the value of ``--part``, such as ``3/8``, ``auto`` or ``auto/8``. Return (part, number of parts), and a
    text for messages that says where the numbers come from. Raises SpecError."""
    match = _PART.fullmatch(text)
    if match is None or (match[1] != "auto" and match[2] is None):
        raise SpecError(f"--part must be I/N (0/8 to 7/8), auto or auto/N, got {text!r}")
    if match[2] is None:
        return part_from_environment(environment, "--part")
    count = int(match[2])
    if match[1] != "auto":
        index, where = int(match[1]), "--part"
    else:
        index, where = _index(environment)
    if not 0 <= index < count:
        advice = f"parts are counted from 0, so the last is {count - 1}" if count else "there is at least one part"
        found_in = "" if where == "--part" else f"{where} is {index}; "
        raise SpecError(f"--part {text}: {found_in}{advice}")
    return (index, count), where


def part_from_environment(environment: Mapping[str, str], option: str = "--num-shards") -> tuple[tuple[int, int], str]:
    """Return (part, number of parts) from environment variables that a launcher set, and the names of these variables.
    Raises SpecError if there are none."""
    if "SLURM_ARRAY_TASK_COUNT" in environment:
        return _of_array(environment, option)
    for count_name, rank_name in LAUNCHERS:
        if count_name not in environment or rank_name not in environment:
            continue
        count, rank = _number(environment[count_name]), _number(environment[rank_name])
        if not 0 <= rank < count:
            raise SpecError(
                f"{option} auto: {count_name}={environment[count_name]!r} and {rank_name}="
                f"{environment[rank_name]!r} name no part; {_HELP}"
            )
        return (rank, count), f"{rank_name} and {count_name}"
    if "JOB_COMPLETION_INDEX" in environment:
        raise SpecError(
            f"{option} auto: Kubernetes says which pod this is (JOB_COMPLETION_INDEX), but not how many there are; "
            "give --part auto/N with the job's completions"
        )
    raise SpecError(
        f"{option} auto: no launcher says how many processes there are; start it with srun (SLURM_NTASKS, "
        f"SLURM_PROCID), torchrun (WORLD_SIZE, RANK) or mpirun, or {_HELP}"
    )


def _of_array(environment: Mapping[str, str], option: str) -> tuple[tuple[int, int], str]:
    """Return (part, number of parts) for a task of a Slurm array, and a text that says where the numbers come from. If
    srun starts several processes in a task, each process is a part."""
    names = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX")
    index, count, low, high = (_number(environment.get(name, "")) for name in names)
    if count < 1 or high - low + 1 != count or not low <= index <= high:
        raise SpecError(
            f"{option} auto: the tasks of this array are not numbered one after the other (as when some are submitted "
            "again), so they do not say which part each is; give --part auto/N with the number of all tasks"
        )
    tasks = _number(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    rank = _number(environment.get("SLURM_PROCID", "0")) if tasks > 1 else 0
    source = "SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT" + " with SLURM_PROCID" * (tasks > 1)
    return ((index - low) * max(tasks, 1) + rank, count * max(tasks, 1)), source


def _index(environment: Mapping[str, str]) -> tuple[int, str]:
    for name in INDICES:
        if name in environment:
            return _number(environment[name]), name
    raise SpecError(f"--part auto/N: no launcher says which part this is ({', '.join(INDICES)}); give --part as I/N")


def _number(text: str) -> int:
    """Parse a count or an index; return -1 for any other text."""
    return int(text) if text.isdecimal() else -1
