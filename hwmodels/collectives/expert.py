"""Expert dispatch and combine: seconds on a fabric, and the SMs that they take from compute.

The law is in `hwmodels.collectives.expert_law`, what moves in `expert_traffic`, the libraries in
`expert_implementations`; here its numbers are looked up and the price is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from hwmodels import laws
from hwmodels.collectives import expert_implementations as implementations
from hwmodels.collectives.expert_implementations import ExpertImplementation
from hwmodels.collectives.expert_law import (
    BETWEEN,
    FALLBACK_SMS,
    INSIDE,
    exchange,
    law_seconds,
    sms_at_work,
)
from hwmodels.device import Coefficient, Device
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import Estimate, FloatArray
from hwmodels.network import Fabric, Link
from hwmodels.topology import GroupShape

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster

ASSUMED_BETWEEN: Mapping[str, float] = {"net": 2e-5, "peer": 1.5e-5, "relay": 1.5, "port": 1.15, "serial": 0.1}
ASSUMED_SPREAD = 0.4
"""For a library that was measured inside nodes only: DeepEP's figures between nodes, and how unsure they are."""
EVIDENCE_NODES = 4
"""Groups over more nodes are less sure, but for libraries that were measured over so many (``nodes`` of their laws)."""
NO_EVIDENCE_SPREAD = 0.20
LENT_SPREAD = 0.10
"""On top of `hwmodels.device.TRANSFER_SPREAD`: a whole device left out of the fit is 20-25% off at the median."""
SCALE_UP = ("nvlink", "xgmi", "pcie", "loopback")
"""Kinds of links whose sections hold `INSIDE` terms; the others hold `BETWEEN`."""


def _sections(scale_up: bool) -> dict[str, float]:
    """Sections of the law that belong to scale-up links (or to ports), with the bandwidth of their links."""
    from hwmodels import catalog

    links = [catalog.link(name) for name in laws.sections("expert")]
    return {link.name: link.bandwidth for link in links if (link.kind in SCALE_UP) == scale_up}


def _numbers(link: Link, key: str, terms: tuple[str, ...]) -> dict[str, Coefficient]:
    """Term -> coefficient of one implementation and phase (`key`) on a link.

    A link on which it was not measured takes the numbers of the link nearest in bandwidth on which it was, less
    surely (`LENT_SPREAD`): work of SMs hardly changes, and wires and ports are relative to their datasheets, but
    launches and hosts differ.
    """
    names = {f"expert.{key}.{term}": term for term in terms}
    own = {term: link.coefficients[name] for name, term in names.items() if name in link.coefficients}
    if own:
        return own
    known = _sections(terms is INSIDE)
    for section in sorted(known, key=lambda n: abs(np.log(known[n] / link.bandwidth))):
        lent = laws.named("expert", laws.sections("expert")[section], link.name)
        found = {term: lent[name] for name, term in names.items() if name in lent}
        if found:
            return {term: replace(c, residual=c.residual + LENT_SPREAD) for term, c in found.items()}
    return {}


def terms_of(fabric: Fabric, entry: ExpertImplementation, phase: str) -> tuple[dict[str, float], float, float]:
    """Numbers of the law for one implementation and phase, the spread inside nodes, and that between them.

    Raises
    ------
    InputError
        Where it was measured nowhere.
    """
    names = [f"{name}.{phase}" for name in (entry.key, entry.base) if name]
    inside = [_numbers(fabric.intra, name, INSIDE) for name in names]
    if not any(inside):
        fix = "python -m hwmodels fit --only expert"
        raise InputError(Fault(f"{entry.key} {phase} was not measured", "expert exchange", fix=fix))
    between = [_numbers(fabric.inter, name, BETWEEN) for name in names] if fabric.inter is not None else []
    values = {} if any(between) else dict(ASSUMED_BETWEEN)
    for found in (*reversed(inside), *reversed(between)):
        values |= {term: c.value for term, c in found.items()}
    spread = max(c.residual for c in next(f for f in inside if f).values())
    wide = max((c.residual for c in next((f for f in between if f), {}).values()), default=ASSUMED_SPREAD)
    return values, spread, wide


@cache
def evidence_nodes(entry: ExpertImplementation, phase: str) -> float:
    """Most nodes that a library and phase was measured over on any network, at least `EVIDENCE_NODES`."""
    name = f"expert.{entry.key}.{phase}.nodes"
    found = (laws.named("expert", section, "") for section in laws.sections("expert").values())
    return max([float(EVIDENCE_NODES), *(known[name].value for known in found if name in known)])


def relative_spread(
    entry: ExpertImplementation, phase: str, nodes: FloatArray, spread: float, wide: float
) -> FloatArray:
    """Relative half-width of groups over `nodes`, from the spreads of `terms_of`."""
    relative = np.where(nodes > 1.0, max(spread, wide), spread)
    return np.asarray(relative + np.where(nodes > evidence_nodes(entry, phase), NO_EVIDENCE_SPREAD, 0.0))


def expert_seconds(
    where: Cluster | Fabric,
    device: Device,
    *,
    phase: str,
    tokens_per_rank: ArrayLike,
    hidden: ArrayLike,
    topk: ArrayLike,
    experts: ArrayLike,
    shape: GroupShape,
    dtype: str = "bf16",
    impl: str = "",
    skew: ArrayLike = 1.0,
    comm_sms: ArrayLike = 0.0,
    routing: str = "uniform",
    groups: ArrayLike = 1,
    group_limit: ArrayLike = 1,
) -> Estimate:
    """Time of one dispatch or combine over each expert-parallel group.

    Parameters
    ----------
    where : Cluster or Fabric
    device : Device
        Gives the SMs and the memory bandwidth.
    phase : {'dispatch', 'combine', 'combine_low_precision', 'prepare'}
    tokens_per_rank, hidden, topk, experts : array_like
        Tokens that each rank sends, elements of one, experts that it goes to, experts in all.
    shape : GroupShape
        The expert-parallel group (`hwmodels.topology.group_shape`); all arrays broadcast.
    dtype : str
        Format of the payload.
    impl : str
        One of `hwmodels.collectives.expert_implementations.IMPLEMENTATIONS`; DeepEP normal by default.
    skew : array_like
        Copies that the busiest rank receives over the mean, at least 1.
    comm_sms : array_like
        SMs given to the kernels; 0 for the library's default.
    routing, groups, group_limit
        As `hwmodels.collectives.expert_traffic.expected_ranks`.

    Returns
    -------
    Estimate
        Seconds; 0 for a group of one rank (nothing is exchanged; sorting tokens by expert is a memory-bound
        kernel of its own) and for no tokens. Law in `hwmodels.collectives.expert_law`.

    Raises
    ------
    InputError
        For an unknown `impl`, `phase`, `dtype` or routing, numbers out of range, or a group that the fabric
        cannot hold.
    """
    fabric = where if isinstance(where, Fabric) else where.fabric
    entry = implementations.find(impl, phase)
    x = exchange(
        fabric, device, entry.algorithm, phase=phase, tokens_per_rank=tokens_per_rank, hidden=hidden, topk=topk,
        experts=experts, shape=shape, dtype=dtype, skew=skew, comm_sms=comm_sms, routing=routing, groups=groups,
        group_limit=group_limit,
    )  # fmt: skip
    values, spread, wide = terms_of(fabric, entry, phase)
    return Estimate.of(law_seconds(x, values), relative_spread(entry, phase, x.nodes, spread, wide))


def expert_bound(
    where: Cluster | Fabric,
    device: Device,
    *,
    phase: str,
    tokens_per_rank: ArrayLike,
    hidden: ArrayLike,
    topk: ArrayLike,
    experts: ArrayLike,
    shape: GroupShape,
    dtype: str = "bf16",
    impl: str = "",
    skew: ArrayLike = 1.0,
    routing: str = "uniform",
    groups: ArrayLike = 1,
    group_limit: ArrayLike = 1,
) -> FloatArray:
    """Seconds at full wire speed of the tightest link; never above `expert_seconds`. Parameters as there.

    Raises
    ------
    InputError
        As `expert_seconds`.
    """
    fabric = where if isinstance(where, Fabric) else where.fabric
    entry = implementations.find(impl, phase)
    x = exchange(
        fabric, device, entry.algorithm, phase=phase, tokens_per_rank=tokens_per_rank, hidden=hidden, topk=topk,
        experts=experts, shape=shape, dtype=dtype, skew=skew, routing=routing, groups=groups, group_limit=group_limit,
    )  # fmt: skip
    return np.where(x.idle, 0.0, np.maximum(x.wire, x.port))


def expert_sms(
    device: Device, *, experts: ArrayLike, impl: str = "", comm_sms: ArrayLike = 0.0, overlapped: bool = True
) -> FloatArray:
    """SMs that a dispatch or combine takes away from compute while it runs.

    Parameters
    ----------
    device : Device
    experts : array_like
        Experts in all.
    impl : str
    comm_sms : array_like
        SMs given to the kernels; 0 for the library's default.
    overlapped : bool
        Whether compute runs beside the exchange; kernels with a receive hook then take none.

    Returns
    -------
    ndarray of float64
        Of the shape of `experts` and `comm_sms` together; never more than the device has. Expert dispatch
        takes 20-64 SMs in the libraries measured (``comm_sms`` of moe_alltoall_measured.csv; README of DeepEP).

    Raises
    ------
    InputError
        For an unknown `impl` or a number out of range.
    """
    entry = implementations.find(impl, "dispatch")
    e, given = np.broadcast_arrays(np.asarray(experts, np.float64), np.asarray(comm_sms, np.float64))
    if not (np.all(np.isfinite(e) & (e >= 1)) and np.all(np.isfinite(given) & (given >= 0))):
        raise InputError(
            Fault("experts or comm_sms is out of range", "expert exchange", fix="experts=256, comm_sms=20")
        )
    if overlapped and entry.algorithm.hooked:
        return np.minimum(given, float(device.n_sm or FALLBACK_SMS))
    return sms_at_work(entry.algorithm, device, e, given)[0]
