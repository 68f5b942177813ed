"""How a predicted step looks on screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.cli.output import print_pairs, print_table, say, show_table

if TYPE_CHECKING:
    from planner.cli.inputs_layout import Case
    from planner.replay import Replay
    from planner.results import Step


def show_inputs(case: Case) -> None:
    """Echo what was resolved, so that a wrong default is seen at once."""
    from hwmodels.pools import described

    work, cluster = case.workload, case.cluster
    model = f"{case.model.name}: {case.model.parameters:,} parameters, {case.model.n_layers} layers"
    ranks = f"{case.cluster_name}: {described(cluster)}"
    trained = f"seq_len {work.seq_len}, gbs {work.gbs}, {work.precision}, {work.optimizer}"
    trained = ", ".join(filter(None, (trained, work.described())))
    pairs = [
        ("model", model),
        ("cluster", ranks),
        ("workload", f"{trained}, framework {work.framework}"),
        ("layout", case.layout.label()),
    ]
    if any(layer.is_moe for layer in case.model.layers):
        from planner.layout import both_grids

        pairs.append(("grids", both_grids(case.layout)))
    print_pairs(pairs)


def show_step(step: Step) -> None:
    """A predicted step: the headline, where the time goes, where the memory goes."""
    from hwmodels.units import format_percent, format_seconds
    from reports import tables

    span = step.step_s
    say()
    print_pairs(
        [
            ("step time", format_seconds(span.mid)),
            ("  interval", f"{format_seconds(span.low)} .. {format_seconds(span.high)}"),
            ("  perfect overlap", format_seconds(step.lower_bound_s)),
            ("  no overlap", format_seconds(step.upper_bound_s)),
            ("throughput", f"{step.tokens_per_s_per_gpu:,.0f} tokens/s/GPU"),
            ("MFU / HFU", f"{format_percent(step.mfu)} / {format_percent(step.hfu)}"),
            ("bubble", format_percent(step.bubble_fraction)),
            ("cost", f"${step.usd_per_mtoken:.3f} per 1M tokens" if step.usd_per_mtoken is not None else ""),
            ("energy", energy_text(step)),
            ("memory", tables.memory_peak(step)),
        ]
    )
    for table in (tables.breakdown(step, "time of a step, exposed"), tables.memory(step, "peak memory by stage")):
        say()
        show_table(table)
    for note in step.notes:
        say(f"note: {note}")


def energy_text(step: Step) -> str:
    """Energy in kWh and kilograms of CO2 of a million tokens; empty where the device's power is not known."""
    if step.energy_kwh_per_mtoken is None or step.co2_kg_per_mtoken is None:
        return ""
    return f"{step.energy_kwh_per_mtoken:.3g} kWh, {step.co2_kg_per_mtoken:.3g} kg CO2 per 1M tokens (assumed watts)"


def show_replay(step: Step, played: Replay) -> None:
    """The simulated step beside the predicted one."""
    from hwmodels.units import format_percent, format_seconds

    change = 100 * (played.step_s / step.step_s.mid - 1)
    say()
    print_pairs(
        [
            ("simulated", f"{format_seconds(played.step_s)} ({change:+.2f}% against the undisturbed step)"),
            ("  idle", f"{format_percent(played.idle_fraction)} of the step on compute, waits for transfers included"),
        ]
    )


def show_explain(rows: Sequence[Mapping[str, Any]]) -> None:
    """The chain from a step down to its sources, one op a row, the laws numbered below."""
    from hwmodels.units import format_percent, format_seconds
    from planner.cli.output import say

    if not rows:
        return
    laws = list(dict.fromkeys(row["source"] for row in rows))
    header = ["op", "kind", "phase", "group", "dims", "runs", "each", "a step", "exposed", "hidden", "+-", "law"]
    cells = [
        (
            f"{row['block']} {row['op']}",
            row["kind"],
            row["phase"],
            row["group"],
            " ".join(f"{name}={plain(value)}" for name, value in row["dims"].items()),
            f"{row['runs_per_step']:,}",
            format_seconds(row["seconds_each"]),
            format_seconds(row["seconds_per_step"]),
            *("" if row[part] is None else format_seconds(row[part]) for part in ("exposed_s", "hidden_s")),
            format_percent(row["high_s"] / row["seconds_each"] - 1.0),
            f"[{laws.index(row['source']) + 1}]",
        )
        for row in rows
    ]
    say()
    print_table(
        "where every millisecond comes from, on one rank of each group, layers of all stages", header, cells, left=5
    )
    say()
    for number, law in enumerate(laws, 1):
        say(f"[{number}] {law}")


def plain(value: Any) -> str:
    """A cell: four significant digits for numbers, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.4g}"
    return str(value)
