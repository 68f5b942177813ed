"""`Arrangement`: where the ranks of a layout lie, pool by pool, and how the batch is shared among its replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hwmodels.cluster import Cluster
from hwmodels.errors import Fault, InputError
from hwmodels.pools import island, joined
from hwmodels.records import dataclass
from planner.frameworks.orders import ORDERS
from planner.layout import Layout
from planner.plan import Placement, Plan
from planner.schedule import get as get_schedule


@dataclass(frozen=True, slots=True)
class Replicas:
    """Data-parallel replicas that are alike.

    Attributes
    ----------
    count : int
    pools : tuple of int
        Pool of each pipeline rank.
    microbatches : int
        Of each of them in a step.
    """

    count: int
    pools: tuple[int, ...]
    microbatches: int


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A layout with the pools of its ranks and the micro-batches of its replicas.

    Attributes
    ----------
    layout : Layout
        Its dp is the sum of the replicas.
    replicas : tuple of Replicas
        In the order of the data-parallel ranks.
    """

    layout: Layout
    replicas: tuple[Replicas, ...]

    @property
    def stage_ranks(self) -> int:
        """GPUs of one pipeline rank of one replica."""
        return self.layout.tp * self.layout.cp

    @property
    def pools(self) -> tuple[int, ...]:
        """Pools that it uses, ascending."""
        return tuple(sorted({pool for each in self.replicas for pool in each.pools}))

    @property
    def gpus(self) -> dict[int, int]:
        """GPUs that it uses of each pool."""
        found = dict.fromkeys(self.pools, 0)
        for each in self.replicas:
            for pool in each.pools:
                found[pool] += each.count * self.stage_ranks
        return found

    def nodes(self, cluster: Cluster) -> dict[int, int]:
        """Nodes that it uses of each pool, the last one of a pool perhaps in part."""
        return {pool: -(-gpus // cluster.pools[pool].gpus_per_node) for pool, gpus in self.gpus.items()}

    def sharers(self, cluster: Cluster, stage: int, pool: int) -> int:
        """Replicas whose rank `stage` lies on the fabric of `pool`: they reduce among themselves first."""
        home = island(cluster, pool)
        return sum(each.count for each in self.replicas if island(cluster, each.pools[stage]) == home)

    def islands(self, cluster: Cluster, stage: int) -> tuple[int, ...]:
        """One pool of each fabric that replicas of a pipeline rank lie on."""
        return tuple({island(cluster, each.pools[stage]): each.pools[stage] for each in self.replicas}.values())

    def batch_share(self, mbs: int) -> tuple[int, ...]:
        """Sequences a step of every data-parallel rank."""
        return tuple(each.microbatches * mbs for each in self.replicas for _ in range(each.count))

    def seats(self, cluster: Cluster) -> tuple[Placement, ...]:
        """Node and GPU of every world rank: the ranks of a pool fill its nodes in order; nodes count over all pools."""
        begin = [sum(pool.nodes for pool in cluster.pools[:i]) for i in range(len(cluster.pools))]
        taken = dict.fromkeys(range(len(cluster.pools)), 0)
        found = []
        for rank, pool in enumerate(self._pool_of_rank()):
            node, gpu = divmod(taken[pool], cluster.pools[pool].gpus_per_node)
            found.append(Placement(rank, begin[pool] + node, gpu))
            taken[pool] += 1
        return tuple(found)

    def _pool_of_rank(self) -> Iterator[int]:
        """In world order: pipeline ranks slowest, then replicas, then the ranks of one stage."""
        for stage in range(self.layout.pp):
            for each in self.replicas:
                for _ in range(each.count * self.stage_ranks):
                    yield each.pools[stage]

    def use(self, cluster: Cluster) -> list[dict[str, object]]:
        """What answers say of it: one entry for each kind of replica, with names of pools."""
        return [
            {
                "replicas": each.count,
                "stage_pools": [cluster.pools[pool].label for pool in each.pools],
                "microbatches": each.microbatches,
                "batch_share": each.microbatches * self.layout.mbs,
            }
            for each in self.replicas
        ]

    def label(self, cluster: Cluster) -> str:
        """Short text: ``4 x h100 (12 mb) + 3 x a100 (5 mb)``; stages of several pools with a slash between."""
        return " + ".join(
            f"{each.count} x {stages_text([cluster.pools[p].label for p in each.pools])} ({each.microbatches} mb)"
            for each in self.replicas
        )


def stages_text(names: Sequence[str]) -> str:
    """``h100:4/a100:2`` for six pipeline ranks, the name alone for one pool."""
    runs: list[tuple[str, int]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + 1)
        else:
            runs.append((name, 1))
    return runs[0][0] if len(runs) == 1 else "/".join(f"{name}:{count}" for name, count in runs)


def is_plain(arrangement: Arrangement, cluster: Cluster) -> bool:
    """Whether it says no more than its layout: equal shares on a cluster of one kind."""
    return not cluster.mixed and len({each.microbatches for each in arrangement.replicas}) == 1


def faults(arrangement: Arrangement, cluster: Cluster, gbs: int, where: str = "layout") -> list[Fault]:
    """Why an arrangement cannot run on the cluster; rules of its layout are `planner.layout`'s."""
    layout, found = arrangement.layout, list[Fault]()
    if layout.order != ORDERS[0] or layout.placement:
        what = f"order={layout.order}" if layout.order != ORDERS[0] else "moved ranks"
        found.append(Fault(f"{what} over pools", where, "pools are filled by the default order", f"order={ORDERS[0]}"))
    names = [pool.label for pool in cluster.pools]
    for pool, gpus in arrangement.gpus.items():
        have, each = cluster.pools[pool].n_ranks, cluster.pools[pool].gpus_per_node
        if gpus > have:
            fix = f"at most {have // (arrangement.stage_ranks * layout.pp)} replicas of it there"
            found.append(Fault(f"{gpus} ranks on pool {names[pool]}", where, f"it has {have} GPUs", fix))
        if arrangement.stage_ranks > each and arrangement.stage_ranks % each:
            why = f"a node of {names[pool]} has {each} GPUs, and a stage fills whole nodes"
            found.append(Fault(f"tp*cp is {arrangement.stage_ranks}", where, why, f"a divisor or multiple of {each}"))
    if layout.order != Layout().order and len(arrangement.pools) > 1:
        why = "ranks fill pools with the ranks of one stage together"
        found.append(Fault(f"order is {layout.order}", where, why, f"order {Layout().order}"))
    shares = sum(arrangement.batch_share(layout.mbs))
    if shares != gbs:
        why = f"gbs is {gbs}"
        found.append(Fault(f"micro-batches sum to {shares} sequences", where, why, f"shares that sum to {gbs}"))
    if not joined(cluster, arrangement.pools):
        apart = [(a, b) for a in arrangement.pools for b in arrangement.pools if a < b and not joined(cluster, (a, b))]
        one, other = (names[i] for i in apart[0])
        fix = f"links: [{{between: [{one}, {other}], link: {{...}}}}] in the cluster file, or one of the pools alone"
        found.append(Fault(f"nothing joins {one} and {other}", where, "the layout uses both", fix))
    several = len(arrangement.pools) > 1 or len({r.microbatches for r in arrangement.replicas}) > 1
    if several and get_schedule(layout.schedule).directions > 1:
        why = "both copies of a stage reduce their gradients in step, on equal devices with equal shares"
        found.append(Fault(f"{layout.schedule} over several pools or shares", where, why, "1f1b"))
    if layout.zero_stage == 3 and len({r.microbatches for r in arrangement.replicas}) > 1:
        why = "ZeRO-3 gathers parameters in every micro-batch, on all ranks as often"
        found.append(Fault("zero_stage 3 with unequal shares", where, why, "zero_stage 0 to 2, or equal shares"))
    return found


def in_order(cluster: Cluster, layout: Layout, gbs: int, shares: Sequence[int] = ()) -> Arrangement:
    """The arrangement of ranks that fill the cluster's nodes in order, pool after pool.

    Parameters
    ----------
    shares : sequence of int
        Sequences of each data-parallel rank; equal ones unless given.

    Raises
    ------
    InputError
        Where the cluster has too few ranks, or the tp and cp ranks of one stage would lie in two pools.
    """
    nodes = [i for i, pool in enumerate(cluster.pools) for _ in range(pool.n_ranks)]
    each = layout.tp * layout.cp
    given = tuple(shares) or (gbs // layout.dp,) * layout.dp
    if layout.world > len(nodes):
        what = f"tp*cp*pp*dp = {layout.world}"
        raise InputError(Fault(what, "layout", f"the cluster has {len(nodes)} ranks", f"a cluster of {layout.world}"))
    kinds = []
    for replica in range(layout.dp):
        pools = []
        for stage in range(layout.pp):
            begin = (stage * layout.dp + replica) * each
            over = set(nodes[begin : begin + each])
            if len(over) != 1:
                what = f"ranks {begin} to {begin + each - 1} of one stage do not lie in one pool"
                raise InputError(Fault(what, "layout", "pools are filled in order", "search finds where they fit"))
            pools.append(over.pop())
        kinds.append((tuple(pools), given[replica] // layout.mbs))
    return Arrangement(layout, _runs(kinds))


def _runs(kinds: Sequence[tuple[tuple[int, ...], int]]) -> tuple[Replicas, ...]:
    """Replicas one after another that are alike, together."""
    found: list[Replicas] = []
    for pools, count in kinds:
        if found and (found[-1].pools, found[-1].microbatches) == (pools, count):
            found[-1] = Replicas(found[-1].count + 1, pools, count)
        else:
            found.append(Replicas(1, pools, count))
    return tuple(found)


def arrangement_of_plan(plan: Plan, layout: Layout, cluster: Cluster) -> Arrangement:
    """What the placement and the shares of a plan say.

    Parameters
    ----------
    layout : Layout
        Of the plan, with the layers of its stages.

    Raises
    ------
    InputError
        Where a rank lies on a node that the cluster does not have, or a stage in two pools.
    """
    node_pool = [i for i, pool in enumerate(cluster.pools) for _ in range(pool.nodes)]
    each, kinds = layout.tp * layout.cp, []
    for replica in range(layout.dp):
        pools = []
        for stage in range(layout.pp):
            begin = (stage * layout.dp + replica) * each
            seats = plan.placement[begin : begin + each]
            absent = [seat for seat in seats if seat.node >= len(node_pool)]
            if absent:
                what, why = f"puts rank {absent[0].rank} on node {absent[0].node}", f"there are {len(node_pool)} nodes"
                raise InputError(Fault(what, "placement", why, f"nodes 0 to {len(node_pool) - 1}"))
            over = {node_pool[seat.node] for seat in seats}
            if len(over) > 1:
                names = " and ".join(cluster.pools[i].label for i in sorted(over))
                what = f"puts ranks {begin} to {begin + each - 1} of one stage on {names}"
                raise InputError(Fault(what, "placement", "they work in step on equal devices", "one pool a stage"))
            pools.append(over.pop())
        kinds.append((tuple(pools), plan.batch_share[replica] // layout.mbs))
    return Arrangement(layout, _runs(kinds))


@dataclass(frozen=True, slots=True)
class Use:
    """Which part of a cluster an arrangement uses, in names and numbers for answers.

    Attributes
    ----------
    arrangement : Arrangement
    nodes, idle_nodes : dict of str to int
        Nodes of each pool that it uses, the last one perhaps in part, and that it leaves idle.
    replicas : tuple of dict
        `Arrangement.use`.
    label : str
    """

    arrangement: Arrangement
    nodes: dict[str, int]
    idle_nodes: dict[str, int]
    replicas: tuple[dict[str, object], ...]
    label: str

    @classmethod
    def of(cls, arrangement: Arrangement, cluster: Cluster) -> Use:
        """Of an arrangement on its cluster."""
        used = arrangement.nodes(cluster)
        nodes = {pool.label: used.get(i, 0) for i, pool in enumerate(cluster.pools)}
        idle = {pool.label: pool.nodes - nodes[pool.label] for pool in cluster.pools}
        return cls(arrangement, nodes, idle, tuple(arrangement.use(cluster)), arrangement.label(cluster))

    def record(self) -> dict[str, object]:
        """For JSON."""
        return {"nodes": self.nodes, "idle_nodes": self.idle_nodes, "replicas": list(self.replicas)}
