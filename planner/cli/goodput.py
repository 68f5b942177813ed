"""``goodput``: what failures, checkpoints and restarts leave of a run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwmodels.errors import Fault, InfeasibleError, InputError
from planner.cli import inputs
from planner.cli import inputs_layout as lay

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster
    from planner.goodput.policy import Policy

AUTO = "auto"
RATES = ("write_per_node", "read_per_node", "write_total", "read_total")

Source = Annotated[
    str, typer.Argument(metavar="PLAN.json|SCENARIO", help="A plan, or a scenario whose fastest layout is taken.")
]
MtbfText = Annotated[
    list[str] | None,
    typer.Option(
        "--mtbf",
        metavar="[KIND=]DURATION",
        help="Mean time between failures of a gpu, nic, node, link, switch or software=50000h (repeatable); without a "
        "kind, of a GPU by every cause.",
    ),
]
Interval = Annotated[str, typer.Option("--interval", metavar="auto|DURATION", help="Training between checkpoints.")]
CheckpointMode = Annotated[
    str, typer.Option("--checkpoint", help="sync, or async: training goes on after the copy to host memory.")
]
Sharded = Annotated[
    bool, typer.Option("--sharded/--one-replica", help="Every rank writes its share, or one replica writes everything.")
]
Spares = Annotated[int | None, typer.Option("--spares", min=0, help="Spare nodes; enough of them if not given.")]
RepairText = Annotated[str | None, typer.Option("--repair", metavar="DURATION", help="Until a failed node is back.")]
DetectText = Annotated[str | None, typer.Option("--detect", metavar="DURATION", help="Until a failure is noticed.")]
RescheduleText = Annotated[
    str | None, typer.Option("--reschedule", metavar="DURATION", help="Until all ranks start again.")
]
WarmUpText = Annotated[
    str | None, typer.Option("--warm-up", metavar="DURATION", help="Of the first steps after a restart.")
]
Weibull = Annotated[
    float, typer.Option("--weibull", metavar="SHAPE", help="Of times to failure in the simulation; 1: exponential.")
]
StragglerText = Annotated[
    str | None, typer.Option("--straggler-mtbf", metavar="TIME", help="Until a node becomes slow; never if not given.")
]
Slowdown = Annotated[
    float | None, typer.Option("--straggler-slowdown", metavar="FACTOR", help="Slower step over the usual one.")
]
StragglerDetect = Annotated[
    str | None, typer.Option("--straggler-detect", metavar="DURATION", help="Until a straggler is replaced.")
]
Elastic = Annotated[bool, typer.Option("--elastic", help="Without a spare, train on with fewer replicas.")]
StorageText = Annotated[
    list[str] | None,
    typer.Option("--storage", metavar="RATE=BANDWIDTH", help="write_per_node=2GB/s and the like (repeatable)."),
]
TokenBytes = Annotated[
    float | None, typer.Option("--token-bytes", help="Bytes of a token in storage; by the vocabulary if not given.")
]
Tokens = Annotated[float | None, typer.Option("--tokens", metavar="N", help="Tokens to train: time and cost of them.")]
Days = Annotated[float, typer.Option("--days", help="Length of a simulated run.")]
Replications = Annotated[int, typer.Option("--replications", min=0, help="Simulated runs; 0: the closed form alone.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the simulation.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("goodput", help="What failures, checkpoints and restarts leave of a run.")(goodput)


def goodput(
    source: Source,
    cluster: inputs.ClusterName = None,
    mtbf: MtbfText = None,
    interval: Interval = AUTO,
    checkpoint: CheckpointMode = "sync",
    sharded: Sharded = True,
    spares: Spares = None,
    repair: RepairText = None,
    detect: DetectText = None,
    reschedule: RescheduleText = None,
    warm_up: WarmUpText = None,
    weibull: Weibull = 1.0,
    straggler_mtbf: StragglerText = None,
    straggler_slowdown: Slowdown = None,
    straggler_detect: StragglerDetect = None,
    elastic: Elastic = False,
    storage: StorageText = None,
    token_bytes: TokenBytes = None,
    tokens: Tokens = None,
    days: Days = 30.0,
    replications: Replications = 20,
    seed: Seed = 0,
    json: inputs.JsonFlag = False,
) -> int:
    """Goodput of a plan by the closed form and by simulation, with its best interval; 3 where it does not fit."""
    from planner.cli.output import note
    from planner.cli.predict import too_small
    from planner.cli.show_goodput import Costs, content, show
    from planner.goodput.assess import assess
    from planner.predict import predict

    faults: list[Fault] = []
    tau = _or_fault(faults, lambda: None if interval == AUTO else inputs.duration(interval, "--interval"))
    times = {"detect_s": detect, "reschedule_s": reschedule, "warm_up_s": warm_up, "straggler_node_s": straggler_mtbf,
             "straggler_detect_s": straggler_detect}  # fmt: skip
    said: dict[str, Any] = {
        "mode": checkpoint, "sharded": sharded, "weibull_shape": weibull, "elastic": elastic,
        "straggler_factor": straggler_slowdown,
    }  # fmt: skip
    words = {"straggler_node_s": "--straggler-mtbf", "straggler_detect_s": "--straggler-detect"}
    for name, text in times.items():
        option = words.get(name, inputs.option(name[:-2]))
        said[name] = _or_fault(faults, lambda t=text, o=option: None if t is None else inputs.duration(t, o))
    policy = _or_fault(faults, lambda: _policy(said))
    changes = _or_fault(faults, lambda: _changes(mtbf or [], spares, repair, storage or []))
    faults += _number_faults(token_bytes=token_bytes, tokens=tokens, days=days, replications=replications)
    if faults:
        raise InputError(faults)
    case = _case(source, cluster)
    case = replace(case, cluster=_changed(case.cluster, changes))
    step = predict(case.model, case.cluster, case.workload, case.layout, arrangement=case.arrangement)
    short = too_small(step)
    if short:
        note(short)
    found = assess(
        case.model, case.cluster, case.workload, case.layout, step.step_s.mid, policy,
        interval_s=tau, days=days, replications=replications, seed=seed, token_bytes=token_bytes,
    )  # fmt: skip
    costs = Costs.of(case, step, found, tokens)
    if json:
        from planner.cli.output import print_json

        print_json(content(case, found, costs, policy))
    else:
        show(case, found, costs, policy)
    return InfeasibleError.exit_code if short else 0


def _or_fault(faults: list[Fault], build: Any) -> Any:
    """What `build` gives; None with its faults noted."""
    try:
        return build()
    except InputError as error:
        faults.extend(error.faults)
        return None


def _policy(said: dict[str, Any]) -> Policy:
    """The policy of the options; a fault names the option."""
    from planner.goodput.policy import Policy

    names = {"policy.mode": "--checkpoint", "policy.weibull_shape": "--weibull",
             "policy.straggler_factor": "--straggler-slowdown"}  # fmt: skip
    try:
        return Policy(**{name: value for name, value in said.items() if value is not None})
    except InputError as error:
        raise InputError([replace(f, where=names.get(f.where, f.where)) for f in error.faults]) from None


def _number_faults(
    *, token_bytes: float | None, tokens: float | None, days: float, replications: int
) -> list[Fault]:
    """Numbers of options that make no sense."""
    found = []
    for option, value, fix in (
        ("--token-bytes", token_bytes, "4"), ("--tokens", tokens, "15e12"), ("--days", days, "30"),
    ):  # fmt: skip
        if value is not None and not 0.0 < value < math.inf:
            found.append(Fault(f"{value:g} is not a positive number", option, "", f"{option} {fix}"))
    if replications == 1:
        why, fix = "one run has no spread", "--replications 20, or 0 for the closed form"
        found.append(Fault("1 replication", "--replications", why, fix))
    return found


def _changes(mtbf: list[str], spares: int | None, repair: str | None, storage: list[str]) -> dict[str, Any]:
    """What the options say of the cluster, checked."""
    from hwmodels.reliability import ANY, KINDS
    from hwmodels.units import parse_bandwidth

    faults: list[Fault] = []
    hours: dict[str, float] = {}
    for word in mtbf:
        kind, equals, text = word.rpartition("=")
        kind = kind if equals else ANY
        if kind not in (*KINDS, ANY):
            what, fix = f"unknown kind {kind!r}", f"{', '.join(KINDS)}, or a duration alone"
            faults.append(Fault(what, "--mtbf", "", fix))
        elif kind in hours:
            faults.append(Fault(f"{word!r} is the second for {kind}", "--mtbf", "", "one of the two"))
        hours[kind] = _or_fault(faults, lambda t=text: inputs.duration(t, "--mtbf") / 3600.0)
    if ANY in hours and len(hours) > 1:
        why, fix = "the one without a kind counts every cause", "either it, or one for each kind"
        faults.append(Fault("a duration beside those of kinds", "--mtbf", why, fix))
    rates: dict[str, float] = {}
    for word in storage:
        name, _, text = word.partition("=")
        if name not in RATES:
            faults.append(Fault(f"unknown rate {name!r}", "--storage", "", " or ".join(RATES)))
            continue
        rates[name] = _or_fault(faults, lambda t=text: _named("--storage", lambda: parse_bandwidth(t)))
        if rates[name] == 0.0:
            faults.append(Fault(f"{word!r} moves nothing", "--storage", "", f"{name}=2GB/s"))
    repair_s = _or_fault(faults, lambda: None if repair is None else inputs.duration(repair, "--repair"))
    if faults:
        raise InputError(faults)
    return {"hours": hours, "spares": spares, "repair_s": repair_s, "rates": rates}


def _named(option: str, parse: Any) -> Any:
    """What `parse` gives; its faults with the option's name."""
    try:
        return parse()
    except InputError as error:
        raise InputError([replace(f, where=option) for f in error.faults]) from None


def _changed(cluster: Cluster, changes: dict[str, Any]) -> Cluster:
    """The cluster with what the options say in the place of what its file says."""
    from hwmodels.device import Coefficient
    from hwmodels.reliability import ANY, storage_of

    stated, hours = cluster.reliability, {k: Coefficient(v, "--mtbf") for k, v in changes["hours"].items()}
    if ANY in hours:
        cluster = replace(cluster, mtbf_gpu_hours=hours[ANY])
        stated = replace(stated, hours={})
    elif hours:
        stated = replace(stated, hours={**stated.hours, **hours})
    if changes["spares"] is not None:
        stated = replace(stated, spares=changes["spares"])
    if changes["repair_s"] is not None:
        stated = replace(stated, repair_s=Coefficient(changes["repair_s"], "--repair"))
    cluster = replace(cluster, reliability=stated)
    if not changes["rates"]:
        return cluster
    known = storage_of(cluster)
    other = "" if set(changes["rates"]) == set(RATES) else f"; the rest {known.source}"
    source = f"--storage {', '.join(sorted(changes['rates']))}{other}"
    return replace(cluster, storage=replace(known, **changes["rates"], source=source))


def _case(source: str, cluster: str | None) -> lay.Case:
    """The run of a plan, or the fastest layout of a scenario."""
    from pathlib import Path

    if source.endswith(".json"):
        return lay.case_of_plan(Path(source), cluster)
    from planner.cli.problem import problem_of
    from planner.search import search

    stated = {"seq_len": None, "gbs": None, "precision": None, "optimizer": None, "framework": None}
    problem = problem_of(source, None, cluster, stated, {}, None, 1)
    limits = problem.limits
    found = search(problem.model, problem.cluster, problem.workload, problem.space, top=1, **limits)
    return problem.case_of_row(found.rows[0])
