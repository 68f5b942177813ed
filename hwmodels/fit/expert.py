"""The law of expert dispatch and combine from ``moe_alltoall_measured.csv``.

Each library and phase is fitted by itself over all of its systems at once: work of an SM (`token`, `read`,
`copy`, `byte`), `memory` and `knee` are shared by every link, latencies belong to the link (their kernels run at
the device's clock, their launches on its host), and one factor `pace` says how much faster or slower a link's
devices do the shared work (of low-latency kernels: `wire`, the cost of its own wire). What the network adds
belongs to the kind of port.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hwmodels import catalog, measured
from hwmodels.collectives.expert_implementations import IMPLEMENTATIONS, ExpertImplementation
from hwmodels.collectives.expert_law import CEILING, law_seconds
from hwmodels.estimate import FloatArray
from hwmodels.fit.expert_rows import Batch, batches
from hwmodels.fit.solve import Free, rms, solve
from hwmodels.laws import Block, Section
from hwmodels.network import Link
from hwmodels.validation.scored import HeldOut

START, FILL = Free("start", 3e-5, 1e-6, 2e-3), Free("fill", 1e-9, 0.0, 2e-8)
KNEE = Free("knee", 0.3, 0.0, 5.0)
TOKEN, COPY = Free("token", 3e-7, 0.0, 1e-4), Free("copy", 3e-7, 0.0, 1e-4)
READ, BYTE = Free("read", 2e-11, 0.0, 1e-8), Free("byte", 2e-11, 0.0, 1e-8)
WIRE, MEMORY = Free("wire", 1.5, 1.0 / CEILING, 20.0), Free("memory", 1.0, 0.0, 60.0)
UNEVEN = Free("uneven", 2.5, 0.0, 3.5)
PACE = Free("pace", 1.0, 0.05, 5.0)
EXPERTS, SHARED = Free("experts", 1e-6, 0.0, 2e-5), Free("shared", 1e-6, 0.0, 2e-5)
RANKS = Free("ranks", 1e-6, 0.0, 2e-5)
NETWORK = (
    Free("net", 2e-5, 0.0, 1e-3), Free("peer", 1e-5, 0.0, 1e-3), Free("port", 1.15, 1.0, 6.0),
    Free("serial", 0.1, 0.0, 1.0),
)  # fmt: skip
RELAYED = (Free("relay", 1.3, 1.0, 10.0), Free("crowd", 0.3, 0.0, 4.0))


@dataclass(frozen=True, slots=True)
class Shape:
    """Terms that a fit may move: shared by all links, of each scale-up link, of each kind of port."""

    shared: tuple[Free, ...]
    link: tuple[Free, ...]
    port: tuple[Free, ...] = ()


SHAPES = {
    "normal": Shape((TOKEN, COPY, BYTE, UNEVEN, KNEE), (START, FILL, PACE), (*NETWORK, *RELAYED)),
    "v2": Shape((TOKEN, COPY, BYTE, UNEVEN, KNEE), (START, FILL, PACE)),
    "low-latency": Shape((TOKEN, READ, COPY, KNEE), (START, FILL, EXPERTS, SHARED, WIRE), NETWORK),
    "nvlink-one-sided": Shape((TOKEN, COPY, MEMORY, KNEE), (START, RANKS, FILL, WIRE)),
    "nvlink-two-sided": Shape((TOKEN, COPY, MEMORY, KNEE), (START, RANKS, FILL, WIRE)),
}
"""By algorithm. Kernels bound by few SMs have no `wire`: at one group size it cannot be told from `byte`."""
PORT, SERIAL = Free("port", 1.1, 1.0, 6.0), Free("serial", 0.3, 0.0, 1.0)
BASED = {
    "deepep-normal": Shape((), (), (PORT, SERIAL)),
    "deepep-v2-normal": Shape((), (PACE,), (PORT,)),
    "uccl-normal": Shape((), (PACE,), (PORT, SERIAL)),
    "deepep-low-latency": Shape((), (START,), (PORT,)),
    "deepep-low-latency-rdma": Shape((), (START,), (PORT,)),
    "pplx-low-latency": Shape((), (START,), (PORT,)),
    "torch-dense": Shape((), (WIRE,), (PORT,)),
}
"""Libraries with few rows: one fit over their phases, all else from their base. DeepEP's own benchmark of its normal
kernels takes even their pace from sglang's runs of them."""
NOT_LENT = {"crowd": 0.0}
"""What a library does not take from its base: only sglang's runs fall off beyond four nodes (to half of the line
at eight); the same kernels reach 0.88 of it there in the benchmarks of DeepEP and UCCL."""
FEW = 6
"""Fewer rows than this over several nodes do not fix what the network adds."""
NO_EFFECT = 0.003
"""A term that moves no prediction by more than this share is 0."""

Numbers = dict[str, float]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one fitted number goes: a term of a link (or of all, if `link` is empty)."""

    free: Free
    link: str


@dataclass(frozen=True, slots=True)
class Found:
    """Terms of one library and phase: by link, and by port, with the log errors of each one's rows."""

    inside: dict[str, Numbers]
    between: dict[str, Numbers]
    errors: dict[str, FloatArray]


def _slots(shape: Shape, parts: Sequence[Batch]) -> list[Slot]:
    """The numbers to fit: shared ones once, those of links and ports for each that was measured."""
    slots = [Slot(free, "") for free in shape.shared]
    links = sorted({p.system.intra for p in parts})
    for link in links:
        its = [p for p in parts if p.system.intra == link]
        sizes = {float(v) for p in its for v in p.x.size}
        for free in shape.link:
            if free.name == "pace" and shape.shared and link == links[0]:
                continue  # one link sets the unit
            if free.name == "ranks" and len(sizes) < 3:
                continue
            slots.append(Slot(free, link))
    for port in sorted({p.system.inter for p in parts if _rows_between(p)}):
        its = [p for p in parts if p.system.inter == port]
        few = sum(_rows_between(p) for p in its) < FEW
        slots += [Slot(free, port) for free in shape.port if free.name == "port" or not few]
    return slots


def _rows_between(part: Batch) -> int:
    return int(np.sum(part.x.nodes > 1.0))


def _spread_out(slots: Sequence[Slot], values: FloatArray, base: Numbers, part: Batch) -> Numbers:
    """Terms of the law for one batch."""
    terms = dict(base)
    for slot, value in zip(slots, values, strict=True):
        if slot.link in ("", part.system.intra, part.system.inter):
            terms[slot.free.name] = float(value)
    return terms


def _fit(entry: ExpertImplementation, parts: Sequence[Batch], bases: Sequence[Numbers]) -> Found:
    """One library over all of its systems, one phase or (with a base) all; `bases` are what each batch is given."""
    shape = BASED.get(entry.key) or SHAPES[entry.algorithm.name]
    slots = _slots(shape, parts)
    actual = np.concatenate([p.seconds for p in parts])

    def predict(values: FloatArray) -> FloatArray:
        return np.concatenate(
            [law_seconds(p.x, _spread_out(slots, values, base, p)) for p, base in zip(parts, bases, strict=True)]
        )

    free = [_started(slot, parts) for slot in slots]
    values, _ = solve(predict, free, actual, scale=0.1)
    values = _without_effect(predict, slots, values)
    errors = np.log(predict(values) / actual)
    inside: dict[str, Numbers] = {p.system.intra: {} for p in parts}
    between: dict[str, Numbers] = {}
    for slot, value in zip(slots, values, strict=True):
        if slot.link in {p.system.inter for p in parts}:
            between.setdefault(slot.link, {})[slot.free.name] = float(value)
        else:
            for link in [slot.link] if slot.link else list(inside):
                inside[link][slot.free.name] = float(value)
    places = {link: np.concatenate([np.full(p.seconds.size, p.system.intra == link) for p in parts]) for link in inside}
    far = np.concatenate([np.where(p.x.nodes > 1.0, p.system.inter, "") for p in parts])
    places = {link: keep & (far == "") if (keep & (far == "")).any() else keep for link, keep in places.items()}
    places |= {port: far == port for port in between}
    return Found(inside, between, {name: errors[keep] for name, keep in places.items()})


def _started(slot: Slot, parts: Sequence[Batch]) -> Free:
    """`start` begins at the shortest time of its link: the other starts need no measuring."""
    free = slot.free
    if free.name != "start":
        return free
    shortest = min(float(p.seconds.min()) for p in parts if p.system.intra == slot.link)
    return Free(free.name, min(max(0.9 * shortest, free.low), free.high), free.low, free.high)


def _without_effect(
    predict: Callable[[FloatArray], FloatArray], slots: Sequence[Slot], values: FloatArray
) -> FloatArray:
    """`values` with those that hardly move any prediction set to their least."""
    kept = values.copy()
    for i, slot in enumerate(slots):
        trial = kept.copy()
        trial[i] = slot.free.low
        if slot.free.low == 0.0 and np.max(np.abs(predict(trial) / predict(values) - 1.0)) < NO_EFFECT:
            kept = trial
    return kept


def nearest(known: Iterable[str], link: Link) -> str:
    """Of the links that were measured the one itself, else that nearest in bandwidth."""
    far = {name: abs(float(np.log(catalog.link(name).bandwidth / link.bandwidth))) for name in known}
    return link.name if link.name in far else min(far, key=lambda name: far[name])


def _base_numbers(entry: ExpertImplementation, part: Batch, done: dict[str, Found]) -> Numbers:
    """What the base of `entry` has for a batch."""
    base = done.get(f"{entry.base}.{part.phase}")
    if base is None:
        return {}
    numbers = dict(base.inside[nearest(base.inside, part.fabric.intra)])
    if base.between and part.fabric.inter is not None:
        numbers |= base.between[nearest(base.between, part.fabric.inter)]
    return numbers | NOT_LENT


def fit_batches(parts: Sequence[Batch]) -> dict[str, Found]:
    """``<library>.<phase>`` -> its terms; libraries with a base after the others."""
    done: dict[str, Found] = {}
    for entry in sorted(IMPLEMENTATIONS.values(), key=lambda e: bool(e.base)):
        its = [p for p in parts if p.entry.key == entry.key]
        if entry.base and its:
            found = _fit(entry, its, [_base_numbers(entry, p, done) for p in its])
            between = {port: NOT_LENT | numbers for port, numbers in found.between.items()}
            done |= {f"{entry.key}.{p.phase}": Found(found.inside, between, found.errors) for p in its}
            continue
        for phase in entry.phases:
            of_phase = [p for p in its if p.phase == phase]
            if of_phase:
                done[f"{entry.key}.{phase}"] = _fit(entry, of_phase, [{} for _ in of_phase])
    return done


def held_out(data: Path) -> list[HeldOut]:
    """Errors on shapes and devices that the fit did not see.

    Raises
    ------
    InputError
        For a missing or broken file.
    """
    from hwmodels.fit import expert_held_out

    return expert_held_out.held_out(list(batches(measured.expert(data / "moe_alltoall_measured.csv"))))


def fit(data: Path) -> dict[str, Section]:
    """Sections of the law from ``moe_alltoall_measured.csv`` in the folder `data`, one for each link and port.

    Raises
    ------
    InputError
        For a missing or broken file.
    """
    parts = list(batches(measured.expert(data / "moe_alltoall_measured.csv")))
    blocks: dict[str, list[Block]] = {}
    far: dict[tuple[str, str], float] = {}
    for p in parts:
        where = (f"{p.entry.key}.{p.phase}", p.system.inter)
        far[where] = max(far.get(where, 1.0), float(p.x.nodes.max()))
    for name, found in fit_batches(parts).items():
        for link, numbers in (*found.inside.items(), *found.between.items()):
            errors = found.errors[link]
            source = f"least squares on moe_alltoall_measured.csv, {name} over {', '.join(sorted(found.inside))}"
            most = far.get((name, link), 1.0)
            numbers = numbers | ({"nodes": most} if most > 1.0 else {})
            if numbers:
                blocks.setdefault(link, []).append(Block(f"{name}.", source, int(errors.size), rms(errors), numbers))
    return {link: Section((link,), tuple(its)) for link, its in blocks.items()}
