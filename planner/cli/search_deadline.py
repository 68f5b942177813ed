"""``search --deadline``: the fewest nodes that train a run in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster
    from planner.cli.problem import Problem
    from planner.search import Row
    from planner.search.constraints import Constraint
    from planner.search.deadline import Deadline


def answer_deadline(problem: Problem, deadline_s: float, json: bool) -> None:
    """Find the size, and print."""
    from planner.cli.output import print_json
    from planner.cli.progress import Progress
    from planner.cli.search_why import ask_of
    from planner.search import search
    from planner.search.deadline import fewest

    ask = ask_of(problem)

    def find(cluster: Cluster, limit: tuple[Constraint, ...]) -> Row | None:
        from hwmodels.errors import InfeasibleError

        asked: dict[str, Any] = {**problem.limits, "where": (*problem.limits.get("where", ()), *limit)}
        try:
            found = search(problem.model, cluster, problem.workload, problem.space, top=1, nearest=False, **asked)
        except InfeasibleError:
            return None
        return found.rows[0]

    with Progress() as progress:
        progress.stage(f"sizes of {problem.cluster_name}")
        found = fewest(ask.question, deadline_s, find, progress.log)
    if json:
        print_json(to_dict(found, deadline_s))
    else:
        show(found, problem, deadline_s)


def to_dict(found: Deadline, deadline_s: float) -> dict[str, Any]:
    """The JSON object of ``search --deadline``."""
    return {
        "schema": 1, "deadline_s": deadline_s, "nodes": found.cluster.nodes, "gpus": found.cluster.n_ranks,
        "train_time": found.train_s, "step_s": found.row.step.step_s.mid, "layout": found.row.layout,
        "label": found.row.layout.label(), "least_nodes": found.least_nodes, "tried": found.tried,
    }  # fmt: skip


def show(found: Deadline, problem: Problem, deadline_s: float) -> None:
    """The size, its layout, and every size that was tried."""
    from hwmodels.units import format_duration, format_usd
    from planner.cli.output import print_pairs, print_table, say

    print_pairs(problem.echo())
    say()
    price = found.cluster.usd_per_gpu_hour
    usd = "" if price is None else f", {format_usd(price.value * found.cluster.n_ranks * found.train_s / 3600.0)}"
    say(
        f"{found.cluster.n_ranks:,} GPUs ({found.cluster.nodes:,} nodes) train it in {format_duration(found.train_s)} "
        f"of {format_duration(deadline_s)}{usd}: {found.row.layout.label()}, {found.row.step.step_s.mid:.3f} s a step."
    )
    say(
        f"Every smaller size that a layout divides was searched, down to {found.least_nodes:,} nodes: fewer are too "
        "slow even at the peak of every GPU. Steps follow one another without failures."
    )
    rows = [
        (f"{one.ranks:,}", f"{one.nodes:,}", "too slow" if one.train_s is None else format_duration(one.train_s))
        for one in found.tried
    ]
    say()
    print_table("sizes that were searched", ("GPUs", "nodes", "time to train"), rows, left=0)
