"""The contract of a framework preset: `FrameworkPreset`, its switches and their defaults.

The table of frameworks is `planner.frameworks`.
"""

from __future__ import annotations

from typing import Literal

from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass
from planner.frameworks.orders import ORDERS
from planner.moe_switches import MoeSwitches

CP_KINDS: tuple[str, ...] = ("ring", "all-gather", "ulysses", "hierarchical")
"""Kinds of context parallelism (`planner.workload.context_parallel`)."""

Attention = Literal["flash", "unfused", "unfused-fused-softmax", "sdpa-cpu"]
GradDtype = Literal["fp32", "bf16", "same", "fp16-else-fp32"]
MemoryLog = Literal["allocated", "reserved", "device"]
SCALED: tuple[str, ...] = ("delayed", "current", "block", "mx", "nv")
"""Scalings of quantised recipes (`planner.precision`)."""

Rounds = Literal["pp", "equal", "any"]
ROUNDS: tuple[str, ...] = ("pp", "equal", "any")
"""Numbers of micro-batches that an interleaved schedule runs (`FrameworkPreset.interleaved_rounds`)."""

ATTENTION: tuple[str, ...] = ("flash", "unfused", "unfused-fused-softmax", "sdpa-cpu")
GRAD_DTYPES: tuple[str, ...] = ("fp32", "bf16", "same", "fp16-else-fp32")
FP8_RECIPES: tuple[str, ...] = ("fp8-delayed", "fp8-current", "fp8-block", "mxfp8")
"""What ``precision: fp8`` may mean (`planner.precision`)."""
MEMORY_LOGS: tuple[str, ...] = ("allocated", "reserved", "device")

GRAPHED: dict[str, tuple[str, ...]] = {
    "attn": ("attention.", "mixer.", "norm_"),
    "moe_router": ("moe.rout", "moe.shared."),
    "moe_preprocess": ("moe.permute",),
}
"""Part of a layer that a graph may hold -> how the names of its ops begin (Megatron-Core ``transformer_layer.py``)."""


@dataclass(frozen=True, slots=True)
class HostConstant:
    """Host time of a framework, with where it comes from.

    Attributes
    ----------
    value : float
        Seconds, >= 0.
    source : str
    rows : int
        Measurements it was fitted on; 0 for a default.
    residual : float
        Mean absolute relative error of that fit; 0 for a default.
    """

    value: float
    source: str
    rows: int = 0
    residual: float = 0.0

    def __float__(self) -> float:
        return self.value


SCHEDULES: tuple[str, ...] = ("1f1b", "gpipe", "interleaved-1f1b")
"""What every framework with pipelines runs."""
TORCH_SCHEDULES: tuple[str, ...] = (*SCHEDULES, "dualpipe-v", "interleaved-zb", "zb-h1", "zb-v")
"""What the runtime of `torch.distributed.pipelining` runs (2.13, ``get_schedule_class``)."""
RECOMPUTES: tuple[str, ...] = ("none", "selective", "full", "block", "every", "op")
MEGATRON_RECOMPUTES: tuple[str, ...] = ("none", "selective", "full", "block")
"""Megatron-Core's ``--recompute-granularity`` and ``--recompute-method``."""

UNFITTED = HostConstant(0.0, "not fitted: the kernel launch time of the device is the only host time")


@dataclass(frozen=True, slots=True)
class FrameworkPreset(MoeSwitches):
    """Switches and defaults of one framework; those of expert layers in `planner.moe_switches`.

    Attributes
    ----------
    name : str
    attention : {'flash', 'unfused', 'unfused-fused-softmax', 'sdpa-cpu'}
        ``flash``: one fused kernel, no score matrix. ``unfused``: two batched GEMMs with eager
        scale, mask, softmax and dropout between them. ``unfused-fused-softmax``: the same with
        scale, mask and softmax in one kernel (Megatron's scaled upper-triangular softmax).
        ``sdpa-cpu``: PyTorch's `scaled_dot_product_attention` on a CPU.
    attention_impl : str
        Implementation of a fused attention kernel, as `hwmodels.kernels.attention` knows them; ``flash``
        is the best of the generation (FlashAttention-3 on Hopper).
    skips_masked : bool
        The fused kernel leaves out blocks of keys that a causal mask hides; False: it computes the whole
        square (kernels that take a bias, such as ALiBi's).
    dropout : bool
        Attention and hidden dropout are on: their kernels run and their masks are saved.
    fused_elementwise : bool
        bias-GELU, bias-dropout-add and SwiGLU are one kernel each; False: one kernel an operator.
    gemm_impl : str
        Implementation whose measured GEMMs the framework's resemble (`hwmodels.kernels.gemm`):
        training frameworks call cuBLAS through PyTorch's linear layers, which is what Vidur
        profiled; serving engines bring tuned kernels of their own.
    fused_norm : bool
        The norm is one kernel; False: eager operators.
    fused_cross_entropy : bool
        Loss without a separate fp32 copy of the logits.
    in_place_loss : bool
        The fp32 copy of the logits becomes softmax and gradient in place (Megatron's vocabulary-parallel cross
        entropy); False: PyTorch's operators write new tensors.
    transformer_engine : bool
        Linear layers are Transformer Engine's, with a workspace of its own.
    userbuffers : bool
        Tensor-parallel GEMMs and collectives are overlapped through Transformer Engine's user buffers (Megatron
        ``--tp-comm-overlap``), which take memory.
    deterministic : bool
        Deterministic algorithms are asked for, which takes cuBLAS larger workspaces.
    loads_whole : bool
        Stage 3: the whole model stands on each device in fp32 before it is sharded (no meta-device initialisation).
    saves_whole : bool
        Stage 3: a checkpoint gathers all parameters on the device.
    flat_gradients : bool
        The optimizer is built with zero gradients of its fp32 share (DeepSpeed's ZeRO).
    offload_core : bool
        What unfused attention keeps for the backward leaves to host memory (Megatron-Core
        ``--fine-grained-activation-offloading`` with core_attn); the transfers are taken as hidden.
    pipeline_communicators : int
        Process groups that a pipeline makes beside that of its stages (DeepSpeed: one with each neighbour, the pipe's
        own, the model-parallel one and that of tied weights).
    logs_memory : {'allocated', 'reserved', 'device'}
        What the memory figure of its own log counts: what a measurement means that does not say.
    grad_dtype : {'fp32', 'bf16', 'same', 'fp16-else-fp32'}
        Dtype in which gradients are accumulated and reduced; ``same`` is the compute dtype, ``fp16-else-fp32``
        the same with fp16 (whose loss is scaled) and fp32 with anything else.
    fused_grad_accumulation : bool
        The weight-gradient GEMM adds into the main gradient; False: a kernel of its own reads the
        new gradient and reads and writes the accumulated one.
    overlap_grad_reduce : bool
        Gradient buckets are reduced while the last backward still runs.
    overlap_split_reduce : bool
        The same where a schedule splits the backward; False: only after the last action (PyTorch's split
        backward fires no DDP hooks). Stages 0 to 2.
    main_grad_buffer : bool
        Every micro-batch adds into a persistent main gradient; False: autograd keeps the first
        micro-batch's gradient as it is and adds only the later ones.
    fp8_recipe : str
        Recipe that ``precision: fp8`` means.
    scalings : tuple of str
        Quantised recipes that the framework has, by scaling.
    bf16_ends : bool
        A recipe's first and last layers stay in the compute dtype; False: all of them are quantised.
    quantised_params : tuple of str
        Scalings with which compute copies of the linear weights exist in the narrow format only and travel
        in it; with others a 16-bit copy stands beside the quantised ones and travels.
    quantised_tp_gather : bool
        Sequence parallelism gathers the inputs of quantised GEMMs after the cast.
    quantised_dispatch : bool
        Experts get their tokens in the narrow format (scales along rows: block and mx).
    quantised_activation_input : bool
        A quantised recipe keeps the input of a gated activation in 8 bits for the backward.
    fused_norm_quantise : bool
        A norm writes the quantised input of the linear layer behind it (scales known before: delayed, block, mx).
    compute_copy : bool
        Mixed precision keeps a resident copy of the weights in the compute dtype beside the
        fp32 main weights; False (FSDP): the fp32 shard is cast when it is gathered.
    overlap_param_gather : bool
        ZeRO-1 and 2: parameters are gathered bucket by bucket behind the next forward instead of
        after the optimizer (Megatron-Core ``--overlap-param-gather``).
    norm_in_linear : bool
        A norm before a grouped-query projection and a dense feed-forward is part of the projection's module
        (Transformer Engine's ``LayerNormLinear``): recomputing ``layernorm`` leaves it as it is.
    recompute_stops_early : bool
        Checkpoints of whole layers are PyTorch's non-reentrant ones, which stop once everything saved is rebuilt:
        the last product of a dense layer is not run again.
    recomputes : tuple of str
        Kinds of recomputation that it has (`planner.layout.recompute`).
    uneven_stages : bool
        Takes any number of layers for each virtual stage; False: the split of the default rule alone.
    recompute_by_stage : bool
        Takes another number of recomputed layers for every virtual stage; False: one number for all.
    shard_copies : bool
        ZeRO-3: gathered buffers are copied out to parameters that lie apart, and gradients into the buffer that is
        reduced (`planner.shard_copies`).
    flat_parameters : bool
        ZeRO-3: gradients of parameters, which are views of one flat parameter, are joined before they are reduced.
    apart_gradients : bool
        Gradients of biases and of a norm's weights take passes of their own over the output's gradient, and those of
        query, key and value are joined (`planner.workload.eager`).
    unpads_attention : bool
        Tokens are gathered before the fused attention kernel and scattered behind it (`planner.workload.eager`).
    logged_losses : int
        Times the cross entropy is computed again from the logits in fp32, to be logged.
    selective : str
        Kind of recomputation that a source means by ``selective`` where it does not say of what.
    torch_compile : bool
        Layers run compiled by Inductor: chains of elementwise operators, rotary embeddings and norms are one kernel
        each, and the sum of a residual is part of the norm behind it. Sets `fused_elementwise`, `fused_norm` and
        `fused_residual_norm` where a run does not set them itself.
    fused_residual_norm : bool
        Adding to the residual stream and the norm of the same layer that reads the sum are one kernel.
    prefetch_params : bool
        ZeRO-3: the next bucket is gathered while this one computes.
    zero_stage : int
        Stage that is meant where a measurement or user leaves it blank.
    zero_stages : tuple of int
        Stages that the framework has.
    pipeline_zero_max : int
        Highest stage that it runs together with a pipeline.
    split_keeps_graph : bool
        A split backward is that of PyTorch's pipelining runtime: autograd keeps everything that a
        micro-batch saved until W has run, and a recomputed layer would run again for every matrix in it.
    schedules : tuple of str
        Pipeline schedules that it runs (names of `planner.schedule`).
    searched_schedules : tuple of str
        Those that a search tries where it is not told which.
    config_mtp : bool
        A run trains the prediction layers of the model's config unless told otherwise.
    interleaved_rounds : {'pp', 'equal', 'any'}
        Micro-batches of an interleaved schedule. ``pp``: multiples of pp (Megatron-LM to 2023). ``equal``: M // pp
        equal rounds (PyTorch's runtime). ``any``: pp or more, in rounds that may differ (Megatron-Core's
        ``--microbatch-group-size-per-virtual-pipeline-stage``).
    cp_kind : str
        Kind of context parallelism that is meant where a layout leaves it open.
    cp_kinds : tuple of str
        Those that the framework has; none: it has no context parallelism.
    orders : tuple of str
        Orders of the axes in which it can lay ranks out.
    order_keeps_groups : bool
        A pipeline faster than data parallelism needs equal data parallel degrees of dense and expert layers, and no
        sharding beyond stage 1 (Megatron-Core).
    sequence_parallel : bool
        Whether a blank `sp` means on when tp > 1.
    blank_vpp : int
        Virtual stages a pipeline rank where they are not stated, or the most below it that divide the layers of
        a rank; 1: not interleaved.
    pipeline_keeps_gathered : bool
        With a pipeline, stage 3 gathers parameters once a step and reduces gradients once (torchtitan; PyTorch's
        runtime resharding only after the last backward); False: every micro-batch as without one (Megatron-FSDP).
    reshard_after_forward : bool
        Stage 3 only: parameters are freed after the forward and gathered again for the backward.
    reduce_each_microbatch : bool
        Stages 2 and 3: gradients are reduced after every micro-batch, not only after the last.
    tp_backward_overlap : bool
        Tensor-parallel collectives of the backward run beside the weight- and input-gradient
        GEMMs of the same layer (Megatron's asynchronous all-reduce, added after SC21).
    tp_gemm_overlap : bool
        With sequence parallelism the all-gather before a GEMM and the reduce-scatter after one run in tp pieces beside
        pieces of that GEMM (Transformer Engine's userbuffers, ``tp_comm_overlap``; PyTorch's async TP).
    user_buffers : bool
        Those pieces are Transformer Engine's: copies between registered buffers by a few SMs of a kernel that stays,
        which hide more than PyTorch's (`planner.price.USER_BUFFERS_HIDDEN`).
    p2p_overlap : bool
        Pipeline sends run beside compute (Megatron does so for interleaved schedules).
    sp_saves_gathered : bool
        Sequence parallelism keeps the gathered input of a tensor-parallel region for the backward
        instead of gathering it again.
    zero1_all_reduce : bool
        ZeRO-1 all-reduces whole gradients instead of reduce-scattering them (PyTorch's
        ZeroRedundancyOptimizer; DeepSpeed, whose stage 1 goes without contiguous gradients).
    zero1_broadcast : bool
        ZeRO-1 broadcasts the updated shards one after the other instead of an all-gather
        (ZeroRedundancyOptimizer).
    scatter_gather_p2p : bool
        Without sequence parallelism each tp rank sends its share of the boundary activation and
        the receivers all-gather it inside the tp group (SC21, section 4.1).
    clips_gradients : bool
        A gradient norm over all ranks comes before the optimizer step.
    fused_optimizer : bool
        One multi-tensor kernel; False: eager operators over each parameter.
    graphed : str
        Parts of a layer that are replayed from graphs of their own, joined by ``+``: attn (norms and attention),
        moe_router, moe_preprocess (permutation before the dispatch); their launches cost no host time (Megatron-Core
        ``--cuda-graph-scope``).
    cuda_graphs : bool
        Kernels are replayed from a graph, so that host launch time vanishes.
    blocking_launches : bool
        The host waits for every kernel before it launches the next (``CUDA_LAUNCH_BLOCKING=1``): host time
        and kernels add up, and nothing overlaps.
    fused_softmax_keys : int
        Longest row of scores that the fused softmax kernel of ``unfused-fused-softmax`` takes.
    vocab_multiple : int
        The vocabulary is padded to a multiple of this many rows a tensor-parallel rank; 0: not padded.
    kernel_s, microbatch_s, step_s : HostConstant
        Host seconds a kernel on top of the device's launch time; a micro-batch; a step.
    bucket_bytes_per_dp : int
        A bucket holds at least this times the data-parallel ranks.
    bucket_bytes : int
        Bytes of one gradient bucket in the dtype in which it is reduced.
    notes : str
        What a reader should know about the defaults.
    source : str
        Where the switches were read.
    """

    name: str
    attention: Attention = "flash"
    attention_impl: str = "flash"
    skips_masked: bool = True
    dropout: bool = False
    fused_elementwise: bool = True
    gemm_impl: str = "vidur"
    fused_norm: bool = True
    fused_cross_entropy: bool = False
    in_place_loss: bool = False
    transformer_engine: bool = False
    userbuffers: bool = False
    deterministic: bool = False
    loads_whole: bool = False
    saves_whole: bool = False
    flat_gradients: bool = False
    offload_core: bool = False
    pipeline_communicators: int = 0
    logs_memory: MemoryLog = "device"
    grad_dtype: GradDtype = "fp32"
    fused_grad_accumulation: bool = False
    overlap_grad_reduce: bool = True
    overlap_split_reduce: bool = True
    main_grad_buffer: bool = False
    fp8_recipe: str = "fp8-current"
    scalings: tuple[str, ...] = SCALED
    bf16_ends: bool = True
    quantised_params: tuple[str, ...] = ()
    quantised_tp_gather: bool = False
    quantised_dispatch: bool = False
    quantised_activation_input: bool = False
    fused_norm_quantise: bool = False
    compute_copy: bool = True
    overlap_param_gather: bool = True
    norm_in_linear: bool = False
    recompute_stops_early: bool = False
    recomputes: tuple[str, ...] = RECOMPUTES
    uneven_stages: bool = True
    recompute_by_stage: bool = False
    shard_copies: bool = False
    flat_parameters: bool = False
    apart_gradients: bool = False
    unpads_attention: bool = False
    logged_losses: int = 0
    selective: str = "selective"
    torch_compile: bool = False
    fused_residual_norm: bool = False
    prefetch_params: bool = True
    zero_stage: int = 0
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    pipeline_zero_max: int = 3
    split_keeps_graph: bool = False
    schedules: tuple[str, ...] = SCHEDULES
    searched_schedules: tuple[str, ...] = SCHEDULES
    interleaved_rounds: Rounds = "any"
    cp_kind: str = "ring"
    cp_kinds: tuple[str, ...] = CP_KINDS
    orders: tuple[str, ...] = ORDERS
    order_keeps_groups: bool = False
    sequence_parallel: bool = False
    blank_vpp: int = 1
    config_mtp: bool = False
    pipeline_keeps_gathered: bool = True
    reshard_after_forward: bool = True
    reduce_each_microbatch: bool = False
    tp_backward_overlap: bool = True
    tp_gemm_overlap: bool = False
    user_buffers: bool = False
    p2p_overlap: bool = True
    sp_saves_gathered: bool = False
    zero1_all_reduce: bool = False
    zero1_broadcast: bool = False
    scatter_gather_p2p: bool = False
    clips_gradients: bool = True
    fused_optimizer: bool = True
    graphed: str = ""
    cuda_graphs: bool = False
    blocking_launches: bool = False
    fused_softmax_keys: int = 4096
    vocab_multiple: int = 0
    kernel_s: HostConstant = UNFITTED
    microbatch_s: HostConstant = UNFITTED
    step_s: HostConstant = UNFITTED
    bucket_bytes: int = 25 * 1024 * 1024
    bucket_bytes_per_dp: int = 0
    notes: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        faults = []
        where = f"preset {self.name}"
        for key, known in (
            ("attention", ATTENTION), ("grad_dtype", GRAD_DTYPES), ("interleaved_rounds", ROUNDS),
            ("logs_memory", MEMORY_LOGS), ("fp8_recipe", FP8_RECIPES),
        ):  # fmt: skip
            if getattr(self, key) not in known:
                faults.append(Fault(f"{key} is {getattr(self, key)!r}", where, "", "one of " + ", ".join(known)))
        faults += [
            Fault(f"{key} has {scaling!r}", where, "", "out of " + ", ".join(SCALED))
            for key in ("scalings", "quantised_params")
            for scaling in getattr(self, key)
            if scaling not in SCALED
        ]
        faults += self.moe_faults(where)
        if self.cp_kinds and self.cp_kind not in self.cp_kinds:
            faults.append(Fault(f"cp_kind is {self.cp_kind!r}", where, "", "one of " + ", ".join(self.cp_kinds)))
        faults += [
            Fault(f"graphed has {word!r}", where, "", "parts out of " + ", ".join(GRAPHED))
            for word in filter(None, self.graphed.split("+"))
            if word not in GRAPHED
        ]
        faults += [
            Fault(f"{key} is {getattr(self, key)}", where, "it is a ZeRO stage", "0 to 3")
            for key in ("zero_stage", "pipeline_zero_max")
            if not 0 <= getattr(self, key) <= 3
        ]
        if not self.orders or not set(self.orders) <= set(ORDERS):
            what = f"orders are {', '.join(map(repr, self.orders)) or 'none'}"
            faults.append(Fault(what, where, "", "one or more of " + ", ".join(ORDERS)))
        if self.blank_vpp < 1:
            faults.append(Fault(f"blank_vpp is {self.blank_vpp}", where, "a rank has a stage", "1 or more"))
        faults += [
            Fault(f"{key} is {getattr(self, key)}", where, "it counts rows", "0 or more")
            for key in ("fused_softmax_keys", "vocab_multiple", "logged_losses")
            if getattr(self, key) < 0
        ]
        faults += [
            Fault(f"{key} is {getattr(self, key)}", where, "less than none", "0 or more")
            for key in ("pipeline_communicators", "bucket_bytes_per_dp")
            if getattr(self, key) < 0
        ]
        if self.bucket_bytes <= 0:
            faults.append(Fault(f"bucket_bytes is {self.bucket_bytes}", where, "a bucket holds something", "26214400"))
        faults += [
            Fault(f"{key} is negative", where, "host time is added", "0 or more")
            for key in ("kernel_s", "microbatch_s", "step_s")
            if getattr(self, key).value < 0
        ]
        if faults:
            raise InputError(faults)

    @property
    def distributed_optimizer(self) -> bool:
        """Whether optimizer states are sharded over dp by default."""
        return self.zero_stage >= 1

    def gradient_dtype(self, precision: str) -> str:
        """Dtype of accumulated and reduced gradients when computing in `precision`."""
        if self.grad_dtype == "fp16-else-fp32":
            return "fp16" if precision == "fp16" else "fp32"
        return precision if self.grad_dtype == "same" else self.grad_dtype
