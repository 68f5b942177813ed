"""``predict``: the price of one layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwmodels.errors import Fault, InfeasibleError, InputError
from planner.cli import inputs
from planner.cli import inputs_layout as lay
from planner.cli import inputs_training as training

if TYPE_CHECKING:
    from planner.results import Step

Against = Annotated[
    str | None,
    typer.Option("--against", metavar="SCHEDULE[:VPP]", help="Say from how many micro-batches this schedule wins."),
]
Explain = Annotated[bool, typer.Option("--explain", help="Print the chain down to datasheet figures and coefficients.")]
OUT_OF_MEMORY = "out of memory"
MOST_STAGES = 4
"""Stages that the warning names; a deep pipeline has dozens alike."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("predict", help="Price one layout: step time, memory, cost.")(predict)


def predict(
    plan: lay.PlanFile = None,
    model: inputs.ModelName = None,
    cluster: inputs.ClusterName = None,
    seq_len: inputs.SeqLen = None,
    gbs: inputs.Gbs = None,
    precision: inputs.MaybePrecision = None,
    optimizer: inputs.MaybeOptimizer = None,
    framework: inputs.MaybeFramework = None,
    kind: training.Kind = None,
    lora: training.LoraText = None,
    documents: training.DocumentsText = None,
    grad_dtype: training.GradDtype = None,
    main_dtype: training.MainDtype = None,
    switch: training.Switch = None,
    routing: training.RoutingText = None,
    mtp: training.Mtp = None,
    flops: training.Flops = None,
    images: training.Images = None,
    tp: lay.Tp = None,
    sp: lay.Sp = None,
    cp: lay.Cp = None,
    pp: lay.Pp = None,
    vpp: lay.Vpp = None,
    dp: lay.Dp = None,
    ep: lay.Ep = None,
    etp: lay.Etp = None,
    zero_stage: lay.Zero = None,
    fsdp: lay.Fsdp = None,
    mbs: lay.Mbs = None,
    recompute: lay.Recompute = None,
    schedule: lay.Schedule = None,
    stage_layers: lay.StageLayers = None,
    recompute_modules: lay.RecomputeModules = None,
    recompute_layers: lay.RecomputeLayers = None,
    offload_optimizer: lay.OffloadOptimizer = None,
    offload_parameters: lay.OffloadParameters = None,
    offload_activations: lay.OffloadActivations = None,
    cp_kind: lay.CpKind = None,
    cp_ulysses: lay.CpUlysses = None,
    reshard: lay.Reshard = None,
    order: lay.Order = None,
    against: Against = None,
    explain: Explain = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="PLAN.json", help="Write the layout as a plan.")] = None,
    json: inputs.JsonFlag = False,
) -> int:
    """Price the layout of a plan, or the one that the options describe; 3 where its memory does not suffice."""
    from planner.predict import predict as price

    degrees = {
        "tp": tp, "sp": sp, "cp": cp, "pp": pp, "vpp": vpp, "dp": dp, "ep": ep, "etp": etp, "order": order,
        "zero_stage": zero_stage, "fsdp": fsdp, "mbs": mbs, "recompute": recompute, "schedule": schedule,
        "stage_layers": stage_layers, "recompute_modules": recompute_modules, "recompute_layers": recompute_layers,
        "offload_optimizer": offload_optimizer, "offload_parameters": offload_parameters,
        "offload_activations": offload_activations, "cp_kind": cp_kind, "cp_ulysses": cp_ulysses, "reshard": reshard,
    }  # fmt: skip
    stated = {
        "seq_len": seq_len, "gbs": gbs, "precision": precision, "optimizer": optimizer, "framework": framework,
        **training.stated(kind, lora, documents, grad_dtype, main_dtype, switch, routing, mtp, flops, images),
    }  # fmt: skip
    if plan is not None:
        lay.not_with_plan(model=model, **stated, **degrees)
        case = lay.case_of_plan(plan, cluster)
    else:
        inputs.required(model=model, cluster=cluster, seq_len=seq_len, gbs=gbs)
        case = lay.case_of_options(model, cluster, inputs.workload(**inputs.with_defaults(stated)), degrees)
    step = price(case.model, case.cluster, case.workload, case.layout, arrangement=case.arrangement, explain=explain)
    if against is not None:
        step.notes.append(compared(case, against))
    return answer(case, step, out, json)


def compared(case: lay.Case, against: str) -> str:
    """The case's pipeline against another schedule, over the number of micro-batches, in a sentence."""
    from planner.layout import SCHEDULES
    from planner.schedule import get as get_schedule
    from planner.search.crossover import crossover

    name, _, text = against.partition(":")
    fault = Fault(f"{against!r} names no schedule", "--against", "", "one of " + ", ".join(SCHEDULES))
    if name not in SCHEDULES or (text and not text.isdecimal()):
        raise InputError(fault)
    vpp = int(text) if text else get_schedule(name).vpp_only or 1
    same = vpp == case.layout.vpp
    other = replace(case.layout, schedule=name, vpp=vpp, stage_layers=case.layout.stage_layers if same else ())
    return crossover(case.model, case.cluster, case.workload, case.layout, other).described()


def answer(case: lay.Case, step: Step, out: Path | None, json: bool) -> int:
    """Print a predicted step, write its plan where asked; the exit code."""
    from planner.cli.output import note

    written = write_plan(out, case, step) if out is not None else None
    short = too_small(step)
    if short:
        note(short)
    show(case, step, json)
    if written is not None:
        note(f"plan written to {written}")
    return InfeasibleError.exit_code if short else 0


def too_small(step: Step) -> str:
    """The warning about stages that do not fit the device memory; empty where all do."""
    from hwmodels.units import format_bytes

    if step.verdict != OUT_OF_MEMORY:
        return ""
    over = [
        f"stage {s.stage} needs {format_bytes(s.peak_bytes)} of {format_bytes(s.capacity_bytes)}"
        for s in step.memory
        if (s.interval.low if s.interval else s.peak_bytes) > s.capacity_bytes
    ]
    more = f" and {len(over) - MOST_STAGES} more stages" if len(over) > MOST_STAGES else ""
    return f"warning: out of memory: {', '.join(over[:MOST_STAGES])}{more}; the figures are of a step that cannot run"


def show(case: lay.Case, step: Step, json: bool) -> None:
    """The predicted step, as JSON or for a person."""
    from planner.cli.output import print_json
    from planner.cli.show import show_explain, show_inputs, show_step
    from planner.predict import summary

    if json:
        echo = {"model": case.model.name, "cluster": case.cluster_name, "workload": case.workload}
        print_json({"schema": 1, **echo, "layout": case.layout, "step": summary(step)})
        return
    show_inputs(case)
    show_step(step)
    show_explain(step.explain)


def write_plan(path: Path, case: lay.Case, step: Step) -> Path:
    """The plan of a case with its predicted figures, written as JSON."""
    from planner.cli.plans import plan_of
    from planner.plan_io import save_plan

    save_plan(plan_of(case, step, path.stem), path)
    return path
