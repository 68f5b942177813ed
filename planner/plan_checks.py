"""What a plan must agree with itself about, beyond the types of its keys.

A plan says some things twice on purpose: the layout and the grids, the stages and the actions.
A rule of `planner.layout` that speaks of uniform values gives way to what the plan states rank by
rank (layers a stage, sequences a rank), so that uneven plans are as legal as even ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from math import prod

from hwmodels.errors import Fault, InputError
from planner.documents import place
from planner.frameworks import names as framework_names
from planner.frameworks import of as preset_of
from planner.layout import RECOMPUTE, RuleContext
from planner.layout import faults as layout_faults
from planner.layout.recompute import is_stage_word
from planner.model import read_config
from planner.model.spec import ModelSpec
from planner.optimizers import GRAD_DTYPES, MAIN_DTYPES
from planner.plan import OPTIMIZERS, PRECISIONS, Plan, StagePlan, expert_grid
from planner.precision import workload_faults
from planner.schedule import Action, Kind
from planner.schedule import get as get_schedule

_STATED = frozenset({"layers-stages", "gbs-microbatch", "interleave-rounds", "schedule-microbatches"})
"""Layout rules about uniform stages and shares, which `_stages`, `_shares` and `_actions` replace."""

_BACKWARD = (frozenset({Kind.BACKWARD}), frozenset({Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT}))


def plan_faults(plan: Plan, source: str = "") -> list[Fault]:
    """Every contradiction in a plan, each with its JSON path; empty for a sound one."""
    if plan.kind == "serving":
        return [] if plan.roles else [Fault("is empty", place(source, "roles"), "a serving plan has roles", "one role")]
    found = [*_workload(plan, source)]
    if plan.roles:
        found.append(Fault("is not empty", place(source, "roles"), "a training plan has no roles", "[]"))
    try:
        model = read_config(plan.model, plan.model_name, place(source, "model"))
    except InputError as error:
        return [*found, *error.faults]
    work = plan.workload
    found += sequence_faults(model, work.seq_len, place(source, "workload.seq_len"))
    if found:
        return found
    found += workload_faults(work, preset_of(work), place(source, "workload"))
    if found:
        return found
    context = RuleContext.of(model, work, plan.layout.world)
    broken = layout_faults(plan.layout, context, place(source, "layout"))
    found += [fault for fault in broken if fault.rule not in _STATED]
    if found:
        # what follows counts in degrees that are wrong already
        return found
    found += _grids(plan, source)
    found += _shares(plan, source)
    found += _placement(plan, source)
    stages = _stages(plan, model, source)
    found += stages
    if not stages:
        found += _actions(plan, source)
    return [*found, *_predicted(plan, source)]


def sequence_faults(model: ModelSpec, seq_len: int, where: str = "") -> list[Fault]:
    """Whether a model with a table of learned positions, or of patches, can see a sequence of this length."""
    most = model.learned_positions
    if model.patches is not None and seq_len != model.patches.tokens:
        count, token = model.patches.patches, " and a class token" if model.patches.class_token else ""
        why = f"a sequence of {model.name} is one image: {count} patches{token}"
        return [Fault(f"seq_len is {seq_len}", where, why, f"seq_len {model.patches.tokens}")]
    if not most or seq_len <= most:
        return []
    why = f"{model.name} has {most} learned positions"
    return [Fault(f"seq_len is {seq_len}", where, why, f"at most {most}, or a model with rotary positions")]


def _workload(plan: Plan, source: str) -> Iterator[Fault]:
    work = plan.workload
    for key in ("seq_len", "gbs"):
        if getattr(work, key) < 1:
            yield Fault(
                f"is {getattr(work, key)}", place(source, f"workload.{key}"), "at least 1 is needed", "1 or more"
            )
    for key, known in (
        ("precision", PRECISIONS),
        ("optimizer", OPTIMIZERS),
        ("framework", framework_names()),
        ("grad_dtype", ("", *GRAD_DTYPES)),
        ("main_dtype", tuple(MAIN_DTYPES)),
    ):
        if getattr(work, key) not in known:
            where = place(source, f"workload.{key}")
            yield Fault(f"is {getattr(work, key)!r}", where, "it is not a known name", " or ".join(known))


def _grids(plan: Plan, source: str) -> Iterator[Fault]:
    """Each grid has its axes once, with the sizes of the layout."""
    lay = plan.layout
    edp = lay.tp * lay.cp * lay.dp // (lay.ep * lay.etp)
    wanted = {"dense_grid": lay.order.split("-")[::-1], "expert_grid": [axis for axis, _ in expert_grid(lay)]}
    grids = (
        ("dense_grid", plan.dense_grid, {"pp": lay.pp, "dp": lay.dp, "cp": lay.cp, "tp": lay.tp}),
        ("expert_grid", plan.expert_grid, {"pp": lay.pp, "edp": edp, "ep": lay.ep, "etp": lay.etp}),
    )
    for key, grid, expected in grids:
        where = place(source, key)
        if sorted(axis for axis, _ in grid) != sorted(expected):
            got = ", ".join(axis for axis, _ in grid) or "none"
            yield Fault(f"has the axes {got}", where, "each axis stands once", ", ".join(expected))
            continue
        world = prod(size for _, size in grid)
        if world != lay.world:
            why = f"the layout has {lay.world} ranks"
            yield Fault(f"multiplies to {world}", where, why, _sizes(expected))
        elif dict(grid) != expected:
            yield Fault(f"says {_sizes(dict(grid))}", where, "it contradicts the layout", _sizes(expected))
        elif [axis for axis, size in grid if size > 1] != [axis for axis in wanted[key] if expected[axis] > 1]:
            what = f"unfolds as {', '.join(axis for axis, _ in grid)}, slowest first"
            yield Fault(what, where, f"layout.order is {lay.order}", ", ".join(wanted[key]))


def _sizes(grid: dict[str, int]) -> str:
    return " ".join(f"{axis}={size}" for axis, size in grid.items())


def _shares(plan: Plan, source: str) -> Iterator[Fault]:
    lay, gbs, where = plan.layout, plan.workload.gbs, place(source, "batch_share")
    shares = plan.batch_share
    if len(shares) != lay.dp:
        yield Fault(f"has {len(shares)} entries", where, f"there are dp={lay.dp} ranks", f"{lay.dp} entries")
    if sum(shares) != gbs:
        yield Fault(f"sums to {sum(shares)}", where, f"gbs is {gbs}", f"shares that sum to {gbs}")
    for i, share in enumerate(shares):
        if share < 1 or share % lay.mbs:
            what, why = f"is {share}", f"a share is a whole number of micro-batches of {lay.mbs}"
            yield Fault(what, f"{where}[{i}]", why, f"a multiple of {lay.mbs}")


def _placement(plan: Plan, source: str) -> Iterator[Fault]:
    world, where = plan.layout.world, place(source, "placement")
    if plan.layout.placement:
        why = "the plan's own placement says where ranks run"
        yield Fault("is not empty", place(source, "layout.placement"), why, "[]")
    ranks = [entry.rank for entry in plan.placement]
    if len(ranks) != world or ranks != list(range(world)):
        yield Fault(f"lists {len(ranks)} ranks, not each of 0 to {world - 1} in order", where,
                    f"the layout has {world} ranks", "one entry a rank")  # fmt: skip
    seats = Counter((entry.node, entry.gpu) for entry in plan.placement)
    for (node, gpu), times in seats.items():
        if times > 1:
            yield Fault(f"puts {times} ranks on node {node}, GPU {gpu}", where, "a GPU runs one rank", "another GPU")
        if node < 0 or gpu < 0:
            yield Fault(f"names node {node}, GPU {gpu}", where, "both count from 0", "0 or more")


def _stages(plan: Plan, model: ModelSpec, source: str) -> list[Fault]:
    """Stages are numbered in order, lie where the schedule puts them, and cover all layers once."""
    lay, schedule, where = plan.layout, get_schedule(plan.layout.schedule), place(source, "stages")
    length, n = lay.pp * lay.vpp, schedule.n_stages(lay.pp, lay.vpp)
    if len(plan.stages) != n or [stage.stage for stage in plan.stages] != list(range(n)):
        what = f"lists {len(plan.stages)} stages, not 0 to {n - 1} in order"
        why = f"{lay.schedule} with pp={lay.pp}, vpp={lay.vpp} has {n}"
        return [Fault(what, where, why, f"one entry for each of {n} virtual stages")]
    found = []
    for i, stage in enumerate(plan.stages):
        at, expected = f"{where}[{i}]", (schedule.rank_of(i, lay.pp), schedule.chunk_of(i, lay.pp))
        if (stage.rank, stage.chunk) != expected:
            what = f"is chunk {stage.chunk} of rank {stage.rank}"
            fix = f"rank {expected[0]}, chunk {expected[1]}"
            found.append(Fault(what, at, f"{lay.schedule} places stage {i} elsewhere", fix))
        for key, holder in (("embedding", 0), ("head", length - 1)):
            holds = i % length == holder
            if getattr(stage, key) != holds:
                found.append(Fault(f"is {str(not holds).lower()}", f"{at}.{key}",
                                   f"stage {holder} alone holds the {key}", str(holds).lower()))  # fmt: skip
        if not is_stage_word(stage.recompute):
            why = "a kind, its modules or its number of layers are expected"
            found.append(Fault(f"is {stage.recompute!r}", f"{at}.recompute", why, " or ".join(RECOMPUTE)))
    shares = tuple(len(stage.layers) for stage in plan.stages[:length])
    if lay.stage_layers and shares != lay.stage_layers:
        why = f"layout.stage_layers says {','.join(map(str, lay.stage_layers))}"
        found.append(Fault(f"hold {','.join(map(str, shares))} layers", where, why, "the same in both"))
    for copy in range(n // length):
        found += _covered(plan.stages[copy * length : (copy + 1) * length], model, where)
    return found


def _covered(stages: tuple[StagePlan, ...], model: ModelSpec, where: str) -> list[Fault]:
    """Whether the stages of one copy of the pipeline run every layer once, in order."""
    layers = [layer for stage in stages for layer in stage.layers]
    if layers != list(range(model.n_layers)):
        missing = sorted(set(range(model.n_layers)) - set(layers))
        detail = (
            f"layers {missing[:5]} are missing" if missing else f"{len(layers)} layers are listed out of order or twice"
        )
        why = f"{model.name} has {model.n_layers} layers, and each runs once, in order"
        return [Fault(f"do not cover the model: {detail}", where, why, f"layers 0 to {model.n_layers - 1} in order")]
    return []


def _actions(plan: Plan, source: str) -> Iterator[Fault]:
    """Actions parse, lie on the rank of their stage, and run every micro-batch both ways once."""
    lay, where = plan.layout, place(source, "actions")
    if not plan.actions:
        if lay.pp > 1:
            yield Fault("is empty", where, f"pp={lay.pp} ranks need an order of actions", "the schedule's list")
        return
    if len(plan.actions) != lay.pp:
        yield Fault(f"has {len(plan.actions)} lists", where, f"there are pp={lay.pp} ranks", f"{lay.pp} lists")
        return
    even = len(set(plan.batch_share)) == 1
    microbatches = plan.batch_share[0] // lay.mbs if even else None
    rank_of: Callable[[int], int] = {stage.stage: stage.rank for stage in plan.stages}.__getitem__
    done: dict[int, Counter[tuple[Kind, int]]] = {stage.stage: Counter() for stage in plan.stages}
    for rank, texts in enumerate(plan.actions):
        for i, text in enumerate(texts):
            at = f"{where}[{rank}][{i}]"
            try:
                action = Action.parse(text)
            except ValueError as error:
                yield Fault(f"is {text!r}", at, str(error), "e.g. '0F3'")
                continue
            if action.stage not in done or rank_of(action.stage) != rank:
                yield Fault(
                    f"is {text!r}", at, f"rank {rank} does not hold stage {action.stage}", "a stage of the rank"
                )
            elif action.microbatch is not None:
                done[action.stage][action.kind, action.microbatch] += 1
    schedule = get_schedule(lay.schedule)
    for stage, counts in done.items():
        expected = None
        if microbatches is not None:
            expected = set(schedule.microbatches_of(stage, lay.pp, microbatches, lay.vpp))
        yield from _coverage(counts, stage, expected, f"{where}[{rank_of(stage)}]")


def _coverage(counts: Counter[tuple[Kind, int]], stage: int, wanted: set[int] | None, where: str) -> Iterator[Fault]:
    forward = {m for kind, m in counts if kind is Kind.FORWARD}
    expected = wanted if wanted is not None else forward
    twice = sorted(str(Action(stage, kind, m)) for (kind, m), times in counts.items() if times > 1)
    if twice:
        yield Fault(f"runs {', '.join(twice[:3])} more than once", where, "each runs once a step", "one of each")
    wrong = sorted(expected ^ forward)
    if wrong or not forward:
        yield Fault(f"stage {stage} runs {len(forward)} forwards", where,
                    f"the batch has {len(expected)} micro-batches for it",
                    f"{min(expected, default=0)} to {max(expected, default=0)}, each once")  # fmt: skip
    for m in sorted(forward):
        kinds = frozenset(kind for kind in Kind if counts[kind, m]) & (_BACKWARD[0] | _BACKWARD[1])
        if kinds not in _BACKWARD:
            got = " and ".join(kind.value for kind in kinds) or "no backward"
            yield Fault(
                f"stage {stage}, micro-batch {m} has {got}", where, "one backward follows each forward", "B, or I and W"
            )


def _predicted(plan: Plan, source: str) -> Iterator[Fault]:
    predicted = plan.predicted
    if predicted is None:
        return
    where = place(source, "predicted")
    for key in ("phases", "peak_bytes", "memory"):
        n = len(getattr(predicted, key))
        if n != plan.layout.pp:
            yield Fault(
                f"has {n} entries", f"{where}.{key}", f"there are pp={plan.layout.pp} ranks", f"{plan.layout.pp}"
            )
    if not 0 < predicted.step_low_s <= predicted.step_s <= predicted.step_high_s:
        what = f"is {predicted.step_s} in [{predicted.step_low_s}, {predicted.step_high_s}]"
        yield Fault(what, f"{where}.step_s", "bounds enclose a time above zero", "low <= step_s <= high")
