"""Front door to the DAG: `build_dag` from a schedule and a `CommPlan`, `durations` for its slots.

Candidates with the same schedule, degrees and plan share one `Dag`.
"""

from __future__ import annotations

from functools import lru_cache

from hwmodels.errors import Fault, InputError
from planner.simulate.build import Builder
from planner.simulate.costs import CommPlan, FloatArray, StageCosts
from planner.simulate.graph import STREAMS, Dag, NodeKind

__all__ = ["STREAMS", "Dag", "NodeKind", "build_dag", "durations"]


def durations(dag: Dag, costs: StageCosts) -> FloatArray:
    """Seconds of every slot.

    Parameters
    ----------
    dag : Dag
    costs : StageCosts
        Shapes with the pp, vpp and buckets of `dag`.

    Returns
    -------
    ndarray (B, dag.slots.size)
        ``durations(dag, costs)[:, dag.slot]`` are the seconds of every node.

    Raises
    ------
    hwmodels.errors.InputError
        If shapes differ.
    """
    return dag.slots.fill(costs)


@lru_cache(maxsize=64)
def build_dag(schedule_name: str, pp: int, microbatches: int, vpp: int, comm: CommPlan) -> Dag:
    """The DAG of one step.

    Edges: the order of every stream; a send after the compute that made its data and before the
    compute that needs it; a gather before its compute, and after the compute stream has reached
    the use `comm.prefetch` places earlier; a reduction after the compute that made its gradient
    (``end``: after the last backward of the rank); TIED after the compute and reductions of the
    first and the last rank, MIRROR after those of a rank and its mirror; SYNC after everything of every rank.

    Parameters
    ----------
    schedule_name : str
    pp, microbatches, vpp : int
    comm : CommPlan

    Returns
    -------
    Dag
        Shared, hence read-only; ``dataclasses.replace`` changes a copy.

    Raises
    ------
    hwmodels.errors.InputError
        For degrees that the schedule cannot run, an impossible plan, or a schedule that deadlocks.
    """
    if faults := _faults(comm):
        raise InputError(faults)
    return Builder(schedule_name, pp, microbatches, vpp, comm).build()


def _faults(comm: CommPlan) -> list[Fault]:
    found = []
    if comm.buckets < 1:
        found.append(Fault(f"buckets is {comm.buckets}", "CommPlan", "a stage is at least one piece", "buckets=1"))
    if comm.prefetch < 0:
        found.append(Fault(f"prefetch is {comm.prefetch}", "CommPlan", "", "prefetch=0"))
    words = {"unshard": ("none", "once", "forward", "each"), "reduce": ("none", "end", "bucketed", "each")}
    for name, allowed in words.items():
        if getattr(comm, name) not in allowed:
            found.append(Fault(f"{name} is {getattr(comm, name)!r}", "CommPlan", "", " or ".join(allowed)))
    return found
