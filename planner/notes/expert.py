"""What the prediction of an expert layer stands on, in sentences."""

from __future__ import annotations

from planner.layout import Layout, LayoutBatch, both_grids
from planner.moe_switches import EXPERT_LAWS
from planner.priced import PricedModel


def expert_notes(priced: PricedModel, layout: Layout, exposed_share: float) -> list[str]:
    """Notes about grids, exchange, routing and overlap; none for a dense model.

    Parameters
    ----------
    exposed_share : float
        Exposed expert exchange over the step, of the rank where it is largest.
    """
    if not any(layer.is_moe for layer in priced.model.layers):
        return []
    preset, routing = priced.preset, priced.workload.routing
    found = [f"grids: {both_grids(layout)}"]
    if routing.balanced:
        found.append("experts: balanced, dropless routing is assumed; --routing states skew and capacity")
    else:
        found.append(f"experts: {routing.described()}; no measured evidence for uneven or capped routing")
    if layout.ep * layout.etp > 1:
        found += _exchange_notes(priced, layout, exposed_share)
    if preset.moe_exchange_overlap:
        found.append(
            "expert exchanges beside another micro-batch's compute: the four slots of Megatron-Core's combined "
            "schedule; no profile of it was read"
        )
    if preset.moe_shared_overlap:
        found.append("shared experts beside dispatch and combine: no measured evidence")
    if layout.etp > 1:
        found.append("expert tensor parallel: no measured evidence")
    return found


def _exchange_notes(priced: PricedModel, layout: Layout, exposed_share: float) -> list[str]:
    """Which law prices the exchange, and whether it leaves the node."""
    preset, cluster = priced.preset, priced.cluster
    law = EXPERT_LAWS.get(preset.moe_dispatcher, "NCCL's collectives")
    found = [f"expert exchange by {preset.moe_dispatcher}: law of {law}"]
    if preset.moe_dispatcher == "hybridep":
        found[0] += "; HybridEP itself was not measured"
    nodes = int(LayoutBatch.of(layout).group("ep_etp", cluster).nodes)
    if nodes > 1:
        inside = [d for d in range(layout.ep, 0, -1) if layout.ep % d == 0 and d * layout.etp <= cluster.gpus_per_node]
        ways = [f"ep={inside[0]}" if inside else "", "etp=1" if layout.etp > 1 else ""]
        ways += ["a smaller tp with sequence parallelism and a larger mbs" if layout.tp > 1 else "a larger mbs"]
        found.append(
            f"the expert exchange leaves the node: {layout.ep * layout.etp} ranks of ETP x EP lie on {nodes} nodes; "
            f"{' or '.join(filter(None, ways))} may help, by at most the {exposed_share:.0%} of the step that the "
            "exchange is exposed"
        )
    return found
