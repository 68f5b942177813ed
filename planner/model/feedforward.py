"""Feed-forward parts of a layer: dense and mixture of experts."""

from __future__ import annotations

from hwmodels.records import dataclass
from planner.model.weights import Parameter, Vector, Weight


@dataclass(frozen=True, slots=True)
class Mlp:
    """Feed-forward block: up (and gate) of `ffn_hidden`, then down."""

    ffn_hidden: int
    gated: bool = True
    bias: bool = False
    activation: str = "silu"

    def parameters(self, hidden: int) -> tuple[Parameter, ...]:
        """Weights for a residual width of `hidden`."""
        gate: tuple[Parameter, ...] = ()
        if self.gated:
            gate = (Weight("gate", hidden, self.ffn_hidden, "column", self.bias, fused_with="gate_up"),)
        return (
            *gate,
            Weight("up", hidden, self.ffn_hidden, "column", self.bias, fused_with="gate_up" if self.gated else ""),
            Weight("down", self.ffn_hidden, hidden, "row", self.bias),
        )


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture of experts: `top_k` of `n_experts` routed, and shared experts beside them.

    Attributes
    ----------
    ffn_hidden : int
        Intermediate width of one routed expert.
    shared_ffn_hidden : int
        Total width of the shared experts; 0 for none.
    shared_gate : bool
        Whether a learned scalar gate (hidden -> 1) scales the shared output.
    score_correction : bool
        Whether the router has a bias per expert that is counted as a parameter (auxiliary-loss-free balancing).
    router_bias : bool
        Whether the router's matrix has a bias (gpt-oss).
    groups, group_limit : int
        Groups of experts, and out of how many of them those of one token come (node-limited routing,
        arXiv 2412.19437, section 2.1.2); 1 and 1 limit nothing.
    """

    n_experts: int
    top_k: int
    ffn_hidden: int
    gated: bool = True
    bias: bool = False
    activation: str = "silu"
    shared_ffn_hidden: int = 0
    shared_gate: bool = False
    score_correction: bool = False
    router_bias: bool = False
    groups: int = 1
    group_limit: int = 1

    def parameters(self, hidden: int) -> tuple[Parameter, ...]:
        """Weights and vectors for a residual width of `hidden`."""
        found: list[Parameter] = [Weight("router", hidden, self.n_experts, "replicated", self.router_bias)]
        if self.score_correction:
            found.append(Vector("score_correction", self.n_experts))
        if self.gated:
            found.append(
                Weight(
                    "expert_gate", hidden, self.ffn_hidden, "column", self.bias, self.n_experts, True, "expert_gate_up"
                )
            )
        found.append(
            Weight(
                "expert_up",
                hidden,
                self.ffn_hidden,
                "column",
                self.bias,
                self.n_experts,
                True,
                "expert_gate_up" if self.gated else "",
            )
        )
        found.append(Weight("expert_down", self.ffn_hidden, hidden, "row", self.bias, self.n_experts, True))
        if self.shared_ffn_hidden:
            if self.gated:
                found.append(
                    Weight(
                        "shared_gate", hidden, self.shared_ffn_hidden, "column", self.bias, fused_with="shared_gate_up"
                    )
                )
            found.append(
                Weight(
                    "shared_up",
                    hidden,
                    self.shared_ffn_hidden,
                    "column",
                    self.bias,
                    fused_with="shared_gate_up" if self.gated else "",
                )
            )
            found.append(Weight("shared_down", self.shared_ffn_hidden, hidden, "row", self.bias))
            if self.shared_gate:
                found.append(Weight("shared_expert_gate", hidden, 1, "replicated"))
        return tuple(found)
