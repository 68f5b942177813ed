"""The space of layouts, enumerated as arrays, and the rules that drop candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.errors import Fault, InputError
from planner.frameworks import of as preset_of
from planner.layout import (
    OPEN_CP_KINDS,
    ORDERS,
    RECOMPUTE,
    RESHARDS,
    SCHEDULES,
    Layout,
    LayoutBatch,
    RuleContext,
    check,
    divisors,
    is_even,
    split_id,
)
from planner.layout.order_rules import first_alike
from planner.layout.recompute import MODULES, SEARCHED, WHOLE_LAYERS, modules_code, parse_modules
from planner.model.spec import ModelSpec, Moe
from planner.plan import Workload
from planner.schedule import get as get_schedule

MAX_VPP = 8
ANY_ORDER = "any"
"""Stands for every order of the axes that the framework has."""
OFFLOADS = ("offload_optimizer", "offload_parameters", "offload_activations")
MAX_MBS = 16


@dataclass(frozen=True, slots=True)
class Space:
    """Values that each field of a layout may take; an empty tuple means the default range.

    Attributes
    ----------
    tp, sp, cp, pp, vpp, dp, ep, etp, zero_stage, fsdp, mbs : tuple of int
    recompute, schedule, cp_kind, reshard : tuple of str
    order : tuple of str
        Of `planner.layout.ORDERS`; ``"any"``: all that the framework has.
    recompute_modules : tuple of str
        Sets of modules such as ``"layernorm+moe_act"``, for the selective policies.
    recompute_layers : tuple of int
        Layers of a chunk, of a block, or the frequency, on every virtual stage; 0 is the default.
    offload_optimizer, offload_parameters, offload_activations : tuple of int
        As in `planner.layout.Layout`; 0 unless given.
    cp_ulysses : tuple of int
    """

    tp: tuple[int, ...] = ()
    sp: tuple[int, ...] = ()
    cp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    vpp: tuple[int, ...] = ()
    dp: tuple[int, ...] = ()
    ep: tuple[int, ...] = ()
    etp: tuple[int, ...] = ()
    zero_stage: tuple[int, ...] = ()
    fsdp: tuple[int, ...] = ()
    mbs: tuple[int, ...] = ()
    recompute: tuple[str, ...] = ()
    schedule: tuple[str, ...] = ()
    recompute_modules: tuple[str, ...] = ()
    recompute_layers: tuple[int, ...] = ()
    offload_optimizer: tuple[int, ...] = ()
    offload_parameters: tuple[int, ...] = ()
    offload_activations: tuple[int, ...] = ()
    cp_kind: tuple[str, ...] = ()
    cp_ulysses: tuple[int, ...] = ()
    reshard: tuple[str, ...] = ()
    order: tuple[str, ...] = ()

    @classmethod
    def of(cls, ranges: Mapping[str, Sequence[int] | Sequence[str]]) -> Space:
        """From a mapping; unknown fields and values are one `InputError` with all faults."""
        known = {f.name for f in fields(cls)}
        faults = [
            Fault(f"unknown field {name!r}", "search", "", "one of " + ", ".join(sorted(known)))
            for name in ranges
            if name not in known
        ]
        known_words = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "cp_kind": OPEN_CP_KINDS, "reshard": RESHARDS,
                       "order": (*ORDERS, ANY_ORDER)}  # fmt: skip
        for name, allowed in known_words.items():
            bad = [v for v in ranges.get(name, ()) if v not in allowed]
            fix = " or ".join(filter(None, allowed))
            faults += [Fault(f"{name} {v!r} is unknown", f"search.{name}", "", fix) for v in bad]
        for text in ranges.get("recompute_modules", ()):
            words = str(text).split("+")
            if any(word not in MODULES for word in words):
                fix = "modules with plus signs between: " + ", ".join(MODULES)
                faults.append(Fault(f"recompute_modules {text!r} is unknown", "search.recompute_modules", "", fix))
        for name in known - known_words.keys() - {"recompute_modules"}:
            least = 0 if name in (*OFFLOADS, "sp", "zero_stage", "fsdp", "recompute_layers", "cp_ulysses") else 1
            most = {"sp": 1, "zero_stage": 3}.get(name)
            for v in ranges.get(name, ()):
                if not isinstance(v, int) or isinstance(v, bool) or v < least or (most is not None and v > most):
                    fix = f"{least} to {most}" if most is not None else f"{least} or more"
                    why = "whole numbers in this range are searched"
                    faults.append(Fault(f"{name} is {v!r}", f"search.{name}", why, fix))
        if faults:
            raise InputError(faults)
        return cls(**{name: tuple(values) for name, values in ranges.items()})  # type: ignore[arg-type]


@dataclass(slots=True)
class Enumerated:
    """Legal layouts, how many were considered, and how many each rule dropped.

    `dropped` counts a candidate under the first rule that it breaks; `closest` is one of those
    that break the fewest, where none is legal.
    """

    layouts: LayoutBatch
    considered: int
    dropped: dict[str, int] = field(default_factory=dict)
    closest: Layout | None = None


def default_ranges(space: Space, model: ModelSpec, cluster: Cluster, workload: Workload) -> dict[str, tuple[int, ...]]:
    """The ranges that are searched where `space` leaves a field open.

    tp: divisors of the attention heads up to a node (or 2 nodes' worth is never chosen
    silently); pp: divisors of the ranks that give even stages with some vpp, or all of them where
    none but 1 does; vpp up to 8; ep: divisors of the experts; cp 1;
    etp 1; every ZeRO stage of the framework; mbs: powers of two up to 16.
    """
    world = cluster.n_ranks
    heads = min(model.tensor_counts())
    experts = [layer.ffn.n_experts for layer in model.layers if isinstance(layer.ffn, Moe)]
    powers = tuple(2**i for i in range(MAX_MBS.bit_length()))
    defaults: dict[str, tuple[int, ...]] = {
        "tp": tuple(d for d in divisors(heads, cluster.gpus_per_node) if world % d == 0),
        "sp": (0, 1),
        "cp": (1,),
        "pp": _pipelines(divisors(world, model.n_layers), model.n_layers, space.vpp or range(1, MAX_VPP + 1)),
        "vpp": tuple(v for v in range(1, min(MAX_VPP, model.n_layers) + 1)),
        "ep": tuple(d for d in divisors(min(experts), world)) if experts else (1,),
        "etp": (1,),
        "zero_stage": preset_of(workload).zero_stages,
        "fsdp": (0,),
        "mbs": tuple(m for m in powers if m <= workload.gbs),
        **dict.fromkeys(OFFLOADS, (0,)),
    }
    return {name: tuple(getattr(space, name)) or values for name, values in defaults.items()}


def _pipelines(pps: Sequence[int], n_layers: int, vpps: Sequence[int]) -> tuple[int, ...]:
    """Those with even stages for some vpp; all of them where that leaves no pipeline (61 layers on 2^n ranks)."""
    even = tuple(pp for pp in pps if any(is_even(n_layers, pp * vpp) for vpp in vpps))
    return even if max(even, default=1) > 1 else tuple(pps)


def enumerate_layouts(space: Space, model: ModelSpec, cluster: Cluster, workload: Workload) -> Enumerated:
    """All candidates of the space as arrays, checked by every rule of `planner.layout`.

    dp follows from the world size, and the schedule from vpp unless it is given; open schedules are
    those that the framework preset has searched. A pp with an open vpp takes those that give every stage an equal share
    (`planner.layout.is_even`), and all of them where none does. A candidate is one distinct
    combination; those whose tp·cp·pp does not divide the world count as dropped by ``world-product``.
    """
    ranges = default_ranges(space, model, cluster, workload)
    world = cluster.n_ranks
    schedules = tuple(space.schedule) or tuple(sorted(preset_of(workload).searched_schedules))
    names = ("tp", "sp", "cp", "pp", "vpp", "ep", "etp", "zero_stage", "fsdp", "mbs", *OFFLOADS)
    axes = [np.asarray(ranges[n], dtype=np.int64) for n in names]
    sets = [parse_modules(text, "search.recompute_modules") for text in space.recompute_modules] or [()]
    numbers = [(n,) if n else () for n in space.recompute_layers] or [()]
    axes.append(np.asarray([RECOMPUTE.index(r) for r in (space.recompute or SEARCHED)], dtype=np.int64))
    axes.append(np.asarray([modules_code(modules) for modules in sets], dtype=np.int64))
    axes.append(np.asarray([split_id(number) for number in numbers], dtype=np.int64))
    axes.append(np.asarray([SCHEDULES.index(s) for s in schedules], dtype=np.int64))
    axes += [np.asarray(values, dtype=np.int64) for values in _kinds(space, ranges["cp"])]
    axes.append(np.asarray([RESHARDS.index(word) for word in (space.reshard or RESHARDS[:1])], dtype=np.int64))
    orders = ORDERS[:1] if not space.order else space.order
    if ANY_ORDER in orders:
        orders = preset_of(workload).orders
    codes = np.asarray(sorted({ORDERS.index(word) for word in orders}), dtype=np.int64)
    axes.append(codes)
    even = None if space.vpp else _even(model.n_layers, ranges["pp"], ranges["vpp"])
    policies = ("recompute", "recompute_modules", "recompute_layers", "schedule", "cp_kind", "cp_ulysses", "reshard",
                "order")  # fmt: skip
    grid = _grid(axes, [*names, *policies], even)
    rest = grid["tp"] * grid["cp"] * grid["pp"]
    grid["dp"] = np.maximum(world // rest, 1)
    layouts = LayoutBatch.filled(grid)
    if len(codes) > 1:
        layouts = layouts.take(first_alike(layouts, codes))
    if space.dp:
        layouts = layouts.take(np.isin(layouts.dp, space.dp))
    context = RuleContext.of(model, workload, world)
    kept = check(layouts, context)
    alive = np.ones(len(layouts), dtype=np.bool_)
    dropped: dict[str, int] = {}
    for rule, holds in kept.items():
        fails = alive & ~holds
        if fails.any():
            dropped[rule] = int(fails.sum())
            alive &= holds
    closest = None
    if not alive.any() and len(layouts):
        broken = np.sum([~holds for holds in kept.values()], axis=0)
        closest = layouts.layout(int(np.argmin(broken)))
    return Enumerated(layouts.take(alive), len(layouts), dropped, closest)


def _kinds(space: Space, cps: Sequence[int]) -> tuple[list[int], list[int]]:
    """Codes of the kinds of context parallelism, and inner degrees; the framework's kind where none is given.

    Without given degrees the hierarchical kind tries every way to cut a cp in two.
    """
    kinds = [OPEN_CP_KINDS.index(kind) for kind in (space.cp_kind or ("",))]
    inner = set(space.cp_ulysses)
    if not inner and OPEN_CP_KINDS.index("hierarchical") in kinds:
        inner = {d for cp in cps for d in divisors(cp) if 1 < d < cp}
    return kinds, sorted({0, *inner})


def _even(n_layers: int, pps: Sequence[int], vpps: Sequence[int]) -> NDArray[np.bool_]:
    """Pairs to search: ``[pp, vpp]`` is True where stages are even, or no vpp makes them so for this pp."""
    kept = np.zeros((max(pps) + 1, max(vpps) + 1), dtype=np.bool_)
    for pp in pps:
        fits = [v for v in vpps if is_even(n_layers, pp * v)]
        kept[pp, fits or list(vpps)] = True
    return kept


def _grid(
    axes: list[NDArray[np.int64]], names: list[str], even: NDArray[np.bool_] | None
) -> dict[str, NDArray[np.int64]]:
    """Cartesian product without the combinations that are the same layout written twice.

    Schedules and vpp without a pipeline, sequence parallelism without tensor parallelism, and a
    schedule whose kind contradicts vpp, kinds of context parallelism without any and inner degrees
    without two levels are left out before the product is laid out; so are the pairs of pp and vpp that
    `even` has not, and modules or numbers of layers with policies that have none.
    """
    columns: dict[str, NDArray[np.int64]] = {}
    most = int(axes[names.index("vpp")].max())
    takes = np.asarray([[get_schedule(s).takes_vpp(v) for v in range(most + 1)] for s in SCHEDULES])
    plain = SCHEDULES.index("1f1b")
    for name, axis in zip(names, axes, strict=True):
        if not columns:
            columns[name] = axis
            continue
        n = len(next(iter(columns.values())))
        if len(axis) > 1:
            columns = {k: np.repeat(v, len(axis)) for k, v in columns.items()}
        columns[name] = np.tile(axis, n)
        keep: NDArray[np.bool_] | None = None
        if name == "sp":
            keep = (columns["sp"] == 0) | (columns["tp"] > 1)
        elif name == "vpp":
            keep = (columns["vpp"] == 1) | (columns["pp"] > 1)
            if even is not None:
                keep &= even[columns["pp"], columns["vpp"]]
        elif name == "recompute_modules":
            keep = (columns["recompute"] == RECOMPUTE.index("selective")) | (columns[name] == axis[0])
            columns[name] = np.where(columns["recompute"] == RECOMPUTE.index("selective"), columns[name], 0)
        elif name == "recompute_layers":
            counted = np.isin(columns["recompute"], WHOLE_LAYERS)
            keep = counted | (columns[name] == axis[0])
            columns[name] = np.where(counted, columns[name], 0)
        elif name == "schedule":
            single = columns["pp"] == 1
            keep = np.where(
                single,
                columns["schedule"] == (axis[0] if plain not in axis else plain),
                takes[columns["schedule"], columns["vpp"]],
            )
        elif name == "cp_kind":
            keep = (columns["cp"] > 1) | (columns["cp_kind"] == axis[0])
        elif name == "reshard":  # without stage 3 the neutral word alone
            keep = (columns["zero_stage"] == 3) | (columns["reshard"] == min(axis))
            columns["reshard"] = np.where(columns["zero_stage"] == 3, columns["reshard"], 0)
        elif name == "cp_ulysses":
            two = (columns["cp_kind"] == OPEN_CP_KINDS.index("hierarchical")) & (columns["cp"] > 1)
            keep = (columns["cp_ulysses"] > 0) == two
        if keep is not None and not keep.all():
            columns = {k: v[keep] for k, v in columns.items()}
    return columns
