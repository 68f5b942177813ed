"""What ``search`` prints: what was asked and dropped, the ranked table, or a front with its scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.cli.problem import Problem
    from planner.search import Row, SearchResult
    from planner.search.objectives import Objective

RANKED = (
    "layout",
    "#",
    "step ms",
    "+-%",
    "tok/s/GPU",
    "MFU %",
    "$/1M tok",
    "peak GiB",
    "free %",
    "bubble %",
    "comm %",
    "memory",
    "",
)
SHOWN = ("step_time", "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "usd_per_mtoken", "peak_memory", "memory_headroom")
"""Objectives that the table shows anyway, as they are or by what follows from them."""
WIDTH, HEIGHT = 64, 16
"""Cells of a scatter."""


def show(result: SearchResult, problem: Problem) -> None:
    """What was asked, what was dropped and why, and the ranked table."""
    from planner.cli.output import print_pairs, print_table, say

    print_pairs(problem.echo())
    say()
    dropped = sum(result.dropped.values())
    say(f"{result.considered:,} layouts considered, {dropped:,} dropped, {result.priced:,} priced, "
        f"{result.simulated:,} simulated, {result.contended} with contention, in {result.wall_s:.2f} s")  # fmt: skip
    reasons = sorted(result.dropped.items(), key=lambda item: -item[1])
    widest = max((count for _, count in reasons), default=1)
    bars = [(rule, "#" * max(1, round(24 * count / widest)), f"{count:,}") for rule, count in reasons]
    print_table("dropped by", ("rule", "", "layouts"), bars, left=2)
    say()
    names = result.objectives
    title = f"layouts by {names[0].replace('_', ' ')}, best first"
    if len(names) > 1:
        title = f"the front of {', '.join(name.replace('_', ' ') for name in names)}"
    print_table(title, heads(result), ranked(result, problem))
    if len(names) > 1:
        say()
        show_front(result)
    say(proof(result))
    if any(row.step.verdict != "fits" for row in result.rows):
        say("at risk: the middle figure fits with the headroom asked for, the high end of its interval does not.")
    played = [(row.rank, row.contended_s) for row in result.rows if row.contended_s is not None]
    if played:
        each = ", ".join(f"{1e3 * seconds:,.1f} ms of row {rank}" for rank, seconds in played)
        say(f"with transfers that share links, event by event: {each}")
    for text in result.notes:
        say(f"note: {text}")


def proof(result: SearchResult) -> str:
    """What the marks mean and how sure the answer is."""
    if len(result.objectives) > 1:
        sure = "every other layout has a lower bound that a row beats" if result.optimal else "not proven"
        return f"No layout beats a row in all of these. The front is {'proven: ' if result.optimal else ''}{sure}."
    slower = "every other layout is slower by a lower bound"
    if result.objectives[0] != "step_time":
        slower = "every other layout is worse by a bound"
    sure = f"proven: {slower}" if result.optimal else "not proven"
    return f"* not beaten in both time and memory. The order is {sure}."


def added(result: SearchResult) -> list[Objective]:
    """Objectives of the answer that the table does not show anyway."""
    from planner.search.objectives import OBJECTIVES

    return [OBJECTIVES[name] for name in result.objectives if name not in SHOWN]


def heads(result: SearchResult) -> tuple[str, ...]:
    """The heads of the table: those of `RANKED`, with the objectives that they lack."""
    return (*RANKED[:2], *(objective.title for objective in added(result)), *RANKED[2:])


def label(row: Row, problem: Problem) -> str:
    """A layout, with its precision and switches where the search varies them."""
    from planner.frameworks.switches import described

    parts = [row.layout.label() if row.use is None else f"{row.layout.label()} on {row.use.label}"]
    if row.workload.precision != problem.workload.precision or len(problem.space.precision) > 1:
        parts.append(row.workload.precision)
    varied = {name for name, _ in problem.space.switches}
    set_to = tuple(pair for pair in row.workload.switches if pair[0] in varied)
    return " ".join([*parts, *([described(set_to)] if set_to else [])])


def ranked(result: SearchResult, problem: Problem) -> list[tuple[str, ...]]:
    """The cells of the ranked table, columns as in `heads`."""
    rows: list[tuple[str, ...]] = []
    for row, record in zip(result.rows, result.records(), strict=True):
        usd, mid = record["usd_per_mtoken"], record["step_s"]
        rows.append((
            label(row, problem),
            str(row.rank),
            *(figure(objective, row.figures[objective.name]) for objective in added(result)),
            f"{1e3 * mid:,.1f}",
            f"{100 * (record['step_high_s'] / mid - 1):.0f}",
            f"{record['tokens_per_s_per_gpu']:,.0f}",
            f"{100 * record['mfu']:.1f}",
            "-" if usd is None else f"{usd:.3f}",
            f"{record['peak_bytes'] / 2**30:,.1f}",
            f"{100 * (1 - record['peak_bytes'] / record['capacity_bytes']):.0f}",
            f"{100 * record['bubble_fraction']:.1f}",
            f"{100 * record['exposed_comm_fraction']:.1f}",
            row.step.verdict,
            "*" if record["pareto"] else "",
        ))  # fmt: skip
    return rows


def figure(objective: Objective, value: float) -> str:
    """A value of an objective with its unit."""
    from planner.search.written import with_unit

    small = objective.dimension in ("kwh", "kg") and value < 1000
    return with_unit(objective.dimension, value) or (f"{value:,.4g}" if small else f"{value:,.0f}")


def show_front(result: SearchResult) -> None:
    """A scatter of the front: its first objective to the right, its second upwards, a row's number or letter each."""
    from planner.cli.output import say
    from planner.search.objectives import OBJECTIVES

    first, second = (OBJECTIVES[name] for name in result.objectives[:2])
    points = [(row.figures[first.name], row.figures[second.name]) for row in result.rows]
    lines = scatter(points, [mark(row.rank) for row in result.rows])
    top, bottom = (figure(second, end(y for _, y in points)) for end in (max, min))
    left, right = (figure(first, end(x for x, _ in points)) for end in (min, max))
    margin = max(len(top), len(bottom))
    say(f"{second.title} upwards, {first.title} to the right; rows 1 to 9, then a to z, then +")
    for i, line in enumerate(lines):
        label = top if i == 0 else bottom if i == len(lines) - 1 else ""
        say(f"{label:>{margin}} |{line}".rstrip())
    say(f"{'':>{margin}} +{'-' * WIDTH}")
    say(f"{'':>{margin}}  {left}{right:>{WIDTH - len(left)}}")


def mark(rank: int) -> str:
    """What stands for a row in a scatter."""
    return "0123456789abcdefghijklmnopqrstuvwxyz"[rank] if rank < 36 else "+"


def scatter(points: Sequence[tuple[float, float]], marks: Sequence[str]) -> list[str]:
    """Lines of `WIDTH` cells, the first one on top, with the mark of each point; the first of several in a cell."""

    def cell(value: float, values: Sequence[float], cells: int) -> int:
        low, high = min(values), max(values)
        return round((value - low) / (high - low) * (cells - 1)) if high > low else 0

    xs, ys = [x for x, _ in points], [y for _, y in points]
    lines = [[" "] * WIDTH for _ in range(HEIGHT)]
    for (x, y), sign in reversed(list(zip(points, marks, strict=True))):
        lines[HEIGHT - 1 - cell(y, ys, HEIGHT)][cell(x, xs, WIDTH)] = sign
    return ["".join(line) for line in lines]
