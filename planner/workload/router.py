"""The router: scores of every expert, the choice, and the losses that keep it balanced.

Counted from Megatron-Core ``moe_utils.py`` (``topk_routing_with_score_function``, ``switch_load_balancing_loss_func``,
``z_loss_func``) and ``router.py``. The unit is one pass over the scores, fp32 numbers of every token for every expert.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.model.spec import Moe
from planner.workload.context import Shapes
from planner.workload.op import Op

FloatArray = NDArray[np.float64]

SCORE_BYTES = 4.0
MAP_BYTES = 1.0
"""The routing map is a boolean for each score."""

CHOICE = (6.0, 10.0)
"""Passes and kernels of an unfused choice: top-k reads the logits (two kernels and a sort of the chosen), softmax over
the chosen, zeros and scatter of probabilities and of the map, cast and scale."""
CORRECTED = (4.0, 4.0)
"""On top with a correction bias: sigmoid (2), adding the bias (2), gathering the chosen scores, normalising them."""
LIMITED = (2.0, 6.0)
"""On top with groups: the best two scores of each group, their sum, the best groups, a mask and the masked scores."""
BALANCE = (4.0, 8.0)
"""Unfused load-balancing loss: softmax over all experts (2), sums over tokens of scores and map, their product and the
scaler that carries its gradient."""
FUSED_CHOICE = (2.25, 1.0)
"""Fused (Transformer Engine ``fused_topk_with_score_function``): read logits, write probabilities and map."""
FUSED_BALANCE = (3.0, 2.0)
"""Fused: scores of all experts (2), the loss (1)."""
Z_LOSS = (1.0, 4.0)
"""log-sum-exp of the logits, its square, mean and scaler."""


def router_ops(ffn: Moe, s: Shapes) -> list[Op]:
    """Logits in high precision, the choice and the losses; a backward of as many bytes and kernels."""
    hidden = np.asarray(float(s.model.hidden))
    ops = s.linear("moe.router", s.tokens_sp, hidden, np.asarray(float(ffn.n_experts)), quantised=False)
    scores = s.tokens_sp * ffn.n_experts * SCORE_BYTES
    passes, kernels = _work(ffn, s)
    return [
        *ops,
        s.memory("moe.route", "forward", passes * scores, kernels=kernels),
        s.memory("moe.route.grad", "backward_input", passes * scores, kernels=kernels),
    ]


def _work(ffn: Moe, s: Shapes) -> tuple[float, float]:
    """Passes over the scores, and kernels, of one direction."""
    fused = s.preset.moe_router_fusion
    parts = [FUSED_CHOICE if fused else CHOICE]
    if ffn.score_correction and not fused:
        parts.append(CORRECTED)
    if ffn.groups > 1 and not fused:
        parts.append(LIMITED)
    if s.preset.moe_aux_loss:
        parts.append(FUSED_BALANCE if fused else BALANCE)
    if s.preset.moe_z_loss:
        parts.append(Z_LOSS)
    return sum(p for p, _ in parts), sum(k for _, k in parts)


def router_saved(ffn: Moe, s: Shapes) -> FloatArray:
    """Bytes kept: probabilities and map; the losses keep the scores of all experts (and the z-loss the logits)."""
    scores = s.tokens_sp * ffn.n_experts
    kept = SCORE_BYTES + MAP_BYTES + SCORE_BYTES * (s.preset.moe_aux_loss + s.preset.moe_z_loss)
    return np.asarray(scores * kept)
