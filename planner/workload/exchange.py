"""How tokens reach their experts and come back: collectives and permutations of each dispatcher."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwmodels.collectives.expert_traffic import expected_ranks
from planner.model.spec import Moe
from planner.moe_switches import EXPERT_LAWS
from planner.workload.context import Shapes
from planner.workload.op import OTHER, Op, Phase

FloatArray = NDArray[np.float64]


def exchange_ops(ffn: Moe, routed: FloatArray, s: Shapes) -> list[Op]:
    """Dispatch and combine, and their mirrors in the backward.

    Tokens go out quantised, and come back in the compute dtype, where the framework does so and
    scales lie along rows (DeepSeek-V3, arXiv 2412.19437, section 3.3.3; DeepEP).

    Parameters
    ----------
    routed : ndarray
        Copies that a rank's own tokens make.
    """
    narrow = s.preset.quantised_dispatch and s.recipe.scaling in ("block", "mx")
    sent = s.recipe.element_bytes if narrow else s.width
    if s.preset.moe_dispatcher == "allgather":
        return _gathered(s, sent)
    if s.preset.moe_dispatcher in EXPERT_LAWS:
        return _expert_kernels(ffn, s, "fp8" if narrow else s.dtype)
    return _all_to_all(ffn, routed, s, sent)


def _partners(shared: bool, s: Shapes) -> dict[str, str]:
    """What each exchange runs beside (`MoeSwitches.moe_exchange_overlap`, `moe_shared_overlap`)."""
    preset = s.preset
    if preset.moe_exchange_overlap:
        weight, late = "+backward_weight", preset.moe_delay_wgrad
        return {
            "dispatch": f"{OTHER}experts:backward_input{'' if late else weight}",
            "dispatch.grad": f"{OTHER}experts:forward{weight if late else ''}",
            "combine": f"{OTHER}attention:backward_input{weight}",
            "combine.grad": f"{OTHER}attention:forward",
        }
    if preset.moe_shared_overlap and shared:
        return {
            "dispatch": "moe.shared.up",
            "dispatch.grad": "moe.shared.up.dgrad",
            "combine": "moe.shared.down",
            "combine.grad": "moe.shared.down.dgrad",
        }
    return {}


_PASSES: tuple[tuple[str, Phase], ...] = (("", "forward"), (".grad", "backward_input"))


def _collective(
    name: str, op: str, group: str, phase: Phase, dims: dict[str, Any], when: NDArray[np.bool_], s: Shapes, **more: Any
) -> Op:
    return Op(f"moe.{name}", "collective", phase, dims, s.dtype, group, op, np.where(when, 1.0, 0.0), **more)


def _all_to_all(ffn: Moe, routed: FloatArray, s: Shapes, sent: float) -> list[Op]:
    """NCCL all-to-all over ep (a rank's send buffer holds every routed copy), rows gathered and scattered over etp."""
    rows = np.asarray(routed * s.routing.sent * s.model.hidden)
    skew, behind = s.routing.exchange_skew, _partners(bool(ffn.shared_ffn_hidden), s)
    found = []
    for suffix, phase in _PASSES:
        for name in ("dispatch", "combine"):
            width = sent if name == "dispatch" and not suffix else s.width
            dims = {"nbytes": np.asarray(rows * width), "skew": skew}
            partner = behind.get(f"{name}{suffix}", "")
            found.append(_collective(name + suffix, "all_to_all", "ep", phase, dims, s.ep > 1, s, behind=partner))
        gathered = {"nbytes": np.asarray(rows * s.width * s.etp * s.routing.load / s.routing.sent)}
        found.append(_collective(f"etp_gather{suffix}", "all_gather", "etp", phase, gathered, s.etp > 1, s))
        found.append(_collective(f"etp_scatter{suffix}", "reduce_scatter", "etp", phase, gathered, s.etp > 1, s))
    return found


def _gathered(s: Shapes, sent: float) -> list[Op]:
    """Every token of the expert grid to each of its ranks; partial sums reduce-scattered back (token_dispatcher.py)."""
    ranks = s.ep * s.etp
    found = []
    for suffix, phase in _PASSES:
        narrow = sent if not suffix else s.width
        behind = _partners(False, s)
        for name, op, width in (("dispatch", "all_gather", narrow), ("combine", "reduce_scatter", s.width)):
            # the mirror of a gather is a reduce-scatter
            other = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}[op] if suffix else op
            dims = {"nbytes": np.asarray(s.tokens_sp * ranks * s.model.hidden * width)}
            partner = behind.get(f"{name}{suffix}", "")
            found.append(_collective(name + suffix, other, "ep_etp", phase, dims, ranks > 1, s, behind=partner))
    return found


def _expert_kernels(ffn: Moe, s: Shapes, dtype: str) -> list[Op]:
    """DeepEP and its like, over the whole expert grid: a token goes to every rank of its experts' etp groups.

    A token once to each distinct rank (`hwmodels.collectives.expert_law`). The backward of a dispatch is a combine,
    and the reverse.
    """
    impl, behind = EXPERT_LAWS[s.preset.moe_dispatcher], _partners(bool(ffn.shared_ffn_hidden), s)
    dims = {
        "tokens": np.asarray(s.tokens_sp * s.routing.sent), "hidden": float(s.model.hidden),
        "topk": np.asarray(ffn.top_k * s.etp), "experts": np.asarray(ffn.n_experts * s.etp),
        "skew": s.routing.exchange_skew, "groups": ffn.groups, "group_limit": ffn.group_limit,
    }  # fmt: skip
    found = []
    for suffix, phase in _PASSES:
        for name in ("dispatch", "combine"):
            other = {"dispatch": "combine", "combine": "dispatch"}[name] if suffix else name
            payload = dtype if name == "dispatch" and not suffix else s.dtype
            op = Op(
                f"moe.{name}{suffix}", "collective", phase, dims, payload, "ep_etp", f"expert_{other}",
                np.where(s.ep * s.etp > 1, 1.0, 0.0), behind=behind.get(f"{name}{suffix}", ""), impl=impl,
            )  # fmt: skip
            found.append(op)
    return found


def permute_ops(ffn: Moe, routed: FloatArray, rows: FloatArray, s: Shapes) -> list[Op]:
    """Sorting tokens by expert, and summing what comes back.

    A fused permutation reads each token once and writes its copies; index operators read as much as they write, after a
    chain that makes the indices (argsort, gather: Megatron-Core ``moe_utils.permute``). The all-to-all
    sorts a second time, from ranks to local experts, where a rank holds several. DeepEP and HybridEP permute what
    arrived, a token once a rank (``csrc/hybrid_ep/extension/permute.cu``). Backward mirrors each, and the weighted sum
    of outputs (`MoeSwitches.moe_weighted_activation` off) reads the outputs once more.

    Parameters
    ----------
    routed, rows : ndarray
        Copies that a rank's own tokens make; rows of its local experts.
    """
    preset, hidden, w = s.preset, float(s.model.hidden), s.width
    copies = routed * s.routing.sent if preset.moe_dispatcher == "alltoall" else rows
    once = copies / ffn.top_k
    if preset.moe_dispatcher in EXPERT_LAWS:  # a token arrives once at each rank that hosts a chosen expert
        whole = _whole(ffn.top_k, ffn.n_experts, s.ep)
        once = once * expected_ranks(*whole, groups=ffn.groups, group_limit=ffn.group_limit)
    read = once if preset.moe_permute_fusion else copies
    kernels = 1.0 if preset.moe_permute_fusion else 5.0
    moved = w * hidden * (copies + read)
    again = 0.0 if preset.moe_weighted_activation else w * hidden * copies
    found = [
        s.memory("moe.permute", "forward", moved, kernels=kernels),
        s.memory("moe.permute.grad", "backward_input", moved, kernels=kernels),
        s.memory("moe.unpermute", "forward", moved, kernels=kernels),
        s.memory("moe.unpermute.grad", "backward_input", moved + again, kernels=kernels),
    ]
    if preset.moe_dispatcher == "alltoall":
        several = np.where((ffn.n_experts / s.ep > 1.0) & (s.ep * s.etp > 1.0), 1.0, 0.0)
        sorting = np.asarray(2.0 * w * hidden * rows * several)
        kernels_each = several * (1.0 if preset.moe_permute_fusion else 2.0)
        for name in ("sort", "unsort"):
            for suffix, phase in _PASSES:
                op = s.memory(f"moe.{name}{suffix}", phase, sorting)
                found.append(_with_launches(op, several, kernels_each))
    return found


def _whole(*values: float | FloatArray) -> tuple[FloatArray, ...]:
    """Arrays of one shape."""
    return tuple(np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in values)))


def _with_launches(op: Op, count: FloatArray, kernels: FloatArray) -> Op:
    """The op where it runs at all, with its launches."""
    return replace(op, count=count, kernels=np.maximum(kernels, 1.0))
