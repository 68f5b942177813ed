"""``why``: two plans against each other; ``sensitivity``: what would help a plan, or the best of a scenario, most."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwmodels.errors import Fault, InputError
from planner.cli import inputs

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster
    from planner.cli.inputs_layout import Case
    from planner.layout import Layout
    from planner.plan import Workload
    from planner.results import Step
    from planner.why import Change, Difference, Effect, Told
    from planner.why.sensitivity import Outcome, Search


LEAST_S = 1e-9
"""Differences below it are rounding."""

LEAST_SHARE = 0.02
"""Share of the gap from which a phase's cause is told; the table has them all."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("why", help="Why one plan beats another: phase by phase, byte by byte.")(why)
    app.command("sensitivity", help="Which change of hardware or request would help most.")(sensitivity)


def why(
    one: Annotated[Path, typer.Argument(metavar="A.json", help="A plan (search and predict write them).")],
    other: Annotated[Path, typer.Argument(metavar="B.json", help="The plan that it is held against.")],
    json: inputs.JsonFlag = False,
) -> None:
    """Predict both plans and explain the gap."""
    from planner.cli import inputs_layout as lay
    from planner.cli.output import print_json
    from planner.why import difference

    found = difference(*(_told(lay.case_of_plan(path), path.stem) for path in (one, other)))
    if json:
        print_json(found.to_dict())
    else:
        _show(found)


def _told(case: Case, name: str) -> Told:
    from planner.predict import predict
    from planner.why import Told

    step = predict(case.model, case.cluster, case.workload, case.layout, arrangement=case.arrangement, explain=True)
    tokens = int(case.workload.gbs * case.workload.tokens_per_sequence)
    return Told(name, case.model.name, case.cluster_name, case.workload, case.layout, step, tokens)


def _show(found: Difference) -> None:
    from hwmodels.units import format_bytes, format_seconds
    from planner.cli.output import print_pairs, print_table, say

    print_pairs([(told.name, f"{told.layout.label()} on {told.cluster}") for told in (found.one, found.other)])
    say()
    say(headline(found))
    names = (found.one.name, found.other.name)
    if found.fields:
        say()
        print_table("what differs", ("", *names), found.fields, left=3)
    gap = found.seconds[0] - found.seconds[1]
    rows = []
    for p in found.phases:
        sent = [format_bytes(s.intra_node + s.inter_node) if s.intra_node + s.inter_node else "" for s in p.sent]
        share = f"{100 * p.gap_s / gap:+.0f}%" if abs(p.gap_s) > 0.005 * abs(gap) else ""
        times = (format_seconds(p.one_s), format_seconds(p.other_s), _signed(p.gap_s), share)
        hidden = [format_seconds(h) if h else "" for h in p.hidden_s]
        rows.append((p.phase, *times, *hidden, *sent))
    rows.append(("all", *(format_seconds(s) for s in found.seconds), _signed(gap), "100%" if gap else "", *[""] * 4))
    heads = ("phase", *names, "difference", "of the gap", *(f"hidden {n}" for n in "AB"), *(f"sent {n}" for n in "AB"))
    say()
    print_table(f"exposed time by phase, mean over the pipeline ranks, {found.unit}", heads, rows)
    say()
    for p in found.phases:
        if p.why and abs(p.gap_s) > LEAST_SHARE * max(abs(gap), 1e-3 * max(found.seconds)):
            say(f"{p.phase}: {p.why}")
    _show_ops(found)
    capacity = [format_bytes(told.fullest().capacity_bytes) for told in (found.one, found.other)]
    whole = ("all", sum(a for _, a, _ in found.memory), sum(b for _, _, b in found.memory))
    sizes = [(n, format_bytes(a), format_bytes(b), _signed_bytes(a - b)) for n, a, b in (*found.memory, whole)]
    say()
    print_table(f"peak memory of the fullest rank, of {' and '.join(dict.fromkeys(capacity))}",
                ("category", *names, "difference"), sizes)  # fmt: skip


def _show_ops(found: Difference) -> None:
    from hwmodels.units import format_seconds
    from planner.cli.output import print_table, say

    rows = [
        (o.op, o.phase, format_seconds(o.one_s), format_seconds(o.other_s), _signed(o.gap_s),
         *(f"{r:,.0f} x {format_seconds(e)}" if r else "none" for r, e in zip(o.runs, o.each_s, strict=True)))
        for o in found.ops
    ]  # fmt: skip
    if rows:
        heads = ("op", "phase", found.one.name, found.other.name, "difference", "A: runs a rank", "B: runs a rank")
        say()
        print_table("ops with the largest differences, exposed seconds", heads, rows, left=2)


def headline(found: Difference) -> str:
    """Which of the two is faster, by how much, and how sure that is."""
    from hwmodels.units import format_seconds

    first, second = found.one, found.other
    lead, lag = (first, second) if found.gap <= 0 else (second, first)
    fast, slow = sorted(found.seconds)
    if fast == slow:
        return f"{first.name} and {second.name} take the same, {format_seconds(fast)} ({found.unit})."
    sure = "their intervals are apart" if found.certain else (
        "their intervals overlap: the shared laws' errors move both alike, but a measured order may differ"
    )  # fmt: skip
    return (
        f"{lead.name} takes {format_seconds(fast)}, {lag.name} {format_seconds(slow)} ({found.unit}): {lead.name} is "
        f"{slow / fast - 1.0:.1%} faster; {sure}."
    )


def _signed(seconds: float) -> str:
    from hwmodels.units import format_seconds

    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}" if abs(seconds) > LEAST_S else "0"


def _signed_bytes(nbytes: int) -> str:
    from hwmodels.units import format_bytes

    return f"{'-' if nbytes < 0 else '+'}{format_bytes(abs(nbytes))}" if nbytes else "0"


def sensitivity(
    what: Annotated[str, typer.Argument(metavar="PLAN.json|SCENARIO", help="A plan, a scenario or a shipped one.")],
    change: Annotated[
        list[str] | None, typer.Option("--change", metavar="NAME", help="Only this change (repeatable).")
    ] = None,
    search: Annotated[
        bool | None,
        typer.Option("--search/--no-search", help="Also find the best layout under each change (on for a scenario)."),
    ] = None,
    json: inputs.JsonFlag = False,
) -> None:
    """Rank what a faster link, another batch, more or less memory and other changes would do."""
    from planner.cli.output import print_json
    from planner.cli.progress import Progress
    from planner.why.sensitivity import sensitivity as run

    changes = chosen(change or [])
    plan = what.endswith(".json")
    with Progress() as progress:
        progress.stage(f"sensitivity of {what}")
        if plan:
            from planner.cli import inputs_layout as lay

            case = lay.case_of_plan(Path(what))
            finder = _finder(case) if search else None
        else:
            case, finder = _best_case(what)
            finder = None if search is False else finder
        found = run(case.model, case.cluster, case.workload, case.layout,
                    changes=changes, search=finder, progress=progress.log)  # fmt: skip
    if json:
        content = {"schema": 1, "layout": case.layout, "effects": [e.to_dict() for e in found]}
        print_json(content)
        return
    from planner.cli.show import show_inputs

    show_inputs(case)
    _show_effects(found, case, searched=finder is not None)


def chosen(names: list[str]) -> list[Change]:
    """The changes of these names, all where none is given.

    Raises
    ------
    InputError
        With every unknown name.
    """
    from planner.why import CHANGES

    known = {change.name: change for change in CHANGES}
    unknown = [Fault(f"{name!r} is no change", "--change", "", ", ".join(known)) for name in names if name not in known]
    if unknown:
        raise InputError(unknown)
    return [known[name] for name in names] or list(CHANGES)


def _finder(case: Case) -> Search:
    """The default search for what a plan trains."""
    from planner.search import search

    def find(cluster: Cluster, workload: Workload) -> tuple[Layout, Step]:
        row = search(case.model, cluster, workload, top=1, nearest=False).rows[0]
        return row.layout, row.step

    return find


def _best_case(scenario: str) -> tuple[Case, Search]:
    """The best plan of a scenario, in the precision and with the switches of its row, and its search elsewhere."""
    from dataclasses import replace

    from planner.cli.problem import problem_of_scenario
    from planner.scenario import load_scenario

    problem = problem_of_scenario(load_scenario(scenario))
    once = {"objective": problem.objective, "top": 1}

    def find(cluster: Cluster, workload: Workload) -> tuple[Layout, Step]:
        row = replace(problem, cluster=cluster, workload=workload).search(**once, nearest=False).rows[0]
        return row.layout, row.step

    return problem.case_of_row(problem.search(**once).rows[0]), find


def _show_effects(found: list[Effect], case: Case, *, searched: bool) -> None:
    from planner.cli.output import print_table, say

    rows = []
    for effect in found:
        cells = [effect.change.name, effect.change.about, *_cells(effect.same)]
        if searched and effect.best is not None:
            moved = effect.best.layout
            label = "the same" if moved == case.layout else (moved.label() if moved is not None else "")
            cells += [*_cells(effect.best), label]
        rows.append(cells)
    heads = ["change", "of", "same layout", "per GPU"]
    if searched:
        heads += ["best layout", "per GPU", "which is"]
    say()
    print_table("tokens a second against today's, most helpful first", heads, rows, left=2)


def _cells(outcome: Outcome) -> list[str]:
    """Gain of all tokens a second, and of those of a GPU-second; or why nothing runs."""
    if outcome.gain is None or outcome.cheaper is None:
        return [outcome.why_not, ""]
    return [f"{100 * outcome.gain:+.1f}%", f"{100 * outcome.cheaper:+.1f}%"]
