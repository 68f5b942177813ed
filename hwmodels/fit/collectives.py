"""The collective laws of each kind of link from ``collectives_measured.csv``.

A coefficient belongs to a kind of link or a generation of network cards, never to a named system. Links inside
nodes come first (latencies and hops shared by the ring ops, efficiencies by op; then pairs; then the custom
kernels), then networks with those inside fixed. Tuner shares are NCCL's own constants, not fitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from hwmodels import catalog, laws, measured, yamlfile
from hwmodels.collectives import LARGE_BYTES, MEMBERS, seconds
from hwmodels.collectives.base import NVLS_RANKS
from hwmodels.collectives.coefficients import ANY_NETWORK
from hwmodels.collectives.custom import FRAMEWORKS
from hwmodels.device import Coefficient
from hwmodels.estimate import Estimate, FloatArray
from hwmodels.fit.collectives_free import (
    BY_OP,
    CUSTOM,
    CUSTOM_STARTS,
    FEW_ROWS,
    FEW_SPREAD,
    INFERRED,
    LIMIT_SLOPES,
    LIMITS,
    LL128,
    NETWORK,
    NETWORK_KINDS,
    NETWORK_PAIRS,
    NETWORK_RING,
    NOT_BY_PAIRS,
    NVLS,
    ONE_PAIR,
    PAIRS,
    PRIOR,
    RINGS,
    SHARED,
    SLOPE,
    TOLERANCE,
    TUNER,
    TUNER_SOURCE,
)
from hwmodels.fit.solve import Free, rms, solve
from hwmodels.fit.systems import OPS, Batch, batches, fabric_of, is_custom, is_kernel_time, system_of, usable
from hwmodels.laws import Block, Section
from hwmodels.measured import Rows
from hwmodels.network import Link
from hwmodels.validation.scored import HeldOut

FILE = "collectives_measured.csv"
FULL_NODE = 8.0
"""GPUs of a full node."""


def taken_from(name: str) -> str:
    """The link whose laws another takes over; empty where it has none but its own."""
    data, _ = yamlfile.parse(catalog.text("networks", name), f"catalog/networks/{name}.yaml")
    return str(data.get("laws_of") or "") if isinstance(data, dict) else ""


@dataclass(slots=True)
class Fitted:
    """Links as fitted so far, and the blocks that go into the catalog."""

    links: dict[str, Link] = field(default_factory=dict)
    blocks: dict[str, list[Block]] = field(default_factory=dict)
    pooled: dict[str, Coefficient] = field(default_factory=dict)

    def link(self, name: str) -> Link:
        """The link with what was fitted; one that takes over the laws of another takes the fresh ones."""
        if name in self.links:
            return self.links[name]
        return self.bare(name) if self.links else catalog.link(name)

    def bare(self, name: str) -> Link:
        """The link with no more than what it takes over: a fit must not depend on the one before."""
        like = taken_from(name)
        link = catalog.link(name)
        known = dict(self.pooled) if link.kind in NETWORK_KINDS else {}
        if like in self.links:
            known |= self.links[like].coefficients
        return replace(link, coefficients=known)

    def add(self, name: str, block: Block) -> None:
        """Record a block of a section and put its values on the link."""
        self.blocks.setdefault(name, []).append(block)
        extra = {
            f"{block.prefix}{key}": Coefficient(value, block.source, block.rows, block.residual)
            for key, value in block.values.items()
        }
        link = self.links.get(name) or self.bare(name)
        self.links[name] = replace(link, coefficients={**link.coefficients, **extra})


def estimate(parts: Sequence[Batch], size: int, fitted: Fitted, trial: Mapping[str, Link] | None = None) -> Estimate:
    """Price of every row on the fabric of its system.

    Parameters
    ----------
    parts : sequence of Batch
    size : int
        Rows in all.
    fitted : Fitted
        Links to use; an empty one prices by the catalog.
    trial : Mapping[str, Link], optional
        By name, in place of those.
    """
    mid, spread, tried = np.zeros(size), np.zeros(size), trial or {}
    for part in parts:
        system = part.system
        intra = tried.get(system.intra) or fitted.link(system.intra)
        several = int(part.shape.nodes.max()) > 1
        inter = tried.get(system.inter) or fitted.link(system.inter) if several else None
        ranks = int(part.shape.ranks_per_node.max())
        fabric = fabric_of(system, intra, inter, ranks)
        price = seconds(
            fabric, part.op, part.nbytes, part.shape, algorithm=part.forced or None, impl=part.impl
        )  # fmt: skip
        mid[part.rows], spread[part.rows] = price.mid, price.spread
    return Estimate.of(mid, spread)


def predict(rows: Rows, fitted: Fitted, trial: Mapping[str, Link] | None = None) -> FloatArray:
    """Seconds of `estimate`."""
    return estimate(batches(rows), len(rows), fitted, trial).mid


def row_weight(rows: Rows) -> FloatArray:
    """A few large rows of stated algorithms fix NVLS against ring: they count for more."""
    stated = np.asarray(["algo" in note for note in rows.words["notes"]], dtype=np.bool_)
    return np.where(stated, 4.0, 1.0)


def with_numbers(link: Link, numbers: Mapping[str, float]) -> Link:
    """`link` with plain numbers among its coefficients (while fitting)."""
    extra = {key: Coefficient(value, "fit", 1) for key, value in numbers.items()}
    return replace(link, coefficients={**link.coefficients, **extra})


def _solve(
    rows: Rows,
    fitted: Fitted,
    names: Sequence[str],
    free: Sequence[Free],
    fixed: Mapping[str, float],
    each: bool = False,
) -> tuple[FloatArray, FloatArray]:
    """Values of `free` on the links `names`, and log errors of the rows; `each`: systems count alike."""
    bases = {name: fitted.links.get(name) or fitted.bare(name) for name in names}
    parts = batches(rows)

    def trial(values: FloatArray) -> FloatArray:
        numbers = {**fixed, **{f.name: float(v) for f, v in zip(free, values, strict=True)}}
        tried = {name: with_numbers(base, numbers) for name, base in bases.items()}
        return estimate(parts, len(rows), fitted, tried).mid

    weight = row_weight(rows)
    if each:
        count = Counter(rows.words["system"].tolist())
        weight = weight * np.asarray([len(rows) / len(count) / count[s] for s in rows.words["system"].tolist()])
    actual = rows.numbers["time_us"] * 1e-6
    return solve(trial, free, actual, weight, scale=0.06, prior=PRIOR, tolerance=TOLERANCE)


def _named(op: str, free: Sequence[Free]) -> tuple[Free, ...]:
    return tuple(replace(f, name=f"{op}.{f.name}") for f in free)


def _block(name: str, what: str, free: Sequence[Free], values: FloatArray, errors: FloatArray) -> Block:
    found = {f.name: float(v) for f, v in zip(free, values, strict=True)}
    return Block("", f"least squares on {FILE}, {name}, {what}", int(errors.size), rms(errors), found)


def _two_thirds(rows: Rows, errors: FloatArray) -> float:
    """Half-width that holds 68% of the rows, every system alike: one more system is as far off as they are apart."""
    count = Counter(rows.words["system"].tolist())
    weight = np.asarray([1.0 / count[s] for s in rows.words["system"].tolist()]) / len(count)
    off = np.abs(np.exp(-errors) - 1.0)
    order = np.argsort(off)
    return float(np.interp(0.6827, np.cumsum(weight[order]), off[order]))


def _spreads(name: str, rows: Rows, errors: FloatArray, where: str, kernel: str = "") -> Block:
    large = rows.numbers["bytes"] >= LARGE_BYTES
    values = {}
    for word, its in (("small", ~large), ("large", large)):
        told = int(its.sum()) >= FEW_ROWS
        found = max(rms(errors[its]), _two_thirds(rows.take(its), errors[its])) if told else 0.0
        if kernel:  # heavy tails: what holds two thirds is narrower than the root of the squares
            found = _two_thirds(rows.take(its), errors[its]) if told else 0.0
        values[f"spread.{kernel}{word}"] = found if told else max(rms(errors), FEW_SPREAD)
    return Block("", f"residuals on {FILE}, {name}, {where}", len(rows), 0.0, values)


def _rings(fitted: Fitted, name: str, rows: Rows) -> None:
    """Ring, tree and NVLS of one kind of link: latencies of all ops together."""
    link = catalog.link(name)
    tuner = TUNER.get(name)
    if tuner:
        fitted.add(name, Block("", TUNER_SOURCE, 0, 0.0, dict(tuner)))
    free: list[Free] = list(SHARED)
    shares_ll128 = (tuner or {}).get("tuner.ll128", 1.0) > 0.0
    if shares_ll128:
        free += LL128
    for op in RINGS:
        if op in {OPS[o] for o in rows.words["op"]}:
            told = BY_OP if _rings_of_several(link, op, rows) else NOT_BY_PAIRS
            free += _named(op, told)
            free += _named(op, (Free("ll128.efficiency", 0.55, 0.05, 1.0),)) if shares_ll128 else ()
    if link.nvls and float(shape_ranks(rows).max(initial=0.0)) >= 5.0:
        free += NVLS
    if link.topology == "tree":
        free.append(SLOPE)
    values, errors = _solve(rows, fitted, [name], free, {})
    fitted.add(name, _block(name, "inside a node", free, values, errors))


def _rings_of_several(link: Link, op: str, rows: Rows) -> bool:
    """Whether rows tell a ring's efficiency apart from what a pair loses: rings of three and more."""
    if not (link.nvls and MEMBERS[op].reduces_in_switch):
        return True
    its = np.asarray([OPS[o] == op for o in rows.words["op"]])
    ranks = shape_ranks(rows)
    return bool((its & (ranks > 2) & ((ranks < NVLS_RANKS) | (rows.words["forced"] == "ring"))).any())


def shape_ranks(rows: Rows) -> FloatArray:
    """Ranks in a node of each row."""
    return np.asarray(rows.numbers["n_gpus"] / rows.numbers["n_nodes"])


def _largest(rows: Rows, own: FloatArray, nccl: FloatArray) -> tuple[float, float]:
    """Largest message of an engine's kernels and its slope over group sizes: the pair that leaves least error."""
    nbytes, ranks = rows.numbers["bytes"], shape_ranks(rows)
    actual = rows.numbers["time_us"] * 1e-6

    def error(limit: float, slope: float) -> float:
        mine = nbytes <= limit * (2.0 / ranks) ** slope
        return float(np.minimum(np.abs(np.log(np.where(mine, own, nccl) / actual)), 0.7).mean())

    return min(((limit, slope) for limit in LIMITS for slope in LIMIT_SLOPES), key=lambda pair: error(*pair))


def _custom(fitted: Fitted, name: str, framework: str, rows: Rows) -> None:
    """Kernels of one engine: shots by least squares and the largest message by trying, in turn, from several starts."""
    prefix = f"custom.{framework}."
    slopes = (replace(SLOPE, name=f"{prefix}group_slope"),) if catalog.link(name).topology == "tree" else ()
    link = fitted.links[name]
    none = with_numbers(link, {f"{prefix}limit": 1.0, f"{prefix}limit_slope": 0.0})
    nccl = predict(rows, fitted, {name: none})
    found = []
    for starts, limit in CUSTOM_STARTS:
        own = tuple(replace(f, name=prefix + f.name, start=starts.get(f.name, f.start)) for f in CUSTOM)
        free, slope = (*own, *slopes), 0.0
        for _ in range(2):
            fixed = {f"{prefix}limit": limit, f"{prefix}limit_slope": slope}
            values, _ = _solve(rows, fitted, [name], free, fixed)
            numbers = {f.name: float(v) for f, v in zip(free, values, strict=True)}
            endless = with_numbers(link, {**numbers, f"{prefix}limit": 2.0**60, f"{prefix}limit_slope": 0.0})
            limit, slope = _largest(rows, predict(rows, fitted, {name: endless}), nccl)
        fixed = {f"{prefix}limit": limit, f"{prefix}limit_slope": slope}
        values, errors = _solve(rows, fitted, [name], free, fixed)
        found.append((float(np.minimum(np.abs(errors), 0.7).mean()), free, values, errors, fixed))
    _, free, values, errors, fixed = min(found, key=lambda each: each[0])
    block = _block(name, f"custom all-reduce of {framework}", free, values, errors)
    fitted.add(name, replace(block, values={**block.values, **fixed}))
    source = f"residuals on {FILE}, {name}, custom all-reduce of {framework}"
    fitted.add(name, Block("", source, len(rows), 0.0, {f"{prefix}spread": rms(errors)}))


def fit_inside(fitted: Fitted, name: str, rows: Rows) -> None:
    """All laws of one kind of link inside nodes."""
    law = np.asarray([OPS[op] for op in rows.words["op"]])
    custom, kernel = is_custom(rows), is_kernel_time(rows)
    ring = np.isin(law, RINGS) & ~custom & ~kernel
    if not ring.any():
        ring = np.isin(law, RINGS) & ~custom
    if ring.sum() >= 20:
        _rings(fitted, name, rows.take(ring))
    for op in ("all_to_all", "send_recv"):
        its = (law == op) & ~custom
        if its.sum() >= 20:
            free = _named(op, PAIRS if op == "all_to_all" else ONE_PAIR)
            free = (*free, replace(SLOPE, name=f"{op}.group_slope")) if catalog.link(name).topology == "tree" else free
            values, errors = _solve(rows.take(its), fitted, [name], free, {})
            fitted.add(name, _block(name, f"{op} inside a node", free, values, errors))
    if name in fitted.links:
        part = rows.take(~custom & (~kernel | (law == "send_recv")))
        part = part if len(part) else rows.take(~custom)
        errors = np.log(predict(part, fitted) / (part.numbers["time_us"] * 1e-6))
        fitted.add(name, _spreads(name, part, errors, "inside a node"))
        its = kernel & ~custom & np.isin(law, RINGS)
        if its.any():
            errors = np.log(predict(rows.take(its), fitted) / (rows.numbers["time_us"][its] * 1e-6))
            fitted.add(name, _spreads(name, rows.take(its), errors, "kernel times inside a node", "kernel."))
    for framework in FRAMEWORKS:
        its = custom & np.asarray([impl.split("-")[0] == framework for impl in rows.words["impl"]])
        if its.sum() >= 20:
            _custom(fitted, name, framework, rows.take(its))


def fit_any_network(fitted: Fitted, rows: Rows) -> None:
    """Coefficients of all networks together, every system alike: what is known of one never measured."""
    inter = [s.inter if (s := system_of(name)) else "" for name in rows.words["system"]]
    rows = rows.take(~np.isin(inter, INFERRED))
    law = np.asarray([OPS[op] for op in rows.words["op"]])
    names = sorted(set(inter) - {"", *INFERRED})
    for its, free, what in (
        (np.isin(law, RINGS), (*NETWORK, *NETWORK_RING), "rings and trees over nodes"),
        (law == "all_to_all", _pairs_free("all_to_all"), "all_to_all over nodes"),
        (law == "send_recv", _pairs_free("send_recv"), "send_recv over nodes"),
    ):
        if its.sum() < 8:
            continue
        part = rows.take(its)
        values, errors = _solve(part, fitted, names, free, {}, each=True)
        block = _block("networks of any kind", what, free, values, errors)
        fitted.blocks.setdefault(ANY_NETWORK, []).append(block)
        for key, value in block.values.items():
            fitted.pooled[key] = Coefficient(value, block.source, block.rows, block.residual)


def _pairs_free(op: str) -> tuple[Free, ...]:
    return (*_named(op, NETWORK_PAIRS), Free(f"{op}.pair.default_efficiency", 0.4, 0.02, 1.0))


def fit_between(fitted: Fitted, name: str, rows: Rows) -> None:
    """All laws of one network."""
    law = np.asarray([OPS[op] for op in rows.words["op"]])
    ring = np.isin(law, RINGS)
    free: tuple[Free, ...] = (*NETWORK, *NETWORK_RING)
    if ring.any():
        part = rows.take(ring)
        least = min(float(p.shape.ranks_per_node.min()) for p in batches(part))
        if least < FULL_NODE:
            source = f"fewest ranks a node of the rings of {FILE}, {name}"
            fitted.add(name, Block("", source, len(part), 0.0, {"least_ranks": max(least, 1.0)}))
        if part.numbers["bytes"].min() > 2.0**24:
            free = tuple(f for f in free if f.name in ("simple.efficiency", "ring.efficiency"))
        values, errors = _solve(part, fitted, [name], free, {})
        fitted.add(name, _block(name, "rings and trees over nodes", free, values, errors))
    for op in ("all_to_all", "send_recv"):
        its = law == op
        if its.sum() >= 8:
            shipped = np.asarray([impl.endswith("-default") for impl in rows.words["impl"]], dtype=np.bool_)
            named = _pairs_free(op) if (its & shipped).any() else _named(op, NETWORK_PAIRS)
            values, errors = _solve(rows.take(its), fitted, [name], named, {})
            fitted.add(name, _block(name, f"{op} over nodes", named, values, errors))
    errors = np.log(predict(rows, fitted) / (rows.numbers["time_us"] * 1e-6))
    fitted.add(name, _spreads(name, rows, errors, "over nodes"))


def fit_rows(rows: Rows) -> Fitted:
    """Links inside nodes, then networks, from rows of any systems of the table."""
    rows = usable(rows)
    systems = [system_of(s) for s in rows.words["system"]]
    intra = np.asarray([s.intra if s else "" for s in systems])
    inter = np.asarray([s.inter if s else "" for s in systems])
    stated = zip(systems, rows.numbers["n_nodes"], rows.numbers["n_gpus"], strict=True)
    one = np.asarray([s is not None and s.nodes(nodes, gpus) == 1 for s, nodes, gpus in stated], dtype=np.bool_)
    current = np.asarray([not impl.endswith("-older") for impl in rows.words["impl"]], dtype=np.bool_)
    fitted = Fitted()
    for name in sorted(set(intra[one])):
        fit_inside(fitted, str(name), rows.take(one & (intra == name)))
    if (~one & current).any():
        fit_any_network(fitted, rows.take(~one & current))
    for name in sorted(set(inter[~one]) - {""}):
        fit_between(fitted, str(name), rows.take(~one & (inter == name) & current))
    return fitted


def fit(data: Path) -> dict[str, Section]:
    """Sections of the collective laws from ``collectives_measured.csv`` in the folder `data`.

    Raises
    ------
    InputError
        For a missing or broken file.
    """
    fitted = fit_rows(measured.collectives(data / FILE))
    return {
        name: Section(() if name == ANY_NETWORK else (name,), tuple(blocks)) for name, blocks in fitted.blocks.items()
    }


def held_out(data: Path) -> list[HeldOut]:
    """Errors on systems, links and group sizes that took no part in the fit (`hwmodels.fit.collectives_held_out`).

    Takes about two minutes.

    Raises
    ------
    InputError
        For a missing or broken file.
    """
    from hwmodels.fit import collectives_held_out

    return collectives_held_out.held_out(measured.collectives(data / FILE), dict(laws.sections("collectives")))
