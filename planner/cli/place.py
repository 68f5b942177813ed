"""``place``: where the ranks of plans run on a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwmodels.errors import Fault, InputError
from planner.cli import inputs
from planner.cli import inputs_layout as lay

if TYPE_CHECKING:
    from planner.placement import Allocation, Placed
    from planner.placement.report import Told
    from planner.plan import Plan

Plans = Annotated[list[Path], typer.Argument(metavar="PLAN.json ...", help="One plan, or several jobs on one fabric.")]
NodesOf = Annotated[
    list[str] | None,
    typer.Option(
        "--nodes-of",
        metavar="0-3,8 | FILE",
        help="Nodes of a job, or a file with a node (and its host name) on each line; once for each plan.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="PATH", help="Write the plan with its placement, hosts and rank map beside it; "
                 "a folder for several."),
]  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("place", help="Place the ranks of a plan on the fabric; several plans: jobs side by side.")(place)


def place(
    plans: Plans,
    cluster: inputs.ClusterName = None,
    nodes_of: NodesOf = None,
    steps: Annotated[int, typer.Option("--steps", min=2, help="Steps of every job that are played (20).")] = 20,
    seed: Annotated[int, typer.Option("--seed", help="When jobs start against each other.")] = 0,
    out: Out = None,
    json: inputs.JsonFlag = False,
) -> None:
    """Place one plan, or play several jobs on the fabric that they share."""
    allocations = _allocations(nodes_of or [], len(plans))
    if len(plans) > 1:
        from planner.cli.place_jobs import side_by_side

        side_by_side(plans, cluster, allocations, steps, seed, out, json)
        return
    case, placed, said, allocation = placed_plan(plans[0], cluster, allocations[0] if allocations else None)
    files = write(out, case, placed, said, allocation) if out is not None else []
    show(case, placed, said, json)
    if files:
        from planner.cli.output import note

        note("written: " + ", ".join(map(str, files)))


def _allocations(texts: list[str], plans: int) -> list[Allocation]:
    """The nodes of every job, all faults of them at once."""
    from planner.placement import parse_nodes

    if texts and len(texts) != plans:
        what = f"{len(texts)} allocations for {plans} plans"
        raise InputError(Fault(what, "--nodes-of", "every job has its own nodes", "--nodes-of once for each plan"))
    found: list[Allocation] = []
    faults: list[Fault] = []
    for text in texts:
        try:
            found.append(parse_nodes(text))
        except InputError as error:
            faults.extend(error.faults)
    if faults:
        raise InputError(faults)
    return found


def case_on(path: Path, cluster: str | None) -> lay.Case:
    """The run of a plan, on its own cluster or another one; its placement kept where the cluster is its own."""
    from planner.plan_io import load_plan

    plan = load_plan(path)
    case = lay.case_of(plan, None if cluster == plan.cluster else cluster, str(path))
    if len(case.cluster.pools) > 1:
        why = "nodes of several pools are not alike, and stages are placed by `mixed`"
        raise InputError(Fault(f"{case.cluster_name} has several pools", str(path), why, "a cluster of one pool"))
    return case


def placed_plan(
    path: Path, cluster: str | None, allocation: Allocation | None
) -> tuple[lay.Case, Placed, Told, Allocation]:
    """The placement of one plan."""
    from planner.placement import place as choose
    from planner.placement.allocation import first_nodes
    from planner.placement.report import told

    case = case_on(path, cluster)
    have = allocation or first_nodes(case.cluster.fabric, case.layout.world)
    placed = choose(case.model, case.cluster, case.workload, case.layout, have)
    return case, placed, told(placed, case.model, case.workload, case.cluster), have


def plan_with(case: lay.Case, said: Told, name: str) -> Plan:
    """The plan of a placement, with the step that was predicted for it."""
    from planner.cli.plans import plan_of
    from planner.predict import predict

    whole = replace(case, layout=said.layout, plan=None, arrangement=None)
    return plan_of(whole, predict(case.model, case.cluster, case.workload, said.layout), name)


def write(out: Path, case: lay.Case, placed: Placed, said: Told, allocation: Allocation) -> list[Path]:
    """The plan, its hosts and its rank map."""
    from planner.files import write_text
    from planner.placement.report import host_lines, rank_lines
    from planner.plan_io import save_plan

    gpus = case.cluster.gpus_per_node
    plan = save_plan(plan_with(case, said, out.stem), out)
    hosts = write_text(out.with_suffix(".hosts"), "\n".join(host_lines(said, allocation, gpus)) + "\n")
    ranks = write_text(out.with_suffix(".ranks"), "\n".join(rank_lines(said, allocation, gpus)) + "\n")
    return [plan, hosts, ranks]


def show(case: lay.Case, placed: Placed, said: Told, json: bool) -> None:
    """The placement, as JSON or for a person."""
    from planner.cli.output import print_json
    from planner.placement.report import axis_rows, summary

    fabric = case.cluster.fabric
    content = summary(placed, said, fabric)
    if json:
        gpus = said.layout.placement or tuple(range(said.layout.world))
        seats = [list(divmod(int(gpu), case.cluster.gpus_per_node)) for gpu in gpus]
        print_json({"schema": 1, "cluster": case.cluster_name, "layout": said.layout, **content, "placement": seats})
        return
    from planner.cli.show import show_inputs

    show_inputs(replace(case, layout=replace(case.layout, placement=())))
    gain = placed.ordered_step_s / placed.step_s - 1.0
    print(f"step time          {placed.step_s:.4g} s placed, {placed.ordered_step_s:.4g} s in order ({gain:+.1%})")
    print(f"traffic on links   {placed.loads.seconds:.4g} s placed, {placed.ordered_loads.seconds:.4g} s in order")
    for row in axis_rows(placed, fabric):
        sent, over = row.bytes_per_gpu / 1e9, row.network_bytes_per_gpu / 1e9
        print(f"  {row.axis:<14} {row.where}: {row.groups} groups of {row.ranks}, {sent:.3g} GB a GPU and step "
              f"({over:.3g} over the network), {row.seconds * 1e3:.3g} ms")  # fmt: skip
    print(f"order              {said.layout.order}{': ' + '; '.join(said.flags) if said.flags else ''}")
    if said.hosts and said.hosts != tuple(range(len(said.hosts))):
        print(f"hosts              {', '.join(map(str, said.hosts))}, filled one after another")
    how = "all placements" if placed.exact else "a heuristic: candidates"
    print(f"measured           {placed.tried} ({how}), the best few priced as whole steps")
    for text in content["notes"]:
        print(f"note: {text}")
