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
    work, cluster = case.workload, case.cluster
    model = f"{case.model.name}: {case.model.parameters:,} parameters, {case.model.n_layers} layers"
    ranks = f"{case.cluster_name}: {cluster.n_ranks} x {cluster.device.name}, {cluster.gpus_per_node} a node"
    trained = f"seq_len {work.seq_len}, gbs {work.gbs}, {work.precision}, {work.optimizer}"
    print_pairs(
        [
            ("model", model),
            ("cluster", ranks),
            ("workload", f"{trained}, framework {work.framework}"),
            ("layout", case.layout.label()),
        ]
    )


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
            ("memory", step.verdict),
        ]
    )
    for table in (tables.breakdown(step, "time of a step, exposed"), tables.memory(step, "peak memory by stage")):
        say()
        show_table(table)
    for note in step.notes:
        say(f"note: {note}")


def show_replay(step: Step, played: Replay) -> None:
    """The simulated step beside the predicted one."""
    from hwmodels.units import format_percent, format_seconds

    change = 100 * (played.step_s / step.step_s.mid - 1)
    say()
    print_pairs(
        [
            ("simulated", f"{format_seconds(played.step_s)} ({change:+.2f}% against the undisturbed step)"),
            ("  bubble", format_percent(played.bubble_fraction)),
        ]
    )


def show_explain(rows: Sequence[Mapping[str, Any]]) -> None:
    """The chain from the step time down to datasheet figures and coefficients."""
    if not rows:
        return
    header = list(dict.fromkeys(key for row in rows for key in row))
    cells = [tuple(plain(row.get(key)) for key in header) for row in rows]
    say()
    print_table("where every millisecond and byte comes from", header, cells, left=len(header))


def plain(value: Any) -> str:
    """A cell: four significant digits for numbers, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.4g}"
    return str(value)
