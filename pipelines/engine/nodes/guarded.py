"""Guarded: nodes run so that samples which make a kernel fail cost themselves and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....ops.batch import Origin, concat
from ....ops.errors import DaliRunError, RejectCode, SampleError
from ...graph.nodes import Edge, Node
from ..memory.budget import OverBudgetError
from .envs import middle, nothing, pieces
from .node_pass import Dropped, Env, NodePass
from .run_nodes import RAISED_BY, run_nodes

_RAISED_FOR = "_dali_run_sample"
"""On an exception: the sample whose kernel raised it, if there was only one."""
MORE_MEMORY = "a larger pipeline.memory.host on a machine that has it lets it through (`dali-run retry-failed`)"

ErrorHook = Callable[[Exception, int], Exception | None]
"""Told of an exception and how many samples took part; returns what to raise, or None to narrow it down."""


def guarded(nodes: Sequence[Node], env: Env, run: NodePass, gives: Sequence[Edge], on_error: ErrorHook) -> Env:
    """Run ``nodes`` and return the batches of ``gives``. An exception that is not ours to end the run with is
    narrowed down by halving until the samples that raise it are alone; they are dropped, the rest goes on."""
    before = run.state()
    try:
        here = dict(env)
        run_nodes(nodes, here, run, gives)
        return {e: here[e] for e in gives}
    except Exception as e:
        if isinstance(e, DaliRunError) and not isinstance(e, SampleError):
            raise
        told = run.undo(before)
        if len(run.samples) == 1:
            e.__dict__.setdefault(_RAISED_FOR, run.samples.origin(0))
        again = run.exclusive if _may_fit_alone(e, run) else None
        fatal = None if again else on_error(e, len(run.samples))
        if fatal is e:
            raise
        if fatal is not None:
            raise fatal from e
        here.clear()
        problem = e.with_traceback(None)  # whose frames hold what was allocated
    if again:
        run.exclusive = None
        try:
            with again():
                return guarded(nodes, env, run, gives, on_error)
        finally:
            run.exclusive = again
    if len(run.samples) <= 1:
        for sink, facts in told:
            run.reports.add(sink, *facts)
        return _refused(nodes, run, gives, problem)
    parts = [guarded(nodes, half, run, gives, on_error) for half in pieces(env, run, middle(run))]
    return {e: concat([p[e] for p in parts]) for e in gives}


def described(problem: Exception) -> str:
    """An exception of a kernel's, with the sample, the operator, and its place in the user's text."""
    node: Node | None = problem.__dict__.get(RAISED_BY)
    sample: Origin | None = problem.__dict__.get(_RAISED_FOR)
    before = [] if sample is None else [sample.source or sample.key]
    before += [] if node is None else [node.where]
    return ": ".join([*before, type(problem).__name__, str(problem)])


def _may_fit_alone(problem: Exception, run: NodePass) -> bool:
    """It was not the budget, and others may have had the memory."""
    return isinstance(problem, MemoryError) and not isinstance(problem, OverBudgetError) and len(run.samples) <= 1


def _refused(nodes: Sequence[Node], run: NodePass, gives: Sequence[Edge], problem: Exception) -> Env:
    """Drop the samples of ``run`` (one at most); the batches of ``gives`` without samples."""
    raised_by: Node | None = problem.__dict__.get(RAISED_BY)
    node = " > ".join(n.name for n in nodes) if raised_by is None else raised_by.name
    code: RejectCode = "internal"
    message = f"{type(problem).__name__}: {problem}"
    if isinstance(problem, SampleError):
        code, message = problem.code, str(problem)
    if isinstance(problem, MemoryError):
        code = "too_large"
        message = f"there is not enough memory for it: {str(problem) or 'an allocation failed'}; {MORE_MEMORY}"
    run.dropped += [Dropped(int(s), node, code, message) for s in run.samples.slot]
    return nothing(nodes, run.samples, gives)
