"""`MoeSwitches`: how a framework runs a mixture of experts. Part of `planner.frameworks.base.FrameworkPreset`."""

from __future__ import annotations

from typing import Literal

from hwmodels.errors import Fault
from hwmodels.records import dataclass

Dispatcher = Literal["alltoall", "allgather", "deepep", "hybridep"]
DISPATCHERS: tuple[str, ...] = ("alltoall", "allgather", "deepep", "hybridep")
EXPERT_GEMMS: tuple[str, ...] = ("grouped", "streams", "loop")

EXPERT_LAWS: dict[str, str] = {"deepep": "deepep-normal", "hybridep": "deepep-v2-normal"}
"""Dispatcher -> implementation in `hwmodels.collectives.expert_implementations`. HybridEP (branch ``hybrid-ep`` of
deepseek-ai/DeepEP) moves tokens with few SMs and bulk copies, over NVLink at the rate of the link and once to
each node, as DeepEP V2 does; nothing measured names it."""

ROW_BLOCK: dict[str, int] = {"delayed": 16, "current": 16, "block": 16, "mx": 32, "nv": 32}
"""Rows of an expert are a multiple of this for a scaled GEMM, by scaling (Megatron-Core
``fp8_utils.get_fp8_align_size``: 32 for MXFP8, 16 for the others; ``fp4_utils.get_fp4_align_size``: 32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSwitches:
    """Switches of the expert layers.

    Attributes
    ----------
    etp_follows_tp : bool
        Where a measurement leaves etp blank, experts are split as dense layers are (Megatron-Core
        ``expert_tensor_parallel_size`` None); False: they are whole.
    moe_dispatcher : {'alltoall', 'allgather', 'deepep', 'hybridep'}
        How tokens reach their experts (Megatron-Core ``--moe-token-dispatcher-type`` and
        ``--moe-flex-dispatcher-backend``; token_dispatcher.py). ``alltoall``: NCCL, one row for each chosen expert,
        permuted before and sorted after. ``allgather``: every token to every rank of the expert grid, partial sums
        reduce-scattered back. ``deepep``: DeepEP's kernels, a token once to each rank that hosts a chosen expert.
        ``hybridep``: the same by its hybrid-ep branch, which pads each expert's rows as it permutes them.
    moe_expert_gemm : {'grouped', 'streams', 'loop'}
        ``grouped``: one kernel for all local experts. ``streams``: a cuBLAS call and casts of its own for each expert,
        the calls over four streams (Transformer Engine ``GroupedLinear``, ``nvte_multi_tensor_gemm``); the device sees
        one pool of tiles, the host every launch. ``loop``: one expert after another (Megatron ``SequentialMLP``).
    moe_fused_mlp : bool
        The grouped kernel applies the activation and casts its output in its epilogue, forward and backward, where
        scales are MX's (Transformer Engine's fused grouped MLP, ``NVTE_CUTEDSL_FUSED_GROUPED_MLP``).
    moe_permute_fusion : bool
        Sorting tokens by expert is one kernel each way (``--moe-permute-fusion``), else a chain of index operators.
    moe_router_fusion : bool
        Scores, top-k and the balancing loss are a kernel each (``--moe-router-fusion``), else a chain.
    moe_aux_loss : bool
        A load-balancing loss runs (``--moe-router-load-balancing-type aux_loss`` or ``seq_aux_loss``).
    moe_z_loss : bool
        A loss on the router's logits runs (``--moe-z-loss-coeff``; arXiv 2202.08906, equation 5).
    moe_weighted_activation : bool
        Probabilities scale the experts' activation, so that combining keeps no rows for its backward
        (Megatron-Core 0.13); False: they scale the experts' outputs, which stay.
    moe_router_padding : bool
        The router pads each expert's rows to the block of a scaled GEMM (``--moe-router-padding-for-quantization``);
        False: copies before and after the experts do (Transformer Engine ``Fp8Padding``).
    moe_shared_overlap : bool
        Shared experts run beside dispatch and combine (``--moe-shared-expert-overlap``; shared_experts.py): their
        first product beside the dispatch, their second beside the combine, mirrored in the backward.
    moe_exchange_overlap : bool
        Exchanges of one micro-batch run beside the compute of another (``--overlap-moe-expert-parallel-comm``,
        model_chunk_schedule_plan.py; DualPipe, arXiv 2412.19437, section 3.2.1): combine's backward beside the
        attention's forward, dispatch beside the experts' backward, its backward beside the experts' forward,
        combine beside the attention's backward.
    moe_delay_wgrad : bool
        With that, the experts' weight gradients run beside the dispatch's backward instead of beside the dispatch
        (``--delay-wgrad-compute``).
    """

    etp_follows_tp: bool = True
    moe_dispatcher: Dispatcher = "alltoall"
    moe_expert_gemm: str = "grouped"
    moe_fused_mlp: bool = False
    moe_permute_fusion: bool = True
    moe_router_fusion: bool = False
    moe_aux_loss: bool = True
    moe_z_loss: bool = False
    moe_weighted_activation: bool = True
    moe_router_padding: bool = True
    moe_shared_overlap: bool = False
    moe_exchange_overlap: bool = False
    moe_delay_wgrad: bool = False

    def moe_faults(self, where: str) -> list[Fault]:
        """Switches that are no known word or contradict each other."""
        faults = [
            Fault(f"{key} is {getattr(self, key)!r}", where, "", "one of " + ", ".join(known))
            for key, known in (("moe_dispatcher", DISPATCHERS), ("moe_expert_gemm", EXPERT_GEMMS))
            if getattr(self, key) not in known
        ]
        if self.moe_shared_overlap and self.moe_exchange_overlap:
            why = "shared experts are part of the compute that another micro-batch's exchanges run beside"
            fix = "moe_shared_overlap=false, or moe_exchange_overlap=false"
            faults.append(Fault("moe_shared_overlap with moe_exchange_overlap", where, why, fix))
        if self.moe_shared_overlap and self.moe_dispatcher == "allgather":
            why = "the all-gather dispatcher has no point at which shared experts could start"
            what = "moe_shared_overlap with moe_dispatcher=allgather"
            faults.append(Fault(what, where, why, "moe_dispatcher=alltoall"))
        if self.moe_fused_mlp and self.moe_expert_gemm != "grouped":
            what = f"moe_fused_mlp with moe_expert_gemm={self.moe_expert_gemm}"
            faults.append(Fault(what, where, "it is the grouped kernel's epilogue", "moe_expert_gemm=grouped"))
        if self.moe_delay_wgrad and not self.moe_exchange_overlap:
            why = "weight gradients are delayed for the exchange of another micro-batch"
            faults.append(Fault("moe_delay_wgrad alone", where, why, "moe_exchange_overlap=true"))
        return faults
