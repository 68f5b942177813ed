"""`Plan`: the versioned document that everything hands around (plan.json).

A plan can say more than one layout: uneven stages, recompute and batch share per stage or
rank, separate dense and expert grids, explicit placement. Uniform values are merely equal
entries, so later planners need no new format.
"""

from __future__ import annotations

import json
from dataclasses import asdict, field, replace
from typing import Any, Literal

from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass
from planner.layout import Layout, split_layers
from planner.layout.recompute import stage_words
from planner.model.spec import ModelSpec
from planner.optimizers import names as optimizer_names
from planner.precision import names as precision_names
from planner.routing import Routing
from planner.training import LARGEST, Documents, Lora, Workload

__all__ = [
    "LARGEST", "OPTIMIZERS", "PRECISIONS", "SCHEMA", "Documents", "Lora", "Placement", "Plan", "Prediction", "Routing",
    "StagePlan", "Workload", "build_plan",
]  # fmt: skip

SCHEMA = 1
PRECISIONS: tuple[str, ...] = precision_names()
OPTIMIZERS: tuple[str, ...] = optimizer_names()


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One virtual stage.

    Attributes
    ----------
    stage : int
        Global virtual stage index (PyTorch's stage index).
    rank, chunk : int
        Pipeline rank and position on it.
    layers : tuple of int
        Decoder layer indices, in order.
    embedding, head : bool
        Whether the stage also holds the embedding / the final norm, head and loss.
    recompute : str
        Policy for the layers of this stage: ``"none"``, ``"selective"`` with its modules, ``"full"``, ``"block"``
        and ``"every"`` with their number of layers, ``"op"`` (`planner.layout.recompute.stage_words`).
    """

    stage: int
    rank: int
    chunk: int
    layers: tuple[int, ...]
    embedding: bool
    head: bool
    recompute: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a world rank runs."""

    rank: int
    node: int
    gpu: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted figures that travel with a plan (seconds, bytes)."""

    step_s: float
    step_low_s: float
    step_high_s: float
    phases: list[dict[str, float]]
    peak_bytes: list[int]
    memory: list[dict[str, int]]
    mfu: float
    tokens_per_s_per_gpu: float
    usd_per_mtoken: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A training plan (`kind` is ``"training"``; serving plans come with their own roles).

    Attributes
    ----------
    model : dict
        The Hugging Face config the model was read from (so that a plan is self-contained).
    model_name : str
    cluster : str
        Preset or file that the plan was made for.
    workload : Workload
    layout : Layout
        The degrees; what the grids below say rank by rank.
    stages : tuple of StagePlan
        Both copies of a bidirectional pipeline (DualPipe), the second one's after the first's.
    batch_share : tuple of int
        Sequences a step for each dp rank; they sum to gbs.
    dense_grid, expert_grid : tuple of (axis, size), slowest first
        How world ranks unfold: ``(("pp", 2), ("dp", 4), ("cp", 1), ("tp", 8))``, as `Layout.order` says; the
        expert grid is ``(("pp", …), ("edp", …), ("ep", …), ("etp", …))``.
    actions : tuple of tuple of str
        Compute actions of every pipeline rank in PyTorch's notation (empty for pp = 1).
    placement : tuple of Placement
    predicted : Prediction or None
    provenance : dict
        Version, calibration source, seeds.
    roles : tuple of dict
        Serving roles; empty for training.
    """

    name: str
    model: dict[str, Any]
    model_name: str
    cluster: str
    workload: Workload
    layout: Layout
    stages: tuple[StagePlan, ...]
    batch_share: tuple[int, ...]
    dense_grid: tuple[tuple[str, int], ...]
    expert_grid: tuple[tuple[str, int], ...]
    actions: tuple[tuple[str, ...], ...]
    placement: tuple[Placement, ...]
    predicted: Prediction | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    roles: tuple[dict[str, Any], ...] = ()
    kind: Literal["training", "serving"] = "training"
    schema: int = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able content, `schema` and `kind` first."""
        content = asdict(self)
        return {"schema": content.pop("schema"), "kind": content.pop("kind"), **content}

    def digest(self) -> str:
        """Hash of what runs (predictions and provenance left out); 16 hex digits."""
        content = self.to_dict()
        for key in ("predicted", "provenance", "name"):
            content.pop(key)
        import hashlib  # starts OpenSSL, which a search has no use for

        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def moved_ranks(plan: Plan, nodes: int, gpus_per_node: int, source: str = "") -> tuple[int, ...]:
    """GPU of every rank as `Layout.placement` has it; empty where ranks fill all nodes in order.

    Raises
    ------
    hwmodels.errors.InputError
        For ranks on GPUs that the cluster does not have.
    """
    absent = [seat for seat in plan.placement if seat.node >= nodes or seat.gpu >= gpus_per_node]
    if absent:
        what = f"puts rank {absent[0].rank} on node {absent[0].node}, GPU {absent[0].gpu}"
        why = f"{plan.cluster} has {nodes} nodes of {gpus_per_node} GPUs"
        raise InputError(Fault(what, f"{source}: placement" if source else "placement", why, "both count from 0"))
    gpus = tuple(seat.node * gpus_per_node + seat.gpu for seat in plan.placement)
    return () if gpus == tuple(range(nodes * gpus_per_node)) else gpus


def expert_grid(layout: Layout) -> tuple[tuple[str, int], ...]:
    """Axes of the expert grid and their sizes, slowest first: the pipeline lies where the dense grid has it.

    Last, or before expert data parallelism (rule ``order-experts``).
    """
    edp = layout.tp * layout.cp * layout.dp // (layout.ep * layout.etp)
    after = layout.order.split("-")[layout.order.split("-").index("pp") + 1 :]
    last = layout.pp == 1 or all(getattr(layout, axis) == 1 for axis in after)
    slow = (("pp", layout.pp), ("edp", edp)) if last else (("edp", edp), ("pp", layout.pp))
    return (*slow, ("ep", layout.ep), ("etp", layout.etp))


def build_plan(
    name: str,
    config: dict[str, Any],
    model: ModelSpec,
    cluster: str,
    workload: Workload,
    layout: Layout,
    gpus_per_node: int,
    predicted: Prediction | None = None,
    provenance: dict[str, Any] | None = None,
    batch_share: tuple[int, ...] = (),
    placement: tuple[Placement, ...] = (),
) -> Plan:
    """The plan of a layout: its stages, and unless given equal shares of the batch and ranks filled node by node.

    The actions of unequal shares are those of the replica with most micro-batches; the others leave out the last.
    """
    from planner.schedule import get

    schedule = get(layout.schedule)
    length = layout.pp * layout.vpp
    shares = layout.stage_layers or split_layers(model.n_layers, length)
    if shares is None:
        raise InputError(
            Fault(
                f"{model.n_layers} layers on {length} virtual stages", "layout", "they do not split", "another pp*vpp"
            )
        )
    begins = [sum(shares[:s]) for s in range(length)]
    words = stage_words(layout.recompute, layout.recompute_modules, layout.recompute_layers, length)
    stages = tuple(
        StagePlan(
            stage=s,
            rank=schedule.rank_of(s, layout.pp),
            chunk=schedule.chunk_of(s, layout.pp),
            layers=tuple(range(begins[part], begins[part] + shares[part])),
            embedding=part == 0,
            head=part == length - 1,
            recompute=words[part],
        )
        for s in range(schedule.n_stages(layout.pp, layout.vpp))
        for part in [schedule.layers_of(s, layout.pp, layout.vpp)]
    )
    actions: tuple[tuple[str, ...], ...] = ()
    if layout.pp > 1:
        most = max(batch_share) // layout.mbs if batch_share else layout.microbatches(workload.gbs)
        lists = schedule.actions(layout.pp, most, layout.vpp)
        actions = tuple(tuple(str(a) for a in rank) for rank in lists)
    if layout.placement and not placement:
        placement = tuple(Placement(rank, *divmod(gpu, gpus_per_node)) for rank, gpu in enumerate(layout.placement))
    return Plan(
        name=name,
        model=config,
        model_name=model.name,
        cluster=cluster,
        workload=workload,
        layout=replace(layout, placement=()),
        stages=stages,
        batch_share=batch_share or (workload.gbs // layout.dp,) * layout.dp,
        dense_grid=tuple((axis, getattr(layout, axis)) for axis in reversed(layout.order.split("-"))),
        expert_grid=expert_grid(layout),
        actions=actions,
        placement=placement
        or tuple(Placement(r, r // gpus_per_node, r % gpus_per_node) for r in range(layout.world)),
        predicted=predicted,
        provenance=provenance or {},
    )
