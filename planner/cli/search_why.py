"""``search --why``: why layouts with some values are not the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.cli.problem import Problem
    from planner.search.absent import Absence
    from planner.search.nothing import Ask

LEAST_SHARE = 0.002
"""Share of the first row's step below which a phase's difference is not told."""

SAME = 5e-4
"""Share of the first row's step below which a layout is as fast: no more is told of a per cent."""


def answer_why(problem: Problem, text: str, json: bool) -> None:
    """Explain, and print."""
    from planner.cli.output import print_json
    from planner.cli.progress import Progress
    from planner.search.absent import absent, read_values

    asked = read_values(text)
    objectives = problem.pareto or (problem.objective,)
    with Progress() as progress:
        progress.stage(f"why not {', '.join(f'{name}={value}' for name, value in asked.items())}")
        found = absent(ask_of(problem), asked, problem.search, objectives)
    if json:
        print_json(found.to_dict())
    else:
        show(found, problem)


def ask_of(problem: Problem) -> Ask:
    """The request of a problem as a whole."""
    from planner.memory import HEADROOM
    from planner.search.nothing import Ask
    from planner.search.question import Target

    limits = problem.limits
    return Ask(
        problem.model, problem.cluster, problem.workload, problem.space, tuple(limits.get("where", ())),
        limits.get("memory_headroom", HEADROOM), limits.get("target") or Target(),
    )  # fmt: skip


def show(found: Absence, problem: Problem) -> None:
    """The reasons in sentences, and the phases in which the best such layout loses time."""
    from planner.cli.output import print_pairs, print_table, say

    print_pairs(problem.echo())
    say()
    for line in sentences(found, problem.pareto):
        say(line)
    rows = phase_rows(found)
    if rows and found.best is not None and found.best.layout != found.first.layout:
        say()
        names = (found.best.layout.label(), found.first.layout.label())
        print_table("exposed time by phase, mean over pipeline ranks", ("phase", *names, "difference"), rows)


def sentences(found: Absence, pareto: tuple[str, ...] = ()) -> list[str]:
    """The reasons, each a sentence."""
    from hwmodels.units import format_bytes, format_seconds

    asked = " ".join(f"{name}={value}" for name, value in found.asked.items())
    lines = [f"{text}." for text in found.unsearched]
    first = found.first.step.step_s.mid
    if found.best is None:
        return [*lines, f"No layout with {asked} can be an answer: {found.excluded.rstrip('.')}."]
    best, seconds = found.best, found.best.step.step_s.mid
    if best.layout == found.first.layout:
        return [*lines, f"{best.layout.label()} is the first row of the answer: it has {asked}."]
    behind = "" if pareto else f", behind row {found.ranks}"
    place = f", row {found.rank} of the answer" if found.rank is not None else behind
    if found.rank is not None and found.unsearched:
        place = f"; it would be row {found.rank}"
    peaks = [format_bytes(max(m.peak_bytes for m in row.step.memory)) for row in (best, found.first)]
    lines.append(f"The best layout with {asked} is {best.layout.label()}{place}: {format_seconds(seconds)} a step "
                 f"and {peaks[0]} at the peak.")  # fmt: skip
    if found.dominated_by is not None:
        beaten = ", ".join(f"{name} {_value(name, found.dominated_by)}" for name in pareto)
        own = ", ".join(_value(name, best) for name in pareto)
        lines.append(f"It is not on the front: {found.dominated_by.layout.label()} has {beaten}, against {own}.")
        return lines
    if pareto:
        lines.append("It is on the front." if not found.unsearched else "It would be on the front.")
        return lines
    if abs(seconds / first - 1.0) < SAME:
        peak = "" if peaks[0] == peaks[1] else f", {peaks[1]}"
        lines.append(f"It is as fast as row 1, {found.first.layout.label()} ({format_seconds(first)}{peak}).")
        return lines
    worst = max(found.gaps, key=lambda name: found.gaps[name])
    lines.append(
        f"It takes {seconds / first - 1.0:+.1%} against row 1, {found.first.layout.label()} "
        f"({format_seconds(first)}, {peaks[1]}), most of it {worst}."
    )
    return lines


def _value(name: str, row: object) -> str:
    from planner.cli.search_table import figure
    from planner.search.objectives import OBJECTIVES

    return figure(OBJECTIVES[name], row.figures[name])  # type: ignore[attr-defined]


def phase_rows(found: Absence) -> list[tuple[str, ...]]:
    """Cells of the table of phases that differ."""
    from hwmodels.units import format_seconds

    if found.best is None:
        return []
    steps = (found.best.step, found.first.step)
    rows = []
    for name, gap in found.gaps.items():
        if abs(gap) < LEAST_SHARE * found.first.step.step_s.mid:
            continue
        means = [sum(p[name] for p in step.phases) / len(step.phases) for step in steps]
        rows.append((name, *map(format_seconds, means), f"{'-' if gap < 0 else '+'}{format_seconds(abs(gap))}"))
    whole = steps[0].step_s.mid - steps[1].step_s.mid
    sign = "-" if whole < 0 else "+"
    return [
        *rows, ("all", *(format_seconds(s.step_s.mid) for s in steps), f"{sign}{format_seconds(abs(whole))}")
    ]  # fmt: skip
