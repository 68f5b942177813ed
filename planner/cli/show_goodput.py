"""How goodput looks on screen, and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from planner.cli.output import print_pairs, print_table, say

if TYPE_CHECKING:
    from planner.cli.inputs_layout import Case
    from planner.goodput.assess import Assessment
    from planner.goodput.policy import Policy
    from planner.results import Step

WIDTH = 40
CAUSES = {
    "checkpoint": "held up by checkpoints",
    "rework": "done again after failures",
    "detection": "until failures are noticed and ranks start",
    "repair": "waiting for repairs",
    "restart": "loading and warming up",
    "straggler": "slowed down by and exchanging stragglers",
    "shrunk": "training on fewer replicas",
}
EVIDENCE = (
    "no measured evidence: failure rates are those of one published run or assumed, times of checkpoints are sizes "
    "over bandwidths, and no goodput was compared with a measured one"
)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a run delivers and costs.

    Attributes
    ----------
    tokens_per_s, effective_tokens_per_s : float
        Of the whole job, undisturbed and kept.
    gpus : int
        That are paid for, spare nodes included where they are counted.
    usd_per_mtoken : float or None
    tokens : float or None
    train_s, usd : float or None
        To train those tokens.
    """

    tokens_per_s: float
    effective_tokens_per_s: float
    gpus: int
    usd_per_mtoken: float | None
    tokens: float | None
    train_s: float | None
    usd: float | None

    @classmethod
    def of(cls, case: Case, step: Step, found: Assessment, tokens: float | None) -> Costs:
        """Costs of a case at its goodput."""
        work, cluster = case.workload, case.cluster
        rate = work.gbs * work.tokens_per_sequence / found.step_s
        kept = rate * found.goodput
        gpus = case.layout.world + (cluster.reliability.spares or 0) * cluster.gpus_per_node
        price = None if cluster.usd_per_gpu_hour is None else float(cluster.usd_per_gpu_hour.value) * gpus / 3600.0
        each = None if price is None or not kept else price / kept * 1e6
        seconds = None if tokens is None else (tokens / kept if kept else math.inf)
        usd = None if price is None or seconds is None else price * seconds
        return cls(rate, kept, gpus, each, tokens, seconds, usd)


def notes(case: Case, found: Assessment, policy: Policy) -> list[str]:
    """What the figures stand on."""
    from hwmodels.reliability import components, repair_of, storage_of

    cluster = case.cluster
    said = list(found.bounds)
    sources = dict.fromkeys(c.source for c in components(cluster, case.layout.world))
    said += [f"failures: {source}" for source in sources]
    said.append(f"storage: {storage_of(cluster).source}")
    spares = cluster.reliability.spares
    if spares is None:
        need = f"{found.spares_needed} spare nodes keep the wait under 0.1% of the time"
        said.append(f"spares: not stated, a node is taken as always there; with repairs as below {need}")
    said.append(f"repair: {repair_of(cluster).source}")
    said.append(
        f"restart: {policy.detect_s:g} s until a failure is noticed, {policy.reschedule_s:g} s to schedule, "
        f"{policy.warm_up_s:g} s of warm-up (assumed unless stated)"
    )
    if len(cluster.pools) > 1:
        said.append("pools: nodes of all pools are taken to fail, and to write, as those of the first")
    if policy.straggler_node_s < math.inf or (policy.elastic and spares is not None):
        said.append("closed form: stragglers and missing replicas enter by their means; the simulation plays them")
    said.append(EVIDENCE)
    return said


def content(case: Case, found: Assessment, costs: Costs, policy: Policy) -> dict[str, Any]:
    """The JSON object."""
    plain = asdict(found)
    return {
        "schema": 1,
        "model": case.model.name,
        "cluster": case.cluster_name,
        "layout": case.layout,
        "policy": policy,
        **plain,
        "effective_step_s": found.step_s / found.goodput if found.goodput else None,
        "costs": costs,
        "notes": notes(case, found, policy),
    }


def duration(seconds: float) -> str:
    """``"4.2 min"``, ``"3.1 h"``, ``"12.0 d"``; never where it is infinite."""
    if math.isinf(seconds):
        return "never"
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2.0 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.3g} s"


def show(case: Case, found: Assessment, costs: Costs, policy: Policy) -> None:
    """Headline, losses, curve and notes."""
    from hwmodels.units import format_percent, format_usd
    from planner.cli.show import show_inputs

    show_inputs(case)
    say()
    run, interval = found.simulated, found.interval_s
    print_pairs(
        [
            ("goodput", f"{format_percent(found.goodput)} by the closed form"),
            ("  simulated", f"{100 * run.goodput:.2f}% +- {100 * run.half_width:.2f} ({run.replications} runs of "
                            f"{run.days:g} days, seed {run.seed}, {run.failures:,.1f} failures each)" if run else ""),
            ("throughput", f"{costs.effective_tokens_per_s:,.0f} of {costs.tokens_per_s:,.0f} tokens/s are kept"),
            ("cost", f"${costs.usd_per_mtoken:.3f} per 1M tokens" if costs.usd_per_mtoken is not None else ""),
            ("to train", _to_train(costs, format_usd)),
            ("failures", f"one every {duration(found.mtbf_s)}: " + ", ".join(
                f"{kind} {each:.2g} a day" for kind, each in found.failures_per_day.items()) if found.mtbf_s < math.inf
                else "none"),
            ("checkpoint", _checkpoint(found, policy)),
            ("restart", f"{duration(found.load_s)} to load, bounded by the {found.load_limit}"),
            ("interval", f"{duration(interval)}, {interval / found.step_s:,.1f} steps"),
            ("  best", f"{duration(found.best_interval_s)} (Young {duration(found.young_s)}, Daly "
                       f"{duration(found.daly_s)}"
                       + (f", simulated {duration(found.simulated_best_s)})" if found.simulated_best_s else ")")),
            ("data", _data(found)),
        ]
    )  # fmt: skip
    say()
    shown = ["cause", "closed form", "simulated"][: 3 if run else 2]
    rows = [
        (CAUSES[name], format_percent(value), *([format_percent(run.losses[name])] if run else []))
        for name, value in sorted(found.losses.items(), key=lambda item: -item[1])
        if value > 0.0 or (run and run.losses[name] > 0.0)
    ]
    print_table("where the rest of the time goes", shown, rows)
    _show_curve(found)
    for text in notes(case, found, policy):
        say(f"note: {text}")


def _data(found: Assessment) -> str:
    need = found.data
    each = f"{need.total_bytes_per_s[0] / 1e6:,.3g} MB/s in total, {need.node_bytes_per_s[0] / 1e6:,.3g} MB/s a node"
    return f"{each}, read in {duration(float(need.read_s[0]))} a step"


def _to_train(costs: Costs, format_usd: Any) -> str:
    if costs.tokens is None or costs.train_s is None:
        return ""
    price = f", {format_usd(costs.usd)} for {costs.gpus:,} GPUs" if costs.usd is not None else ""
    return f"{costs.tokens:,.3g} tokens in {duration(costs.train_s)}{price}"


def _checkpoint(found: Assessment, policy: Policy) -> str:
    from hwmodels.units import format_bytes

    size = f"{format_bytes(found.checkpoint_bytes)} ({format_bytes(found.node_bytes)} of a node)"
    if policy.mode == "async":
        return (
            f"{size}, training waits {duration(found.blocked_s)} for the copy, in storage {duration(found.lag_s)} "
            f"later, bounded by the {found.write_limit}"
        )
    return f"{size}, training waits {duration(found.blocked_s)}, bounded by the {found.write_limit}"


def _show_curve(found: Assessment) -> None:
    """Goodput over the interval, as bars between the least and the most of it."""
    from hwmodels.units import format_percent

    values = [p.goodput for p in found.curve]
    least, most = min(values), max(values)
    span = max(most - least, 1e-12)
    rows = []
    for point in found.curve:
        bar = "#" * (1 + round((WIDTH - 1) * (point.goodput - least) / span))
        played = [] if point.simulated is None else [f"{100 * point.simulated:.2f}%"]
        rows.append((duration(point.interval_s), bar, format_percent(point.goodput), *played))
    say()
    title = "goodput over the interval between checkpoints"
    print_table(title, ["interval", "", "closed form", "simulated"][: len(rows[0])], rows, left=2)
    say()
