"""Framework presets: what a training framework does unless a plan says otherwise.

A preset holds switches (which kernels, which dtypes, what overlaps) and at most three host
constants of its own: per kernel, per micro-batch and per step. It never holds an efficiency
or another coefficient: those describe hardware and live in the device. The state of a code
base at another time is another entry of the table ("megatron-2021"), not a branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from hwmodels.errors import Fault, InputError

Attention = Literal["flash", "unfused", "unfused-fused-softmax", "sdpa-cpu"]
GradDtype = Literal["fp32", "bf16", "same"]
SCALED: tuple[str, ...] = ("delayed", "current", "block", "mx", "nv")
"""Scalings of quantised recipes (`planner.precision`)."""

ATTENTION: tuple[str, ...] = ("flash", "unfused", "unfused-fused-softmax", "sdpa-cpu")
GRAD_DTYPES: tuple[str, ...] = ("fp32", "bf16", "same")


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

UNFITTED = HostConstant(0.0, "not fitted: the kernel launch time of the device is the only host time")


@dataclass(frozen=True, slots=True)
class FrameworkPreset:
    """Switches and defaults of one framework.

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
    grad_dtype : {'fp32', 'bf16', 'same'}
        Dtype in which gradients are accumulated and reduced; ``same`` is the compute dtype.
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
    sequence_parallel : bool
        Whether a blank `sp` means on when tp > 1.
    reshard_after_forward : bool
        Stage 3 only: parameters are freed after the forward and gathered again for the backward.
    reduce_each_microbatch : bool
        Stages 2 and 3: gradients are reduced after every micro-batch, not only after the last.
    tp_backward_overlap : bool
        Tensor-parallel collectives of the backward run beside the weight- and input-gradient
        GEMMs of the same layer (Megatron's asynchronous all-reduce, added after SC21).
    p2p_overlap : bool
        Pipeline sends run beside compute (Megatron does so for interleaved schedules).
    sp_saves_gathered : bool
        Sequence parallelism keeps the gathered input of a tensor-parallel region for the backward
        instead of gathering it again.
    zero1_all_reduce : bool
        ZeRO-1 all-reduces whole gradients and broadcasts the updated shards (PyTorch's
        ZeroRedundancyOptimizer) instead of reduce-scatter and all-gather.
    scatter_gather_p2p : bool
        Without sequence parallelism each tp rank sends its share of the boundary activation and
        the receivers all-gather it inside the tp group (SC21, section 4.1).
    clips_gradients : bool
        A gradient norm over all ranks comes before the optimizer step.
    fused_optimizer : bool
        One multi-tensor kernel; False: eager operators over each parameter.
    cuda_graphs : bool
        Kernels are replayed from a graph, so that host launch time vanishes.
    kernel_s, microbatch_s, step_s : HostConstant
        Host seconds a kernel on top of the device's launch time; a micro-batch; a step.
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
    prefetch_params: bool = True
    zero_stage: int = 0
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    pipeline_zero_max: int = 3
    split_keeps_graph: bool = False
    schedules: tuple[str, ...] = SCHEDULES
    searched_schedules: tuple[str, ...] = SCHEDULES
    sequence_parallel: bool = False
    reshard_after_forward: bool = True
    reduce_each_microbatch: bool = False
    tp_backward_overlap: bool = True
    p2p_overlap: bool = True
    sp_saves_gathered: bool = False
    zero1_all_reduce: bool = False
    scatter_gather_p2p: bool = False
    clips_gradients: bool = True
    fused_optimizer: bool = True
    cuda_graphs: bool = False
    kernel_s: HostConstant = UNFITTED
    microbatch_s: HostConstant = UNFITTED
    step_s: HostConstant = UNFITTED
    bucket_bytes: int = 25 * 1024 * 1024
    notes: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        faults = []
        where = f"preset {self.name}"
        for key, known in (("attention", ATTENTION), ("grad_dtype", GRAD_DTYPES)):
            if getattr(self, key) not in known:
                faults.append(Fault(f"{key} is {getattr(self, key)!r}", where, "", "one of " + ", ".join(known)))
        faults += [
            Fault(f"{key} has {scaling!r}", where, "", "out of " + ", ".join(SCALED))
            for key in ("scalings", "quantised_params")
            for scaling in getattr(self, key)
            if scaling not in SCALED
        ]
        if not 0 <= self.zero_stage <= 3:
            faults.append(Fault(f"zero_stage is {self.zero_stage}", where, "", "0 to 3"))
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
        return precision if self.grad_dtype == "same" else self.grad_dtype


_MEGATRON_BUCKET = 40_000_000 * 4
_MEGATRON = FrameworkPreset(
    name="megatron",
    main_grad_buffer=True,
    fused_grad_accumulation=True,
    zero_stage=1,
    zero_stages=(0, 1),
    bucket_bytes=_MEGATRON_BUCKET,
    fp8_recipe="fp8-delayed",
    quantised_tp_gather=True,
    fused_norm_quantise=True,
    notes="Megatron-Core with Transformer Engine as its own launch recipes run it: flash attention, no dropout, fp32 "
    "main gradients, distributed optimizer with overlapped reduce-scatter and all-gather; buckets of 40 M "
    "gradients.",
    source="github NVIDIA/Megatron-LM README (launch flags), megatron/core/distributed/distributed_data_parallel.py"
    " (bucket size max(40e6, 1e6*dp) parameters)",
)
_MEGATRON_2021 = FrameworkPreset(
    name="megatron-2021",
    main_grad_buffer=True,
    prefetch_params=False,
    zero_stages=(0,),
    scalings=(),
    scatter_gather_p2p=True,
    attention="unfused-fused-softmax",
    dropout=True,
    grad_dtype="same",
    overlap_grad_reduce=False,
    overlap_param_gather=False,
    tp_backward_overlap=False,
    p2p_overlap=False,
    bucket_bytes=_MEGATRON_BUCKET,
    notes="Megatron-LM of spring 2021 (SC21 paper): batched-GEMM attention with the fused scale-mask-softmax kernel, "
    "dropout 0.1, gradients in fp16 with fp16 compute (accumulate_allreduce_grads_in_fp32 is forced for bf16 "
    "only), one all-reduce after the last backward, no sharded optimizer, blocking pipeline sends. Its "
    "unpipelined SC21 runs used torch's DDP, which overlaps; that is not told apart here.",
    source="Narayanan et al. 2021 (arXiv 2104.04473) section 4; github NVIDIA/Megatron-LM tag v2.5 megatron/model, "
    "megatron/arguments.py, examples/sc21/run_table_1.sh",
)
_DEEPSPEED = FrameworkPreset(
    name="deepspeed",
    main_grad_buffer=True,
    pipeline_zero_max=1,
    grad_dtype="same",
    zero_stage=1,
    overlap_grad_reduce=True,
    overlap_param_gather=False,
    reduce_each_microbatch=True,
    p2p_overlap=False,
    bucket_bytes=500_000_000 * 2,
    notes="DeepSpeed with a recent PyTorch: flash attention, gradients in the compute dtype, overlap_comm on, buckets "
    "of 5e8 elements, FusedAdam.",
    source="DeepSpeed configuration reference: zero_optimization.reduce_bucket_size 5e8, allgather_bucket_size 5e8",
)
_NEMO = replace(
    _MEGATRON,
    name="nemo",
    sequence_parallel=True,
    grad_dtype="bf16",
    quantised_params=("delayed", "current", "mx"),
    quantised_activation_input=True,
    bf16_ends=False,
    notes="NeMo, Megatron-Bridge and NVIDIA's MLPerf submissions: Megatron-Core recipes with sequence parallelism "
    "wherever tp > 1, distributed optimizer and all overlaps on; gradients reduced in bf16; weights in fp8 only with "
    "tensor-wide and MX scales, SwiGLU inputs kept in fp8, every decoder layer in the recipe.",
    source="github NVIDIA-NeMo/Megatron-Bridge scripts/performance recipes, training/mixed_precision.py "
    "(grad_reduce_in_fp32, fp8_param_gather, first_last_layers_bf16) and CHANGELOG; NeMo performance guide",
)

_PRESETS: dict[str, FrameworkPreset] = {
    p.name: p
    for p in (
        FrameworkPreset(
            name="generic",
            reduce_each_microbatch=True,
            schedules=(*TORCH_SCHEDULES, "dualpipe"),
            quantised_params=("delayed", "current", "block", "mx"),
            quantised_tp_gather=True,
            quantised_dispatch=True,
            fused_norm_quantise=True,
            notes="A well-made framework: flash attention, fused kernels, fp32 gradients, overlapped reduction in DDP's"
            " 25 MiB buckets. It runs every pipeline schedule; a search tries the zero-bubble and dual ones when "
            "asked, since few frameworks have them.",
            source="PyTorch DistributedDataParallel documentation (bucket_cap_mb=25)",
        ),
        _MEGATRON,
        _MEGATRON_2021,
        replace(
            _MEGATRON_2021,
            name="megatron-2022",
            fused_grad_accumulation=True,
            tp_backward_overlap=True,
            notes="Megatron-LM of 2022 (Korthikanti et al.): as megatron-2021, plus sequence parallelism and selective "
            "recomputation of the attention core, which rows and plans switch on by `sp` and `recompute`.",
            source="Korthikanti et al. 2022 (arXiv 2205.05198) sections 4-5; github NVIDIA/Megatron-LM tag v3.0",
        ),
        _DEEPSPEED,
        replace(
            _DEEPSPEED,
            name="deepspeed-2022",
            scalings=(),
            attention="unfused-fused-softmax",
            dropout=True,
            overlap_grad_reduce=False,
            overlap_param_gather=False,
            notes="Megatron-DeepSpeed of 2021-2022 (BLOOM, vTrain): Megatron's unfused attention with the fused softmax"
            " kernel, gradients reduced after the pipeline has drained, ZeRO-1.",
            source="github bigscience-workshop/Megatron-DeepSpeed; DeepSpeed runtime/pipe/engine.py (reduce after the "
            "last backward)",
        ),
        FrameworkPreset(
            name="fsdp2",
            schedules=TORCH_SCHEDULES,
            searched_schedules=TORCH_SCHEDULES,
            split_keeps_graph=True,
            compute_copy=False,
            quantised_params=("current",),
            bf16_ends=False,
            grad_dtype="fp32",
            zero_stage=3,
            reduce_each_microbatch=True,
            notes="PyTorch FSDP2 as torchtitan uses it: one group a layer, prefetch of the next group, reductions in "
            "fp32, reshard after forward without a pipeline, SDPA flash attention, eager elementwise kernels "
            "unless compiled; float8 with dynamic tensor-wide scales and float8 all-gather.",
            attention_impl="flashattn-fa2",
            fused_elementwise=False,
            fused_norm=True,
            source="PyTorch scaled_dot_product_attention (FlashAttention-2); github pytorch/torchtitan "
            "torchtitan/models/llama3/infra/parallelize.py; MixedPrecisionPolicy(reduce_dtype=float32); "
            "torchtitan docs/float8.md (enable_fsdp_float8_all_gather)",
        ),
        FrameworkPreset(
            name="composer",
            attention_impl="flashattn-fa2",
            skips_masked=False,
            compute_copy=False,
            fp8_recipe="fp8-delayed",
            grad_dtype="same",
            zero_stage=3,
            fused_elementwise=False,
            fused_norm=False,
            fused_cross_entropy=True,
            reduce_each_microbatch=True,
            fused_optimizer=False,
            notes="MosaicML Composer with llm-foundry: FSDP1, one group a block, FlashAttention-2 with MPT's ALiBi "
            "bias, which computes the masked half as well (rows of 8,000 tokens and more show it), eager elementwise "
            "kernels, low precision LayerNorm as an eager operator, eager decoupled AdamW, flash-attn's cross "
            "entropy.",
            source="github mosaicml/llm-foundry scripts/train/benchmarking; composer mixed_precision DEFAULT",
        ),
        _NEMO,
        replace(
            _MEGATRON,
            name="primus",
            notes="AMD Primus with the Megatron backend: the switches of megatron on ROCm.",
            source="github AMD-AGI/Primus examples/megatron/configs",
        ),
        FrameworkPreset(
            name="ours",
            schedules=TORCH_SCHEDULES,
            searched_schedules=TORCH_SCHEDULES,
            split_keeps_graph=True,
            compute_copy=False,
            overlap_param_gather=False,
            zero_stages=(0, 1, 2, 3),
            sp_saves_gathered=True,
            zero1_all_reduce=True,
            reduce_each_microbatch=True,
            attention="sdpa-cpu",
            tp_backward_overlap=False,
            clips_gradients=False,
            grad_dtype="same",
            fused_elementwise=False,
            fused_norm=False,
            fused_cross_entropy=False,
            overlap_grad_reduce=True,
            overlap_split_reduce=False,
            p2p_overlap=True,
            fused_optimizer=True,
            notes="The executor of this project on CPU and gloo: scaled_dot_product_attention, PyTorch's eager "
            "operators, DDP with 25 MiB buckets or FSDP2, torch.distributed.pipelining.",
            source="package executor",
        ),
    )
}

_SOURCES: tuple[tuple[str, str], ...] = (
    ("Megatron-LM SC21", "megatron-2021"),
    ("Korthikanti", "megatron-2022"),
    ("Megatron-Bridge", "nemo"),
    ("NeMo docs", "nemo"),
    ("Megatron-LM functional-test", "megatron"),
    ("SimuMax", "megatron"),
    ("torchtitan", "fsdp2"),
    ("llm-foundry", "composer"),
    ("BigScience", "deepspeed-2022"),
    ("vTrain", "deepspeed-2022"),
    ("MLPerf", "nemo"),
    ("Primus", "primus"),
)
"""Part of a measurement's `source` -> preset; the first that matches, case ignored."""


def names() -> tuple[str, ...]:
    """Names of all presets."""
    return tuple(_PRESETS)


def get(name: str) -> FrameworkPreset:
    """The preset called `name`; `InputError` with the known names otherwise."""
    try:
        return _PRESETS[name]
    except KeyError:
        what = f"unknown framework preset {name!r}"
        raise InputError(Fault(what, "framework", "", "one of " + ", ".join(_PRESETS))) from None


@contextmanager
def instead(preset: FrameworkPreset) -> Iterator[None]:
    """`preset` in the place of the known one of its name while the block runs (fits)."""
    known = get(preset.name)
    _PRESETS[preset.name] = preset
    try:
        yield
    finally:
        _PRESETS[preset.name] = known


def preset_for_source(source: str) -> str:
    """Name of the preset that a measurement's `source` speaks of; ``generic`` where none matches.

    The only code that reads `source`. A row that names its framework does not come here.
    """
    text = source.casefold()
    return next((name for part, name in _SOURCES if part.casefold() in text), "generic")
