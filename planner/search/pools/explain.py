"""What an answer over pools says in sentences: what is used, what is left idle, and what it would cost to use it."""

from __future__ import annotations

from hwmodels.cluster import Cluster
from hwmodels.units import format_seconds
from planner.search.pools.examine import Found
from planner.search.result import Row


def explained(
    cluster: Cluster, rows: list[Row], timed: list[Found], refused: dict[int, str], proven: bool
) -> list[str]:
    """Notes on the best row: its nodes, every pool with idle ones, and how far the order is proven."""
    best = rows[0]
    if best.use is None:
        return []
    nodes = zip(cluster.pools, best.use.nodes.items(), strict=True)
    used = [f"{n} of {pool.nodes} nodes of {name}" for pool, (name, n) in nodes if n]
    found = [f"used: {', '.join(used)}: {best.use.label}"]
    for i, pool in enumerate(cluster.pools):
        idle = best.use.idle_nodes[pool.label]
        if idle:
            found.append(f"{pool.label}: {idle} of {pool.nodes} nodes idle; {_why(cluster, i, best, timed, refused)}")
        else:
            spare = pool.n_ranks - best.use.arrangement.gpus.get(i, 0)
            if spare:
                replica = best.layout.tp * best.layout.cp * best.layout.pp
                found.append(f"{pool.label}: {spare} GPUs idle; a replica takes {replica}")
    if not proven:
        found.append(
            "the best of the arrangements that were timed; pools alone are proven, arrangements over several are "
            "ordered by an estimate"
        )
    return found


def _why(cluster: Cluster, pool: int, best: Row, timed: list[Found], refused: dict[int, str]) -> str:
    """What the fastest arrangement that uses more of a pool takes, and what it spends it on."""
    used = best.use.arrangement.gpus if best.use is not None else {}
    have = used.get(pool, 0)
    more = [
        one for one in timed
        if one.arrangement.gpus.get(pool, 0) > have and set(one.arrangement.gpus) >= set(used)
    ]  # fmt: skip
    if not more:
        if pool in refused and not have:
            return "nothing that fits was found with it"
        return "no arrangement that was timed uses more of it"
    other = min(more, key=lambda one: one.seconds)
    gain = other.seconds / best.step.step_s.mid - 1.0
    pace = f"{abs(gain):.1%} {'slower' if gain > 0 else 'faster'}"
    spent = f"with {other.arrangement.label(cluster)} a step takes {format_seconds(other.seconds)}, {pace}"
    crossing = max(kind.crossing.nbytes["dp_comm"] + kind.crossing.nbytes["pp_comm"] for kind in other.mix.kinds)
    if gain > 0 and crossing:
        over = max(float(kind.costs.reduce_s.sum(axis=(2, 3)).max()) for kind in other.mix.kinds)
        spent += f"; {crossing / 1e9:.1f} GB cross between the pools"
        if over > 0.1 * other.seconds:
            spent += f", gradients take {format_seconds(over)}"
    return spent
