"""What the executor can run, decided from the plan alone and before any process starts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hwmodels.errors import Fault, InputError
from planner.model.spec import AnyAttention, Attention, LatentAttention, ModelSpec, Moe
from planner.plan import Plan
from planner.schedule import Action, Kind
from planner.schedule import get as get_schedule
from planner.schedule import names as schedule_names

PRECISIONS: tuple[str, ...] = ("fp32", "bf16")
OPTIMIZERS: tuple[str, ...] = ("adamw", "sgd")
ACTIVATIONS: tuple[str, ...] = ("silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "relu2")
"""Feed-forward activations that the executor's model has."""


def check(plan: Plan, model: ModelSpec) -> list[Fault]:
    """Everything that keeps `plan` from running here, each with its reason; empty if nothing does.

    Parameters
    ----------
    plan : Plan
        A training plan; its own validity (`planner.layout`) is taken as given.
    model : ModelSpec
        The model that `plan.model` describes.
    """
    if plan.kind != "training":
        return [
            Fault(f"plan of kind {plan.kind!r}", plan.name, "the executor trains", "a training plan", "executor-kind")
        ]
    return [
        *_degrees(plan),
        *_workload(plan),
        *_model(plan, model),
        *_tensor_parallel(plan, model),
        *_stages(plan, model),
    ]


def require(plan: Plan, model: ModelSpec) -> None:
    """Raise `InputError` with all faults of `check`; return silently when the plan can run."""
    found = check(plan, model)
    if found:
        raise InputError(found)


def _fault(plan: Plan, rule: str, what: str, why: str, fix: str) -> Fault:
    return Fault(what, f"plan {plan.name}", why, fix, rule)


def _degrees(plan: Plan) -> Iterator[Fault]:
    lay = plan.layout
    if lay.cp > 1:
        yield _fault(
            plan, "executor-cp", f"cp={lay.cp}", "context-parallel attention is predicted but not executed", "cp=1"
        )
    if lay.ep > 1 or lay.etp > 1:
        yield _fault(
            plan,
            "executor-ep",
            f"ep={lay.ep} etp={lay.etp}",
            "experts run whole on every data-parallel rank",
            "ep=1 etp=1",
        )
    if any((a.node, a.gpu) > (b.node, b.gpu) for a, b in pairwise(plan.placement)):
        yield _fault(
            plan, "executor-placement", "placement moves ranks", "ranks are started in order, node by node",
            "the hosts in the order of the placement, or ranks in order",
        )  # fmt: skip
    fsdp = lay.fsdp or lay.dp
    if lay.zero_stage == 1 and fsdp != lay.dp:
        yield _fault(
            plan,
            "executor-zero1-group",
            f"zero_stage=1 with fsdp={fsdp} of dp={lay.dp}",
            "ZeroRedundancyOptimizer shards over the whole data-parallel group",
            f"fsdp={lay.dp}, or zero_stage=3",
        )
    shares = set(plan.batch_share)
    if len(shares) > 1:
        yield _fault(
            plan,
            "executor-batch-share",
            f"batch shares {list(plan.batch_share)}",
            "data-parallel ranks average gradients of equal batches",
            "equal shares",
        )


def _workload(plan: Plan) -> Iterator[Fault]:
    work = plan.workload
    if work.precision not in PRECISIONS:
        why = {"fp16": "no loss scaling is executed", "tf32": "products keep the precision of their operands"}
        reason = why.get(work.precision, "no scaled 8- or 4-bit kernels, casts or weight copies are executed")
        fix = " or ".join(PRECISIONS)
        yield _fault(plan, "executor-precision", f"precision {work.precision}", reason, fix)
    if work.optimizer not in OPTIMIZERS:
        why_not = "PyTorch's AdamW and SGD with fp32 state are executed"
        fix = " or ".join(OPTIMIZERS)
        yield _fault(plan, "executor-optimizer", f"optimizer {work.optimizer}", why_not, fix)
    if work.lora is not None:
        what = f"LoRA of rank {work.lora.rank}" + (f" on a {work.lora.base} base" if work.lora.base else "")
        yield _fault(
            plan, "executor-lora", what, "every weight is trained; adapters are predicted only", "kind pretrain"
        )
    if work.documents is not None:
        what = f"packed documents of {work.documents.mean_tokens:g} tokens"
        yield _fault(plan, "executor-documents", what, "one document fills a sequence", "no documents")
    if work.mtp_layers:
        what = f"{work.mtp_layers} prediction steps"
        yield _fault(plan, "executor-mtp", what, "the decoder and its head alone are run", "mtp_layers 0")
    if work.images:
        what = f"{work.images:g} images a sequence"
        yield _fault(plan, "executor-images", what, "the vision tower is not run", "images 0")
    if work.grad_dtype:
        yield _fault(
            plan, "executor-grad-dtype", f"grad_dtype {work.grad_dtype}", "gradients have the wrapper's own dtype",
            "leave grad_dtype out",
        )  # fmt: skip
    if work.main_dtype != "fp32":
        yield _fault(
            plan, "executor-main-dtype", f"main_dtype {work.main_dtype}", "main weights are kept in fp32",
            "main_dtype fp32",
        )  # fmt: skip


def _model(plan: Plan, model: ModelSpec) -> Iterator[Fault]:
    if model.frozen_blocks:
        yield _fault(
            plan,
            "executor-frozen",
            f"{model.name} has frozen blocks",
            "only the language model is executed",
            "a text-only config",
        )
    if model.learned_positions and model.learned_positions < plan.workload.seq_len:
        yield _fault(
            plan,
            "executor-positions",
            f"seq_len={plan.workload.seq_len}",
            f"the position table has {model.learned_positions} rows",
            f"seq_len={model.learned_positions}",
        )
    for kind in model.layer_kinds():
        attention = kind.softmax
        if isinstance(attention, LatentAttention):
            yield _fault(
                plan,
                "executor-mla",
                f"{model.name} uses latent attention",
                "the executor has grouped-query attention only",
                "a dense or GQA model",
            )
        if attention is None or kind.ffn is None:
            yield _fault(
                plan,
                "executor-mixer",
                f"{model.name} has layers that are not attention with a feed-forward part behind",
                "recurrent mixers and blocks of one part are not implemented",
                "a dense or MoE transformer",
            )
            continue
        strange = _strange(attention, model, plan.workload.seq_len)
        if strange:
            yield _fault(
                plan, "executor-variant", f"{model.name} has {strange}", "it is not implemented", "a model without it"
            )
        if attention.softcap:
            yield _fault(
                plan,
                "executor-softcap",
                f"{model.name} caps attention scores",
                "scaled_dot_product_attention has no soft cap",
                "a model without it",
            )
        if attention.window is not None and attention.window < plan.workload.seq_len:
            yield _fault(
                plan,
                "executor-window",
                f"sliding window {attention.window}",
                "attention runs over the whole sequence",
                f"seq_len={attention.window}",
            )
        if kind.ffn.activation not in ACTIVATIONS:
            yield _fault(
                plan,
                "executor-activation",
                f"activation {kind.ffn.activation!r}",
                "it is not implemented",
                ", ".join(ACTIVATIONS),
            )


def _strange(attention: AnyAttention, model: ModelSpec, seq_len: int) -> str:
    """What of a model the executor's attention, embedding or head leaves out, in words; else blank."""
    chunked = attention.chunk is not None and attention.chunk < seq_len
    parts = (
        ("attention in both directions", not attention.causal),
        ("attention sinks", attention.sinks),
        ("gated attention", attention.gated),
        ("layers without positions", not attention.rotary and not model.learned_positions),
        ("attention within chunks", chunked),
        ("norms of q and k without weights", isinstance(attention, Attention) and attention.qk_norm == "unit"),
        ("patches instead of tokens", model.patches is not None),
        ("a norm behind the embedding", model.embedding_norm),
        ("a dense layer before the head", model.head_transform),
    )
    return ", ".join(name for name, present in parts if present)


def _tensor_parallel(plan: Plan, model: ModelSpec) -> Iterator[Fault]:
    tp = plan.layout.tp
    if tp == 1:
        return
    if model.vocab % tp:
        yield _fault(
            plan,
            "executor-vocab",
            f"vocabulary {model.vocab} with tp={tp}",
            "each rank takes an equal part of embedding and head",
            f"a vocabulary padded to {-(-model.vocab // tp) * tp}",
        )
    for kind in model.layer_kinds():
        attention = kind.softmax
        if attention is None:
            continue
        if attention.n_kv_heads % tp:
            yield _fault(
                plan,
                "executor-kv-copies",
                f"tp={tp} with {attention.n_kv_heads} key-value heads",
                "key-value heads are split, not copied",
                f"tp={attention.n_kv_heads}",
            )
        if isinstance(attention, Attention) and attention.qk_norm == "full":
            yield _fault(
                plan,
                "executor-qk-norm",
                f"tp={tp} with a norm over all heads",
                "the norm would need a reduction over the heads of all ranks",
                "tp=1",
            )
        if isinstance(kind.ffn, Moe):
            yield _fault(plan, "executor-moe-tp", f"tp={tp} with experts", "experts are not split over tp", "tp=1")


def _stages(plan: Plan, model: ModelSpec) -> Iterator[Fault]:
    lay = plan.layout
    length = lay.pp * lay.vpp
    held = sorted(i for stage in plan.stages[:length] for i in stage.layers)
    if held != list(range(model.n_layers)):
        yield _fault(
            plan,
            "executor-layers",
            f"stages hold layers {held}",
            f"{model.name} has layers 0..{model.n_layers - 1}, each once",
            "stages that cover them",
        )
    if lay.pp > 1 and len(plan.actions) != lay.pp:
        yield _fault(
            plan,
            "executor-actions",
            f"{len(plan.actions)} action lists",
            f"pp={lay.pp} ranks each need one",
            "a plan built by build_plan",
        )
    schedule = get_schedule(lay.schedule)
    recomputed = sorted({stage.recompute for stage in plan.stages} - {"none"})
    if recomputed and any(Action.parse(text).kind is Kind.BACKWARD_WEIGHT for rank in plan.actions for text in rank):
        yield _fault(
            plan,
            "executor-split-recompute",
            f"recompute={' and '.join(recomputed)} with schedule {lay.schedule}",
            "PyTorch computes each weight gradient in a graph task of its own, and each runs the layer's forward again",
            "recompute=none, or schedule 1f1b",
        )
    others = [policy for policy in recomputed if policy not in ("selective", "full")]
    if others:
        yield _fault(
            plan,
            "executor-recompute",
            f"recompute={' and '.join(others)}",
            "the executor recomputes the attention core or every whole layer",
            "recompute=none, selective or full",
        )
    if schedule.directions > 1:
        known = [name for name in schedule_names() if get_schedule(name).torch_class]
        yield _fault(
            plan,
            "executor-bidirectional",
            f"schedule {lay.schedule}",
            "PyTorch's pipelining runtime runs one pipeline, whose stages each lie on one rank",
            "dualpipe-v (vpp=2), which folds the second direction into the first, or " + ", ".join(known),
        )
