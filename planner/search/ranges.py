"""`Space`: the values that a search tries for each field, and the default ranges of those that are left open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from hwmodels.cluster import Cluster
from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass
from planner.frameworks import of as preset_of
from planner.frameworks.switches import normal
from planner.layout import OPEN_CP_KINDS, ORDERS, RECOMPUTE, RESHARDS, SCHEDULES, divisors, is_even
from planner.layout.recompute import MODULES
from planner.model.spec import ModelSpec, Moe
from planner.plan import PRECISIONS, Workload

MAX_VPP = 8
ANY_ORDER = "any"
"""Stands for every order of the axes that the framework has."""
OFFLOADS = ("offload_optimizer", "offload_parameters", "offload_activations")
MAX_MBS = 16
MAX_CP = 16
LEAST_TOKENS = 512
"""Tokens of a sequence that a context-parallel rank has at least where cp is left open."""

STAGES = ("even", "best", "balanced", "fit")
"""Stages that a search tries (`planner.search.uneven`)."""
_WORDS = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "cp_kind": OPEN_CP_KINDS, "reshard": RESHARDS,
          "order": (*ORDERS, ANY_ORDER), "stages": STAGES}  # fmt: skip
_FROM_ZERO = (*OFFLOADS, "sp", "zero_stage", "fsdp", "recompute_layers", "cp_ulysses")
_MOST = {"sp": 1, "zero_stage": 3}
_LARGEST = 2**30
"""Of the fields without a limit of their own: what arrays of candidates hold."""
OF_WORKLOAD = ("precision", "switches")
"""What a search varies beside the fields of a layout: each combination is a workload of its own."""

Variations = tuple[tuple[str, tuple[str, ...]], ...]


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
    stages : tuple of str
        ``even``: the default split alone, as where nothing is given. ``best``: those of
        `planner.search.uneven.balanced_candidates` for the rows of the answer. ``balanced``: the same for every
        candidate that a bound does not rule out. ``fit``: the same, with the recomputed layers that each stage's memory
        asks for. The default split stays a candidate beside them.
    precision : tuple of str
        Recipes to try; the workload's own unless given.
    switches : tuple of (name, words)
        Switches of the framework to vary, with the words of each; what the workload sets stays otherwise.
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
    stages: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    switches: Variations = ()

    @classmethod
    def of(cls, ranges: Mapping[str, Any]) -> Space:
        """From a mapping (``switches`` maps names to words); one `InputError` with all faults.

        Raises
        ------
        hwmodels.errors.InputError
            For unknown fields, words and switches, and values out of their range.
        """
        known = {f.name for f in fields(cls)}
        faults = [
            Fault(f"unknown field {name!r}", "search", "", "one of " + ", ".join(sorted(known)))
            for name in ranges
            if name not in known
        ]
        for name, allowed in (_WORDS | {"precision": PRECISIONS}).items():
            bad = [v for v in ranges.get(name, ()) if v not in allowed]
            fix = " or ".join(filter(None, allowed))
            faults += [Fault(f"{name} {v!r} is unknown", f"search.{name}", "", fix) for v in bad]
        for text in ranges.get("recompute_modules", ()):
            words = str(text).split("+")
            if any(word not in MODULES for word in words):
                fix = "modules with plus signs between: " + ", ".join(MODULES)
                faults.append(Fault(f"recompute_modules {text!r} is unknown", "search.recompute_modules", "", fix))
        for name in known - _WORDS.keys() - {"recompute_modules", *OF_WORKLOAD}:
            faults += _numbers_out(name, ranges.get(name, ()))
        try:
            varied = _variations(ranges.get("switches", ()))
        except InputError as error:
            faults += error.faults
        if faults:
            raise InputError(faults)
        found = {name: tuple(values) for name, values in ranges.items() if name != "switches"}
        return cls(**found, switches=varied)


def _numbers_out(name: str, values: Sequence[Any]) -> list[Fault]:
    """What of a range is no whole number within its limits."""
    least, most = 0 if name in _FROM_ZERO else 1, _MOST.get(name, _LARGEST)
    found = []
    for v in values:
        if not isinstance(v, int) or isinstance(v, bool) or not least <= v <= most:
            fix = f"{least} to {most}" if most != _LARGEST else f"{least} or more, at most {most:,}"
            why = "whole numbers in this range are searched"
            found.append(Fault(f"{name} is {v!r}", f"search.{name}", why, fix))
    return found


def _variations(given: Any) -> Variations:
    """Switches with the words to try, each checked as a workload's own are."""
    pairs = dict(given.items() if isinstance(given, Mapping) else given)
    faults, found = [], []
    for name, words in pairs.items():
        each = (words,) if isinstance(words, str | bool | int | float) else tuple(words)
        kept: list[str] = []
        for word in each:
            try:
                kept.append(normal({name: word})[0][1])
            except InputError as error:
                faults += [replace(fault, where=f"search.switches.{name}") for fault in error.faults]
        if not each:
            faults.append(Fault(f"no value for {name}", f"search.switches.{name}", "", "true, false"))
        found.append((name, tuple(dict.fromkeys(kept))))
    if faults:
        raise InputError(faults)
    return tuple(found)


def variants(space: Space, workload: Workload) -> list[Workload]:
    """The workloads that a space asks for: every precision with every combination of its switches.

    Two that come to the same preset are one (a switch set to what the framework does anyhow).
    """
    found = [workload]
    if space.precision:
        found = [replace(one, precision=name) for one in found for name in space.precision]
    for name, words in space.switches:
        found = [replace(one, switches=tuple({**dict(one.switches), name: word}.items()))
                 for one in found for word in words]  # fmt: skip
    distinct = {(one.precision, preset_of(one)): one for one in reversed(found)}
    return [one for one in found if one in distinct.values()]


def default_ranges(space: Space, model: ModelSpec, cluster: Cluster, workload: Workload) -> dict[str, tuple[int, ...]]:
    """The ranges that are searched where `space` leaves a field open.

    tp: divisors of the attention heads up to a node (or 2 nodes' worth is never chosen
    silently); cp: powers of two up to 16 that leave a rank 512 tokens of a sequence; pp: divisors of the ranks that
    give even stages with some vpp, or all of them where none but 1 does; vpp up to 8; ep: divisors of the experts;
    etp 1; every ZeRO stage of the framework; fsdp: all of dp, or a power of two of whole nodes' ranks; mbs: divisors
    of gbs up to 16.
    """
    world, preset = cluster.n_ranks, preset_of(workload)
    heads = min(model.tensor_counts())
    experts = [layer.ffn.n_experts for layer in model.layers if isinstance(layer.ffn, Moe)]
    powers = tuple(2**i for i in range(MAX_MBS.bit_length()))
    contexts = tuple(c for c in powers if c == 1 or (c <= MAX_CP and workload.seq_len // c >= LEAST_TOKENS))
    defaults: dict[str, tuple[int, ...]] = {
        "tp": tuple(d for d in divisors(heads, cluster.gpus_per_node) if world % d == 0),
        "sp": (0, 1),
        "cp": contexts if preset.cp_kinds else (1,),
        "pp": _pipelines(divisors(world, model.n_layers), model.n_layers, space.vpp or range(1, MAX_VPP + 1)),
        "vpp": tuple(v for v in range(1, min(MAX_VPP, model.n_layers) + 1)),
        "ep": tuple(d for d in divisors(min(experts), world)) if experts else (1,),
        "etp": (1,),
        "zero_stage": preset.zero_stages,
        "fsdp": (0, *_shards(world, cluster.gpus_per_node)),
        "mbs": tuple(divisors(workload.gbs, MAX_MBS)),
        **dict.fromkeys(OFFLOADS, (0,)),
    }
    return {name: tuple(getattr(space, name)) or values for name, values in defaults.items()}


def _shards(world: int, gpus_per_node: int) -> tuple[int, ...]:
    """Shard degrees below dp: a node's ranks times powers of two (`HYBRID_SHARD` over whole nodes)."""
    if gpus_per_node < 2:
        return ()
    return tuple(gpus_per_node << i for i in range(world.bit_length()) if gpus_per_node << i < world)


def _pipelines(pps: Sequence[int], n_layers: int, vpps: Sequence[int]) -> tuple[int, ...]:
    """Those with even stages for some vpp; all of them where that leaves no pipeline (61 layers on 2^n ranks)."""
    even = tuple(pp for pp in pps if any(is_even(n_layers, pp * vpp) for vpp in vpps))
    return even if max(even, default=1) > 1 else tuple(pps)
