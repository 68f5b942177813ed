"""The collective laws of each kind of link from ``collectives_measured.csv``.

A coefficient belongs to a kind of link or a generation of network cards, never to a named system. Links inside
nodes come first (latencies and hops shared by the ring ops, efficiencies by op; then pairs; then the custom
kernels), then networks with those inside fixed. Tuner shares are NCCL's own constants, not fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from hwmodels import catalog, measured, yamlfile
from hwmodels.collectives import LARGE_BYTES, seconds
from hwmodels.collectives.custom import FRAMEWORKS
from hwmodels.device import Coefficient
from hwmodels.estimate import Estimate, FloatArray
from hwmodels.fit.solve import Free, rms, solve
from hwmodels.fit.systems import OPS, fabric_of, is_custom, is_kernel_time, shape_of, system_of, usable
from hwmodels.laws import Block, Section
from hwmodels.measured import Rows
from hwmodels.network import Link

FILE = "collectives_measured.csv"
TUNER = {
    "nvlink3": {"tuner.bandwidth": 0.8, "tuner.ll": 0.2923, "tuner.ll128": 0.736},
    "nvlink4": {"tuner.bandwidth": 0.824, "tuner.ll": 0.3133, "tuner.ll128": 0.758, "tuner.nvls": 0.687},
    "nvlink5": {"tuner.bandwidth": 0.802, "tuner.ll": 0.3133, "tuner.ll128": 0.0, "tuner.nvls": 0.668},
    "pcie4": {"tuner.bandwidth": 0.774, "tuner.ll": 0.387, "tuner.ll128": 0.0},
}
"""NCCL's constants over the datasheet bandwidth: 20, 20.6 and 40.1 GB/s a link of NVLink 3, 4 and 5 (``topo.h``) times
12, 18 and 18 links; llMaxBws 87.7, 141 and 282 GB/s; LL128 0.92 of the ring; NVLS 5/6 of it; PCIe 24 GB/s, LL half."""
TUNER["nvlink5-nvl72"] = TUNER["nvlink5"]
TUNER_SOURCE = "NCCL src/graph/tuning.cc and topo.h over the datasheet; LL128 off where no measured curve shows it"

RINGS = ("all_reduce", "all_gather", "reduce_scatter")
SHARED = (
    Free("ll.latency", 5e-6, 1e-7, 6e-5), Free("ll.hop", 5e-7, 1e-9, 2e-5), Free("ll.jump", 1e-6, 1e-9, 2e-5),
    Free("simple.latency", 1.5e-5, 1e-7, 2e-4), Free("simple.hop", 3e-6, 1e-9, 5e-5),
    Free("simple.tail", 2e-6, 1e-9, 1e-3),
)  # fmt: skip
LL128 = (Free("ll128.latency", 1e-5, 1e-7, 1e-4), Free("ll128.hop", 1e-6, 1e-9, 2e-5))
BY_OP = (
    Free("ll.efficiency", 0.35, 0.02, 1.0), Free("ll.jump_hop", 1e-7, 1e-9, 2e-6),
    Free("simple.efficiency", 0.76, 0.02, 1.0), Free("group_half", 0.4, 1e-3, 20.0),
)  # fmt: skip
NVLS = (
    Free("nvls.latency", 1.4e-5, 1e-6, 3e-4),
    Free("nvls.efficiency", 0.64, 0.3, 1.0),
    Free("nvls.tail", 8e-5, 1e-9, 1e-3),
)
SLOPE = Free("group_slope", 1.0, 1e-2, 3.0)
PAIRS = (
    Free("pair.latency", 6e-6, 5e-7, 6e-5), Free("pair.hop", 3e-7, 1e-9, 1e-5), Free("pair.rate", 0.014, 1e-4, 1.0),
    Free("pair.bulk_latency", 1.2e-5, 5e-7, 1e-4), Free("pair.bulk_hop", 3e-7, 1e-9, 1e-5),
    Free("pair.sharpness", 1.5, 1.0, 8.0),
    Free("pair.tail", 1e-6, 1e-9, 1e-3), Free("pair.efficiency", 0.75, 0.01, 1.0), Free("group_half", 0.3, 1e-3, 20.0),
)  # fmt: skip
ONE_PAIR = tuple(f for f in PAIRS if f.name not in ("pair.hop", "pair.bulk_hop", "group_half"))
CUSTOM = (
    Free("one_shot.latency", 3.5e-6, 2e-7, 5e-5), Free("one_shot.hop", 1.5e-7, 1e-9, 1e-5),
    Free("one_shot.efficiency", 0.6, 1e-3, 1.0), Free("two_shot.latency", 6e-6, 2e-7, 1e-4),
    Free("two_shot.hop", 3e-7, 1e-9, 2e-5), Free("two_shot.efficiency", 0.65, 1e-3, 1.0),
)  # fmt: skip
LIMITS = tuple(2.0**k for k in range(18, 31))
LIMIT_SLOPES = (0.0, 1.0, 2.0)
NETWORK = (
    Free("ll.hop", 4e-6, 1e-8, 2e-4), Free("ll.efficiency", 0.2, 1e-3, 1.0), Free("ll128.hop", 1.2e-5, 1e-8, 3e-4),
    Free("ll128.efficiency", 0.5, 5e-3, 1.0), Free("simple.hop", 2.5e-5, 1e-8, 1e-3),
    Free("simple.efficiency", 0.9, 0.02, 1.0), Free("overlap_loss", 0.1, 1e-3, 1.0),
)  # fmt: skip
NETWORK_RING = (Free("ring.efficiency", 0.8, 0.02, 1.0),)
NETWORK_PAIRS = (
    Free("pair.hop", 6e-6, 1e-8, 2e-4), Free("pair.rate", 0.02, 1e-4, 1.0), Free("pair.bulk_hop", 1e-5, 1e-8, 1e-3),
    Free("pair.efficiency", 0.6, 0.02, 1.0),
)  # fmt: skip
PRIOR = 0.02
"""Weight of the start of a coefficient that the rows do not tell, in rows."""


def taken_from(name: str) -> str:
    """The link whose laws another takes over; empty where it has none but its own."""
    data, _ = yamlfile.parse(catalog.text("networks", name), f"catalog/networks/{name}.yaml")
    return str(data.get("laws_of") or "") if isinstance(data, dict) else ""


@dataclass(slots=True)
class Fitted:
    """Links as fitted so far, and the blocks that go into the catalog."""

    links: dict[str, Link] = field(default_factory=dict)
    blocks: dict[str, list[Block]] = field(default_factory=dict)

    def link(self, name: str) -> Link:
        """The link with what was fitted; one that takes over the laws of another takes the fresh ones."""
        if name in self.links:
            return self.links[name]
        return self.bare(name) if self.links else catalog.link(name)

    def bare(self, name: str) -> Link:
        """The link with no more than what it takes over: a fit must not depend on the one before."""
        like = taken_from(name)
        known = self.links[like].coefficients if like in self.links else {}
        return replace(catalog.link(name), coefficients=known)

    def add(self, name: str, block: Block) -> None:
        """Record a block of a section and put its values on the link."""
        self.blocks.setdefault(name, []).append(block)
        extra = {
            f"{block.prefix}{key}": Coefficient(value, block.source, block.rows, block.residual)
            for key, value in block.values.items()
        }
        link = self.links.get(name) or self.bare(name)
        self.links[name] = replace(link, coefficients={**link.coefficients, **extra})


def estimate(rows: Rows, fitted: Fitted, link: Link | None = None) -> Estimate:
    """Price of every row on the fabric of its system.

    Parameters
    ----------
    rows : Rows
        With the words ``impl`` and ``forced`` (`hwmodels.fit.systems.named`).
    fitted : Fitted
        Links to use; an empty one prices by the catalog.
    link : Link, optional
        Takes the place of the one of its name.
    """
    mid, spread = np.zeros(len(rows)), np.zeros(len(rows))
    ranks = [str(int(np.ceil(r))) for r in shape_ranks(rows)]
    columns = zip(*(rows.words[c] for c in ("system", "op", "impl", "forced")), ranks, strict=True)
    keys = np.asarray(["|".join(c) for c in columns], dtype=np.str_)
    for key in np.unique(keys):
        its = keys == key
        part = rows.take(its)
        name, op, impl, forced = (str(part.words[c][0]) for c in ("system", "op", "impl", "forced"))
        system = system_of(name)
        if system is None:
            continue
        intra, inter = (
            link if link is not None and link.name == which else fitted.link(which) if which else None
            for which in (system.intra, system.inter)
        )
        shape = shape_of(system, part)
        fabric = fabric_of(system, intra or fitted.link(system.intra), inter, int(shape.ranks_per_node.max()))
        price = seconds(fabric, OPS[op], part.numbers["bytes"], shape, algorithm=forced or None, impl=impl)
        mid[its], spread[its] = price.mid, price.spread
    return Estimate.of(mid, spread)


def predict(rows: Rows, fitted: Fitted, link: Link | None = None) -> FloatArray:
    """Seconds of `estimate`."""
    return estimate(rows, fitted, link).mid


def row_weight(rows: Rows) -> FloatArray:
    """A few large rows of stated algorithms fix NVLS against ring: they count for more."""
    stated = np.asarray(["algo" in note for note in rows.words["notes"]], dtype=np.bool_)
    return np.where(stated, 4.0, 1.0)


def _solve(
    rows: Rows, fitted: Fitted, name: str, free: Sequence[Free], fixed: dict[str, float]
) -> tuple[FloatArray, FloatArray]:
    """Values of `free` on link `name`, and log errors of the rows."""
    base = fitted.links.get(name) or fitted.bare(name)

    def with_values(values: FloatArray) -> Link:
        numbers = fixed | {f.name: float(v) for f, v in zip(free, values, strict=True)}
        extra = {key: Coefficient(v, "fit", 1) for key, v in numbers.items()}
        return replace(base, coefficients={**base.coefficients, **extra})

    actual = rows.numbers["time_us"] * 1e-6
    return solve(
        lambda x: predict(rows, fitted, with_values(x)), free, actual, row_weight(rows), scale=0.06, prior=PRIOR
    )


def _named(op: str, free: Sequence[Free]) -> tuple[Free, ...]:
    return tuple(replace(f, name=f"{op}.{f.name}") for f in free)


def _block(name: str, what: str, free: Sequence[Free], values: FloatArray, errors: FloatArray) -> Block:
    found = {f.name: float(v) for f, v in zip(free, values, strict=True)}
    return Block("", f"least squares on {FILE}, {name}, {what}", int(errors.size), rms(errors), found)


def _spreads(name: str, rows: Rows, errors: FloatArray, where: str) -> Block:
    large = rows.numbers["bytes"] >= LARGE_BYTES
    both = rms(errors)
    values = {
        "spread.small": rms(errors[~large]) if (~large).any() else both,
        "spread.large": rms(errors[large]) if large.any() else both,
    }
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
            free += _named(op, BY_OP)
            free += _named(op, (Free("ll128.efficiency", 0.55, 0.05, 1.0),)) if shares_ll128 else ()
    if link.nvls and float(shape_ranks(rows).max(initial=0.0)) >= 5.0:
        free += NVLS
    if link.topology == "tree":
        free.append(SLOPE)
    values, errors = _solve(rows, fitted, name, free, {})
    fitted.add(name, _block(name, "inside a node", free, values, errors))


def shape_ranks(rows: Rows) -> FloatArray:
    """Ranks in a node of each row."""
    return np.asarray(rows.numbers["n_gpus"] / rows.numbers["n_nodes"])


def _custom(fitted: Fitted, name: str, framework: str, rows: Rows) -> None:
    """Kernels of one engine: shots by least squares, the largest message by trying powers of two."""
    prefix = f"custom.{framework}."
    free = tuple(replace(f, name=prefix + f.name) for f in CUSTOM)
    if catalog.link(name).topology == "tree":
        free = (*free, replace(SLOPE, name=f"{prefix}group_slope"))
    best: tuple[float, FloatArray, FloatArray, dict[str, float]] | None = None
    fixed = {f"{prefix}limit": 2.0**40, f"{prefix}limit_slope": 0.0}
    for _ in range(2):
        values, _ = _solve(rows, fitted, name, free, fixed)
        numbers = {f.name: float(v) for f, v in zip(free, values, strict=True)}
        for limit in LIMITS:
            for slope in LIMIT_SLOPES:
                tried = {f"{prefix}limit": limit, f"{prefix}limit_slope": slope}
                base = fitted.links[name]
                extra = {k: Coefficient(v, "fit", 1) for k, v in {**numbers, **tried}.items()}
                trial = replace(base, coefficients={**base.coefficients, **extra})
                errors = np.log(predict(rows, fitted, trial) / (rows.numbers["time_us"] * 1e-6))
                loss = float(np.abs(errors).mean())
                if best is None or loss < best[0] - 1e-9:
                    best, fixed = (loss, values, errors, tried), tried
    values, errors = _solve(rows, fitted, name, free, fixed)
    block = _block(name, f"custom all-reduce of {framework}", free, values, errors)
    spread = {f"{prefix}spread": rms(errors)}
    fitted.add(name, replace(block, values={**block.values, **fixed}))
    source = f"residuals on {FILE}, {name}, custom all-reduce of {framework}"
    fitted.add(name, Block("", source, len(rows), 0.0, spread))


def _inside(fitted: Fitted, name: str, rows: Rows) -> None:
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
            values, errors = _solve(rows.take(its), fitted, name, free, {})
            fitted.add(name, _block(name, f"{op} inside a node", free, values, errors))
    if name in fitted.links:
        part = rows.take(~custom & (~kernel | (law == "send_recv")))
        part = part if len(part) else rows.take(~custom)
        errors = np.log(predict(part, fitted) / (part.numbers["time_us"] * 1e-6))
        fitted.add(name, _spreads(name, part, errors, "inside a node"))
    for framework in FRAMEWORKS:
        its = custom & np.asarray([impl.split("-")[0] == framework for impl in rows.words["impl"]])
        if its.sum() >= 20:
            _custom(fitted, name, framework, rows.take(its))


def _between(fitted: Fitted, name: str, rows: Rows) -> None:
    """All laws of one network."""
    law = np.asarray([OPS[op] for op in rows.words["op"]])
    ring = np.isin(law, RINGS)
    free: tuple[Free, ...] = NETWORK
    if ring.any():
        part = rows.take(ring)
        if part.numbers["bytes"].min() > 2.0**24:
            free = tuple(f for f in free if f.name == "simple.efficiency")
        if (law == "all_gather").any() or (law == "reduce_scatter").any():
            free = (*free, *NETWORK_RING)
        values, errors = _solve(part, fitted, name, free, {})
        fitted.add(name, _block(name, "rings and trees over nodes", free, values, errors))
    for op in ("all_to_all", "send_recv"):
        its = law == op
        if its.sum() >= 8:
            named = _named(op, NETWORK_PAIRS)
            shipped = np.asarray([impl.endswith("-default") for impl in rows.words["impl"]], dtype=np.bool_)
            if (its & shipped).any():
                named = (*named, Free(f"{op}.pair.default_efficiency", 0.4, 0.02, 1.0))
            values, errors = _solve(rows.take(its), fitted, name, named, {})
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
        _inside(fitted, str(name), rows.take(one & (intra == name)))
    for name in sorted(set(inter[~one]) - {""}):
        _between(fitted, str(name), rows.take(~one & (inter == name) & current))
    return fitted


def fit(data: Path) -> dict[str, Section]:
    """Sections of the collective laws from ``collectives_measured.csv`` in the folder `data`.

    Raises
    ------
    InputError
        For a missing or broken file.
    """
    fitted = fit_rows(measured.collectives(data / FILE))
    return {name: Section((name,), tuple(blocks)) for name, blocks in fitted.blocks.items()}
