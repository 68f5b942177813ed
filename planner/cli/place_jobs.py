"""Several plans of ``place``: jobs on one fabric."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwmodels.errors import Fault, InputError

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster
    from planner.cli.inputs_layout import Case
    from planner.placement import Allocation
    from planner.placement.jobs import Shared


def side_by_side(
    plans: list[Path], cluster: str | None, given: list[Allocation], steps: int, seed: int, out: Path | None, json: bool
) -> None:
    """Play the jobs of the plans beside each other, and say which nodes would be better."""
    from planner.cli.output import note
    from planner.cli.place import case_on
    from planner.placement import jobs

    cases = [case_on(path, cluster) for path in plans]
    names = {case.cluster_name for case in cases}
    if len(names) > 1:
        what = f"the plans are for {', '.join(sorted(names))}"
        raise InputError(Fault(what, "--cluster", "jobs share one fabric", "--cluster with the whole of it"))
    requests = [
        jobs.Request(f"{i + 1}:{path.stem}", case.model, case.workload,
                     replace(case.layout, placement=()) if given else case.layout)
        for i, (path, case) in enumerate(zip(plans, cases, strict=True))
    ]  # fmt: skip
    fabric = cases[0].cluster
    nodes = tuple(given) or jobs.in_turn(requests, fabric)
    jobs.check_nodes(requests, nodes, fabric)
    seats = [jobs.seat(r, fabric, have, chosen=False) for r, have in zip(requests, nodes, strict=True)]
    now = jobs.side_by_side(seats, fabric, steps, seed)
    instead = jobs.better(requests, fabric, now, steps, seed)
    files = write(out, cases, instead or now, fabric) if out is not None else []
    show(now, instead, fabric, json, seed)
    if files:
        note("written: " + ", ".join(map(str, files)))


def write(out: Path, cases: list[Case], found: Shared, cluster: Cluster) -> list[Path]:
    """The plans of the jobs on the nodes that are best for them."""
    from planner.cli.plans import plan_of
    from planner.plan_io import save_plan
    from planner.predict import predict

    files = []
    for case, seat in zip(cases, found.seats, strict=True):
        own = replace(case, layout=seat.layout, plan=None, arrangement=None)
        step = predict(case.model, cluster, case.workload, seat.layout)
        name = seat.request.name.replace(":", "-")
        files.append(save_plan(plan_of(own, step, name), out / f"{name}.json"))
    return files


def content(found: Shared, fabric: Cluster) -> dict[str, Any]:
    """One allocation of the jobs, for JSON."""
    rows = []
    for seat, alone, together in zip(found.seats, found.alone_s, found.together_s, strict=True):
        by_link = {
            name: {phase.name: float(phase.nbytes[i]) for phase in seat.job.phases if phase.nbytes[i]}
            for i, name in enumerate(found.links)
            if any(phase.nbytes[i] for phase in seat.job.phases)
        }
        rows.append({
            "name": seat.request.name, "nodes": list(seat.allocation.nodes), "layout": seat.layout.label(),
            "alone_s": alone, "together_s": together, "slowdown": together / alone, "bytes_by_link": by_link,
        })  # fmt: skip
    return {"jobs": rows, "contended": found.contended()}


def show(now: Shared, instead: Shared | None, cluster: Cluster, json: bool, seed: int) -> None:
    """Both allocations, as JSON or for a person."""
    from planner.cli.output import print_json
    from planner.placement.report import NOTE

    if json:
        proposal = content(instead, cluster) if instead is not None else None
        print_json({"schema": 1, "cluster": cluster.name, "seed": seed, **content(now, cluster), "better": proposal,
                    "notes": [NOTE]})  # fmt: skip
        return
    _table("jobs side by side", now)
    if instead is None:
        print("no better nodes were found for these jobs")
    else:
        _table("better", instead)
    print(f"note: {NOTE}")


def _table(title: str, found: Shared) -> None:
    print(title)
    for seat, alone, together in zip(found.seats, found.alone_s, found.together_s, strict=True):
        nodes = ",".join(map(str, seat.allocation.nodes))
        print(f"  {seat.request.name:<20} nodes {nodes}: {alone:.4g} s alone, {together:.4g} s beside the others "
              f"({together / alone - 1.0:+.1%})")  # fmt: skip
    for link, users in found.contended().items():
        print(f"  {link}: " + ", ".join(f"{name} {nbytes / 1e9:.3g} GB a step" for name, nbytes in users.items()))
