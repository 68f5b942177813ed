"""How a predicted step, a ranked search and a comparison look on screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.cli.output import print_pairs, print_table, say

if TYPE_CHECKING:
    from planner.cli.inputs_layout import Case
    from planner.results import Comparison, Step

MOST_EXPLAINED = 60


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
    show_phases(step)
    show_memory(step)
    for note in step.notes:
        say(f"note: {note}")


def show_phases(step: Step) -> None:
    """Exposed seconds of each phase per pipeline rank, and what is hidden."""
    from planner.results import PHASES

    ranks = spread_of(len(step.phases))
    used = [
        name for name in PHASES if any(phases.get(name, 0.0) for phases in step.phases) or step.hidden_comm_s.get(name)
    ]
    if not used:
        return
    rows = []
    for name in used:
        values = [step.phases[r].get(name, 0.0) for r in ranks]
        share = sum(p.get(name, 0.0) for p in step.phases) / len(step.phases) / step.step_s.mid
        rows.append(
            (
                name,
                f"{100 * share:.1f}",
                *(f"{1e3 * v:,.2f}" for v in values),
                f"{1e3 * step.hidden_comm_s.get(name, 0.0):,.2f}",
            )
        )
    say()
    print_table("time by phase (ms, exposed)", ("phase", "% of step", *(f"stage {r}" for r in ranks), "hidden"), rows)


def show_memory(step: Step) -> None:
    """Peak GiB of each pipeline rank by category."""
    from planner.results import MEMORY_CATEGORIES

    if not step.memory:
        return
    stages = [step.memory[r] for r in spread_of(len(step.memory))]
    rows = [(name, *(f"{m.by_category.get(name, 0) / 2**30:,.2f}" for m in stages)) for name in MEMORY_CATEGORIES]
    rows.append(("peak", *(f"{m.peak_bytes / 2**30:,.2f}" for m in stages)))
    rows.append(("capacity", *(f"{m.capacity_bytes / 2**30:,.2f}" for m in stages)))
    rows.append(("headroom %", *(f"{100 * (1 - m.peak_bytes / m.capacity_bytes):.1f}" for m in stages)))
    say()
    print_table("peak memory by category (GiB a rank)", ("category", *(f"stage {m.stage}" for m in stages)), rows)


def spread_of(n: int, most: int = 8) -> list[int]:
    """At most `most` of the indices 0..n-1, ends included, evenly spread."""
    if n <= most:
        return list(range(n))
    return sorted({round(i * (n - 1) / (most - 1)) for i in range(most)})


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


def show_comparison(found: Comparison) -> None:
    """Measured against predicted, phase by phase."""
    from hwmodels.units import format_seconds

    say()
    say(
        f"{found.plan}: predicted {format_seconds(found.predicted_s)}, measured {format_seconds(found.measured_s)}, "
        f"error {found.error_pct:+.1f} %" + ("" if found.comparable else "  (unstable run: not compared)")
    )
    rows = [
        (
            p.phase,
            f"{1e3 * p.predicted_s:,.2f}",
            f"{1e3 * p.measured_s:,.2f}",
            f"{p.error_pct:+.1f}" if p.error_pct is not None else "-",
            f"{p.share_of_step_pct:.1f}",
        )
        for p in found.phases
    ]
    print_table("", ("phase", "predicted ms", "measured ms", "error %", "% of step"), rows)
    for note in found.notes:
        say(f"note: {note}")
