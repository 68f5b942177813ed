"""The degrees of one layout as options, and the training run that predict and simulate look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass
from planner.cli import inputs

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster
    from planner.layout import Layout
    from planner.mixed import Arrangement
    from planner.model.spec import ModelSpec
    from planner.plan import Placement, Plan, Workload

Tp = Annotated[int | None, typer.Option("--tp", help="Tensor parallel degree.")]
Sp = Annotated[int | None, typer.Option("--sp", help="1: sequence parallel over the tp group.")]
Cp = Annotated[int | None, typer.Option("--cp", help="Context parallel degree.")]
Pp = Annotated[int | None, typer.Option("--pp", help="Pipeline stages.")]
Vpp = Annotated[int | None, typer.Option("--vpp", help="Virtual stages per pipeline rank.")]
Dp = Annotated[
    int | None, typer.Option("--dp", help="Data parallel degree; what the cluster leaves over if not given.")
]
Ep = Annotated[int | None, typer.Option("--ep", help="Expert parallel degree.")]
Etp = Annotated[int | None, typer.Option("--etp", help="Tensor parallel degree of the experts.")]
Zero = Annotated[int | None, typer.Option("--zero-stage", help="ZeRO stage 0-3; 3 is FSDP.")]
Fsdp = Annotated[int | None, typer.Option("--fsdp", help="Ranks over which ZeRO/FSDP shards; all of dp if not given.")]
Mbs = Annotated[int | None, typer.Option("--mbs", help="Sequences per micro-batch.")]
Recompute = Annotated[
    str | None, typer.Option("--recompute", help="none, selective, full, block, every or op.")
]
RecomputeModules = Annotated[
    str | None,
    typer.Option(
        "--recompute-modules",
        metavar="layernorm,moe_act",
        help="What a selective policy recomputes, in Megatron-Core's words; the attention core if not given.",
    ),
]
RecomputeLayers = Annotated[
    str | None,
    typer.Option(
        "--recompute-layers",
        metavar="2 | 4,2,1,0",
        help="Layers of a chunk (full), of a virtual stage (block), or every n-th; one for all stages, or one each.",
    ),
]
Schedule = Annotated[str | None, typer.Option("--schedule", help="Pipeline schedule (list schedules).")]
Reshard = Annotated[
    str | None,
    typer.Option("--reshard", help="Whether stage 3 frees parameters after the forward: default, always or never."),
]
CpKind = Annotated[
    str | None,
    typer.Option(
        "--cp-kind", help="Context parallel: ring, all-gather, ulysses or hierarchical; the framework's if not given."
    ),
]
CpUlysses = Annotated[
    int | None, typer.Option("--cp-ulysses", help="Inner (all-to-all) degree of hierarchical context parallelism.")
]
StageLayers = Annotated[
    str | None,
    typer.Option(
        "--stage-layers",
        metavar="3,14x4,2",
        help="Layers of each virtual stage; or first=3,last=2 or embedding,loss as in Megatron-Core.",
    ),
]
OffloadOptimizer = Annotated[
    int | None,
    typer.Option("--offload-optimizer", metavar="PERCENT", help="Per cent (0 to 100) of the optimizer in host memory."),
]
OffloadParameters = Annotated[
    int | None, typer.Option("--offload-parameters", help="1: the shards of ZeRO-3 lie in host memory.")
]
OffloadActivations = Annotated[
    int | None,
    typer.Option(
        "--offload-activations",
        metavar="LAYERS",
        help="First layers of each virtual stage whose activations go to host memory.",
    ),
]
Order = Annotated[
    str | None,
    typer.Option("--order", metavar="tp-cp-dp-pp", help="Axes that ranks unfold into, the fastest first."),
]
PlanFile = Annotated[Path | None, typer.Option("--plan", metavar="PLAN.json", help="Take everything from a plan.")]


@dataclass(frozen=True, slots=True)
class Case:
    """One training run: what is trained, on what, in which layout; its pools and shares where a plan states them."""

    model: ModelSpec
    config: dict[str, Any]
    cluster: Cluster
    cluster_name: str
    workload: Workload
    layout: Layout
    plan: Plan | None
    arrangement: Arrangement | None = None


def case_of_plan(path: Path, cluster: str | None = None) -> Case:
    """The run that a plan describes, on its own cluster or on another one."""
    from planner.plan_io import load_plan

    return case_of(load_plan(path), cluster, str(path))


def case_of(plan: Plan, cluster: str | None = None, source: str = "plan") -> Case:
    """The run that a loaded plan describes; `source` is named in faults.

    Raises
    ------
    InputError
        For what the plan states beyond its layout (`planner.plan_uniform`), and faults of its model and cluster.
    """
    from dataclasses import replace

    from planner import model as models
    from planner.mixed import arrangement_of_plan, in_order
    from planner.plan import moved_ranks
    from planner.plan_uniform import beyond_layout

    name = cluster or plan.cluster
    spec = models.read_config(plan.model, plan.model_name, source)
    loaded, layout = inputs.load_cluster(name), layout_of(plan, spec)
    seats: tuple[Placement, ...] = ()
    if cluster is None and len(loaded.pools) == 1:
        layout = replace(layout, placement=moved_ranks(plan, loaded.nodes, loaded.gpus_per_node, source))
        arrangement = in_order(loaded, layout, plan.workload.gbs, plan.batch_share)
    elif cluster is None:
        arrangement = arrangement_of_plan(plan, layout, loaded)
        seats = arrangement.seats(loaded)
    else:
        arrangement = in_order(loaded, layout, plan.workload.gbs, plan.batch_share)
    more = beyond_layout(plan, layout, spec, seats, source)
    if more:
        raise InputError(more)
    return Case(spec, plan.model, loaded, name, plan.workload, layout, plan, arrangement)


def layout_of(plan: Plan, spec: ModelSpec) -> Layout:
    """The layout of a plan, with the layers that its stages hold where those are not the default ones."""
    from dataclasses import replace

    from planner.layout import split_layers

    layout = plan.layout
    length = layout.pp * layout.vpp
    held = tuple(len(stage.layers) for stage in plan.stages[:length])
    return layout if held == split_layers(spec.n_layers, length) else replace(layout, stage_layers=held)


def case_of_options(model: str | None, cluster: str | None, workload: Workload, degrees: dict[str, Any]) -> Case:
    """The run that the options describe.

    Raises
    ------
    InputError
        With every layout rule that is broken (`planner.layout.RULES`).
    """
    from planner.layout import RuleContext, validate

    inputs.required(model=model, cluster=cluster)
    spec, config, loaded = inputs.model_and_cluster(str(model), str(cluster))
    layout = inputs.layout(loaded.n_ranks, degrees, spec.n_layers)
    validate(layout, RuleContext.of(spec, workload, loaded.n_ranks), "layout")
    return Case(spec, config, loaded, str(cluster), workload, layout, None)


def not_with_plan(**values: Any) -> None:
    """Raise `InputError` for each option that a plan already fixes."""
    given = [inputs.option(name) for name, value in values.items() if value is not None]
    if given:
        raise InputError(
            [Fault(f"{name} together with --plan", name, "the plan fixes it", f"leave {name} out") for name in given]
        )
