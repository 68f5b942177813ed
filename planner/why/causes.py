"""What of two layouts makes a phase of a step longer or shorter, in a sentence.

The sentence holds figures that follow from the layouts and their traffic alone; the seconds beside it are the cost
model's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hwmodels.units import format_bytes, format_percent
from planner.schedule import get as get_schedule

if TYPE_CHECKING:
    from planner.why.difference import Told


def cause(phase: str, one: Told, other: Told) -> str:
    """The sentence of a phase; empty where nothing that it knows differs."""
    told = [_TELLERS[phase](t) for t in (one, other)] if phase in _TELLERS else ["", ""]
    return f"{told[0]}, against {told[1]}" if told[0] != told[1] else ""


def _kernels(told: Told) -> str:
    """FLOPs of the kernels of a GPU over the seconds that they take, and what shapes them."""
    layout, step = told.layout, told.step
    busy = sum(rank.get(name, 0.0) for rank in step.phases for name in ("forward", "backward", "recompute"))
    rate = step.hardware_flops / layout.world / (busy / len(step.phases)) / 1e12
    shape = f"mbs {layout.mbs}" + (f", tp {layout.tp}" if layout.tp > 1 else "")
    shape += f", cp {layout.cp}" if layout.cp > 1 else ""
    return f"kernels at {rate:,.0f} TFLOP/s ({shape}, {told.workload.precision})"


def _recompute(told: Told) -> str:
    layout, step = told.layout, told.step
    if layout.recompute == "none":
        return "nothing is run again"
    words = " ".join(filter(None, ("+".join(layout.recompute_modules), ",".join(map(str, layout.recompute_layers)))))
    more = format_percent(step.hardware_flops / step.model_flops - 1.0)
    return f"recompute {' '.join(filter(None, (layout.recompute, words)))}: FLOPs {more} over the model's"


def _transfer(phase: str, group: Callable[[Told], str]) -> Callable[[Told], str]:
    """A collective's phase: what a GPU sends over which group, and how much of the time compute hides."""

    def tell(told: Told) -> str:
        sent = told.step.traffic.get(phase)
        if sent is None:
            return f"{group(told)}: nothing sent"
        ways = [
            f"{format_bytes(nbytes)} {where}"
            for nbytes, where in ((sent.intra_node, "inside the node"), (sent.inter_node, "between nodes"))
            if nbytes
        ]
        exposed = sum(rank.get(phase, 0.0) for rank in told.step.phases) / len(told.step.phases)
        hidden = told.step.hidden_comm_s.get(phase, 0.0)
        share = f", {format_percent(hidden / (hidden + exposed))} of the time hidden" if hidden else ""
        return f"{group(told)}: a GPU sends {' and '.join(ways)}{share}"

    return tell


def _dp(told: Told) -> str:
    layout = told.layout
    words = [f"dp {layout.dp}"]
    words += [f"cp {layout.cp}"] if layout.cp > 1 else []
    words += [f"zero {layout.zero_stage}"] if layout.zero_stage else []
    words += [f"fsdp {layout.fsdp}"] if layout.fsdp else []
    words += [f"reshard {layout.reshard}"] if layout.reshard != "default" else []
    return " ".join(words)


def _bubble(told: Told) -> str:
    layout = told.layout
    if layout.pp == 1:
        return "no pipeline"
    words = f"{layout.schedule}, pp {layout.pp}, vpp {layout.vpp}, {told.microbatches} micro-batches"
    loads = [sum(r.get(n, 0.0) for n in ("forward", "backward", "recompute")) for r in told.step.phases]
    uneven = max(loads) / (sum(loads) / len(loads)) - 1.0
    more = f", fullest stage {format_percent(uneven)} over the mean" if uneven > 0.005 else ""
    split = ", backward split" if get_schedule(layout.schedule).split_backward else ""
    return f"{words}{split}{more}"


def _optimizer(told: Told) -> str:
    layout = told.layout
    shards = layout.fsdp or layout.dp if layout.zero_stage else 1
    ranks = layout.tp * layout.pp * shards
    host = f", {layout.offload_optimizer}% on the host" if layout.offload_optimizer else ""
    return f"{told.workload.optimizer} over {ranks} shards of the weights{host}"


def _host(told: Told) -> str:
    return f"{told.microbatches} micro-batches of {told.workload.framework}"


_TELLERS: dict[str, Callable[[Told], str]] = {
    "forward": _kernels,
    "backward": _kernels,
    "recompute": _recompute,
    "tp_comm": _transfer("tp_comm", lambda t: f"tp {t.layout.tp}" + (" sp" if t.layout.sp else "")),
    "cp_comm": _transfer("cp_comm", lambda t: f"cp {t.layout.cp} {t.layout.cp_kind}".rstrip()),
    "ep_comm": _transfer("ep_comm", lambda t: f"ep {t.layout.ep}, etp {t.layout.etp}"),
    "pp_comm": _transfer("pp_comm", lambda t: f"pp {t.layout.pp}, vpp {t.layout.vpp}"),
    "dp_comm": _transfer("dp_comm", _dp),
    "optimizer": _optimizer,
    "host": _host,
    "bubble": _bubble,
}
