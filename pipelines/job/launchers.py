"""Which part of a job this process does, where a launcher (torchrun, Slurm, Open MPI) says so in its environment."""

from __future__ import annotations

from collections.abc import Mapping

from ...ops.errors import SpecError

LAUNCHERS = (
    ("WORLD_SIZE", "RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("SLURM_NTASKS", "SLURM_PROCID"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
)
"""Variables that hold the number of processes, and which of them this is. torchrun's come first: it may have been
started by Slurm, and then counts more finely."""


def part_from_environment(environment: Mapping[str, str]) -> tuple[tuple[int, int], str]:
    """(part, parts), and where they were found. Raises SpecError where no launcher says."""
    for count_name, rank_name in LAUNCHERS:
        if count_name not in environment or rank_name not in environment:
            continue
        try:
            count, rank = int(environment[count_name]), int(environment[rank_name])
        except ValueError:
            count, rank = 0, 0
        if not 0 <= rank < count:
            raise SpecError(
                f"--num-shards auto: {count_name}={environment[count_name]!r} and {rank_name}="
                f"{environment[rank_name]!r} name no part; give --num-shards and --shard-id as numbers"
            )
        return (rank, count), f"{rank_name} and {count_name}"
    raise SpecError(
        "--num-shards auto: no launcher says how many processes there are; start it with srun (SLURM_NTASKS, "
        "SLURM_PROCID), torchrun (WORLD_SIZE, RANK) or mpirun, or give --num-shards and --shard-id as numbers"
    )
