"""Run nodes so that a sample which makes a kernel fail is dropped alone, and the others go on.

Called by the executors for every step of the regular path.
"""

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
"""Name of an attribute for exceptions of a kernel that had only one sample; its value is that sample."""
MORE_MEMORY = "raise pipeline.memory.host on a machine with more memory, then run `dali-run retry-failed`"

ErrorHook = Callable[[Exception, int], Exception | None]
"""Callback that gets an exception of a kernel and the number of samples that the kernel had. It returns the exception
to raise, or None: then `guarded` finds the sample that causes it."""


def guarded(nodes: Sequence[Node], env: Env, run: NodePass, gives: Sequence[Edge], on_error: ErrorHook) -> Env:
    """Run ``nodes`` and return the batches of their outputs ``gives``. If a kernel raises an exception that need not
    end the run, the samples are halved until those that cause it are found. Only these are dropped."""
    before = run.state()
    try:
        batches = dict(env)
        run_nodes(nodes, batches, run, gives)
        return {e: batches[e] for e in gives}
    except Exception as e:
        if isinstance(e, DaliRunError) and not isinstance(e, SampleError):
            raise
        discarded = run.undo(before)
        if len(run.samples) == 1:
            e.__dict__.setdefault(_RAISED_FOR, run.samples.origin(0))
        alone = run.exclusive if _may_fit_alone(e, run) else None
        fatal = None if alone else on_error(e, len(run.samples))
        if fatal is e:
            raise
        if fatal is not None:
            raise fatal from e
        batches.clear()
        problem = e.with_traceback(None)  # the traceback's frames hold the allocated memory
    if alone:
        run.exclusive = None
        try:
            with alone():
                return guarded(nodes, env, run, gives, on_error)
        finally:
            run.exclusive = alone
    if len(run.samples) <= 1:
        for report, facts in discarded:
            run.reports.add(report, *facts)
        return _rejected(nodes, run, gives, problem)
    parts = [guarded(nodes, half, run, gives, on_error) for half in pieces(env, run, middle(run))]
    return {e: concat([p[e] for p in parts]) for e in gives}


def described(problem: Exception) -> str:
    """Return a text for an exception of a kernel: the sample, the operator with the place in the user's spec that
    created it, and the message."""
    node: Node | None = problem.__dict__.get(RAISED_BY)
    sample: Origin | None = problem.__dict__.get(_RAISED_FOR)
    before = [] if sample is None else [sample.source or sample.key]
    before += [] if node is None else [node.where]
    return ": ".join([*before, type(problem).__name__, str(problem)])


def _may_fit_alone(problem: Exception, run: NodePass) -> bool:
    """Return whether the single sample of ``run`` failed for lack of memory, perhaps because other tasks held it. False
    if the sample exceeds the memory budget."""
    return isinstance(problem, MemoryError) and not isinstance(problem, OverBudgetError) and len(run.samples) <= 1


def _rejected(nodes: Sequence[Node], run: NodePass, gives: Sequence[Edge], problem: Exception) -> Env:
    """Drop the only sample of ``run``, if it has one, because of ``problem``. Return batches without samples for the
    outputs ``gives``."""
    raised_by: Node | None = problem.__dict__.get(RAISED_BY)
    node = " > ".join(n.name for n in nodes) if raised_by is None else raised_by.name
    code: RejectCode = "internal"
    message = f"{type(problem).__name__}: {problem}"
    if isinstance(problem, SampleError):
        code, message = problem.code, str(problem)
    if isinstance(problem, MemoryError):
        code = "too_large"
        message = f"not enough memory for this sample: {str(problem) or 'an allocation failed'}; {MORE_MEMORY}"
    run.dropped += [Dropped(int(s), node, code, message) for s in run.samples.slot]
    return nothing(nodes, run.samples, gives)
