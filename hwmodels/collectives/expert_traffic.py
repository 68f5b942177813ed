"""What expert dispatch and combine move: how many copies of a token, over which links.

A router sends each token to `topk` of `experts`, which lie `experts / ep` to a rank. A rank that hosts any of
a token's experts is *hit*; the expected number of distinct ranks hit (drawing without replacement, every
expert alike) is, with `h = E / R` experts on each of `R` ranks::

    D(R) = R (1 - C(E - h, k) / C(E, k))

A router limited to `g` of `G` groups (DeepSeek-V3, arXiv 2412.19437, section 2.1.2: 4 of 8) first draws the
groups, so a rank that hosts `a` whole groups is hit with probability::

    sum over j of hypergeometric(j; G, a, g) x (1 - C(gE/G - jE/G, k) / C(gE/G, k))

``D(N)`` over nodes is the same with node in the place of rank. Deterministic ("balanced") routing, as
synthetic benchmarks use it, hits ``min(k, R)`` ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hwmodels.errors import Fault, InputError
from hwmodels.estimate import FloatArray
from hwmodels.records import dataclass

ROUTINGS = ("uniform", "balanced")
"""``uniform``: experts are drawn at random; ``balanced``: spread as evenly as they can be."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How a library moves tokens; what its name in the registry stands for.

    Attributes
    ----------
    name : str
    copies : {'rank', 'expert', 'dense'}
        A copy for each distinct rank; for each chosen expert; or dense buffers of every token for every
        expert, as a plain all-to-all needs when the counts are not exchanged first.
    route : {'relay', 'direct', 'network'}
        ``relay``: once over the network to each distinct node, then over the scale-up link (DeepEP normal);
        ``direct``: each copy by the link that joins the two ranks (low latency); ``network``: every copy to
        another rank over the network (pure RDMA).
    sms : float
        Streaming multiprocessors that its kernels hold while they run, by default; 0: as many as there are
        experts to serve, up to the device's (low latency kernels give each group of warps an expert).
    hooked : bool
        The receiving half can wait off the SMs, so that an overlapped exchange takes none of them
        (DeepEP low latency with its receive hook; copy engines).
    """

    name: str
    copies: str
    route: str
    sms: float
    hooked: bool = False


NORMAL = Algorithm("normal", "rank", "relay", 20.0)
LOW_LATENCY = Algorithm("low-latency", "expert", "direct", 0.0, hooked=True)
LOW_LATENCY_RDMA = Algorithm("low-latency-rdma", "expert", "network", 0.0, hooked=True)
ONE_SIDED = Algorithm("nvlink-one-sided", "rank", "direct", 0.0)
TWO_SIDED = Algorithm("nvlink-two-sided", "rank", "direct", 0.0)
DENSE = Algorithm("dense", "dense", "direct", 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Counts of the busiest rank, all float64 and of one shape.

    Attributes
    ----------
    copies : ndarray
        Copies of tokens that it handles, those of its own tokens to itself included.
    wire : ndarray
        Of them, those that come over the scale-up link.
    port : ndarray
        Copies that cross the node's network for it.
    """

    copies: FloatArray
    wire: FloatArray
    port: FloatArray


def _miss(population: FloatArray, share: FloatArray, draws: FloatArray) -> FloatArray:
    """Chance that `draws` without replacement from `population` miss a `share` of it: C(P-s, d)/C(P, d)."""
    result = np.ones(np.broadcast_shapes(population.shape, share.shape, draws.shape))
    for i in range(int(draws.max()) if draws.size else 0):
        left = np.maximum(population - share - i, 0.0) / np.maximum(population - i, 1.0)
        result = np.where(i < draws, result * left, result)
    return np.asarray(result)


def _choose_chance(j: int, hosted: FloatArray, groups: FloatArray, limit: FloatArray) -> FloatArray:
    """Hypergeometric chance that `limit` of `groups` drawn contain exactly `j` of the `hosted` ones."""
    log = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, max(float(groups.max()), 1.0) + 1.0)))])

    def choose(n: FloatArray, k: FloatArray) -> FloatArray:
        possible = (k >= 0) & (k <= n) & (n >= 0)
        n_, k_ = np.where(possible, n, 0).astype(np.int64), np.where(possible, k, 0).astype(np.int64)
        return np.where(possible, np.exp(log[n_] - log[k_] - log[n_ - k_]), 0.0)

    j_ = np.full(groups.shape, float(j))
    return np.asarray(choose(hosted, j_) * choose(groups - hosted, limit - j_) / choose(groups, limit))


def expected_ranks(
    topk: ArrayLike,
    experts: ArrayLike,
    ranks: ArrayLike,
    *,
    routing: str = "uniform",
    groups: ArrayLike = 1,
    group_limit: ArrayLike = 1,
) -> FloatArray:
    """Expected number of distinct ranks (or nodes) that a token is sent to.

    Parameters
    ----------
    topk, experts, ranks : array_like
        Experts of a token, experts in all, ranks (or nodes) that they lie on; broadcast.
    routing : {'uniform', 'balanced'}
    groups, group_limit : array_like of int
        The router first picks `group_limit` of `groups` groups of experts (1 of 1: no limit).

    Returns
    -------
    ndarray of float64
        Between 1 and ``min(topk, ranks)``. Formulas in the module's docstring.

    Raises
    ------
    InputError
        For an unknown routing, fewer experts than `topk`, or a limit beyond the groups.
    """
    k, e, r, g, limit = (
        np.asarray(a, np.float64) for a in np.broadcast_arrays(topk, experts, ranks, groups, group_limit)
    )
    faults = []
    if routing not in ROUTINGS:
        faults.append(Fault(f"routing is {routing!r}", "expert routing", fix=" or ".join(ROUTINGS)))
    if k.size and not np.all((k >= 1) & (k <= e)):
        faults.append(Fault("topk is not between 1 and the experts", "expert routing", fix="1 <= topk <= experts"))
    if r.size and not np.all(r >= 1):
        faults.append(Fault("there are no ranks", "expert routing", fix="at least one rank"))
    if g.size and not np.all((limit >= 1) & (limit <= g) & (g == np.round(g)) & (limit == np.round(limit))):
        faults.append(Fault("group_limit is not between 1 and groups", "expert routing", fix="whole numbers, 4 of 8"))
    elif g.size and not np.all(limit * e / g >= k):
        faults.append(
            Fault("the groups allowed hold fewer experts than topk", "expert routing", fix="a larger group_limit")
        )
    if faults:
        raise InputError(faults)
    if not k.size:
        return np.zeros(k.shape)
    if routing == "balanced":
        return np.minimum(k, r)
    pool = limit * e / g  # experts that the router may still draw from
    hosted = np.maximum(np.floor(g / r + 1e-9), 0.0)  # whole groups on a rank
    # A rank within one group: that group must be drawn, then one of the rank's experts.
    hit = limit / g * (1.0 - _miss(pool, np.minimum(e / r, pool), k))
    whole = np.zeros(k.shape)
    for j in range(1, int(hosted.max()) + 1):
        whole = whole + _choose_chance(j, hosted, g, limit) * (1.0 - _miss(pool, np.minimum(j * e / g, pool), k))
    # A product of k ratios loses a few last digits; the limits hold exactly.
    return np.clip(r * np.where(hosted >= 1.0, whole, hit), 1.0, np.minimum(k, r))


def traffic(
    algorithm: Algorithm,
    tokens: FloatArray,
    topk: FloatArray,
    experts: FloatArray,
    ranks: FloatArray,
    nodes: FloatArray,
    skew: FloatArray,
    *,
    routing: str = "uniform",
    groups: ArrayLike = 1,
    group_limit: ArrayLike = 1,
) -> Traffic:
    """Copies that the busiest rank handles in one dispatch (a combine sends the same ones back).

    Parameters
    ----------
    algorithm : Algorithm
    tokens, topk, experts, ranks, nodes, skew : ndarray of float64
        Of one shape: tokens of a rank, experts of a token, experts in all, ranks in a node, nodes, and
        the copies of the busiest rank over the mean.
    routing, groups, group_limit
        As `expected_ranks`.
    """
    size = ranks * nodes
    distinct = expected_ranks(topk, experts, size, routing=routing, groups=groups, group_limit=group_limit)
    per_token = {"rank": distinct, "expert": topk, "dense": experts}[algorithm.copies]
    copies = tokens * per_token * skew
    if algorithm.route == "network":
        return Traffic(copies, np.zeros(copies.shape), copies * (size - 1.0) / size)
    if algorithm.route == "relay":
        over = expected_ranks(topk, experts, nodes, routing=routing, groups=groups, group_limit=group_limit)
        # Copies reach a node at the GPU of the sender's rail, which passes on all but its own.
        port = tokens * over * skew * (nodes - 1.0) / nodes
        return Traffic(copies, copies * (ranks - 1.0) / ranks, port)
    return Traffic(copies, copies * (ranks - 1.0) / size, copies * (size - ranks) / size)
