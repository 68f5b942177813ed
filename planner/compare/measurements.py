"""A published row as something that can be predicted: model, cluster, workload and layout.

Cells that the source leaves blank are taken at the documented default of the row's framework
preset, and the row is marked with every default taken. Where a row cannot be turned into a
case, `UnreadableRowError` says why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hwmodels.errors import InputError
from planner import frameworks, optimizers, precision
from planner.compare import recomputation, software
from planner.compare.clusters import cluster_of, in_rack
from planner.compare.flags import switches_of
from planner.compare.moe_flags import moe_switches_of, recipe_of, routing_of, with_groups
from planner.compare.parallel_flags import cp_kind_of, parallel_switches_of
from planner.compare.rows import Row
from planner.frameworks import FrameworkPreset
from planner.frameworks.switches import described
from planner.layout import Layout, split_faults
from planner.layout.splits import megatron_layout, megatron_split
from planner.model.spec import LatentAttention, Mlp, ModelSpec, Moe
from planner.plan import Lora, Workload
from planner.schedule import get as get_schedule
from planner.schedule import names as schedule_names
from planner.training import KINDS, MOST_MTP

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster

DEFAULT_VOCAB = 50257
"""Tokens of the vocabulary where they are not stated: GPT-2's. The framework pads them as it does
(`planner.vocabulary`)."""

DEFAULT_HEAD_DIM = 128
"""Width of a head where the heads are not stated: what GPT-3 and its successors use."""

DEFAULT_HEADS_STEP = 16
"""Heads that are not stated come in this many: 16, 32, 48, 64, 96, 112, 128 of the models that state theirs."""

PRECISIONS: dict[str, str] = {
    **{name: name for name in precision.names()},
    "fp8-cs": "fp8-current", "fp8-ds": "fp8-delayed", "fp8-mx": "mxfp8", "fp8-blockwise": "fp8-block",
}  # fmt: skip
"""Spelling of a precision in measurements -> in a workload (Megatron-Bridge: cs, ds, mx)."""

FP8_RECIPES: dict[str, str] = {
    "tensorwise": "fp8-current", "delayed": "fp8-delayed", "blockwise": "fp8-block", "mxfp8": "mxfp8",
}  # fmt: skip
"""Megatron's ``--fp8-recipe`` -> recipe: what a row's flags say before the default of its framework."""

OPTIMIZERS: dict[str, str] = {
    "": "adamw", "adam": "adamw", "fusedadam": "adamw", "adam distributed optimizer": "adamw",
    **{name: name for name in optimizers.names()},
}  # fmt: skip
"""Spelling of an optimizer in measurements, case ignored -> in a workload; frameworks call decoupled Adam Adam."""

_RANK = re.compile(r"\blora\s+r(\d+)\b", re.IGNORECASE)
_RECIPE = re.compile(r"\bfp8-recipe=(\w+)")


class UnreadableRowError(Exception):
    """A row cannot be turned into a case; the message says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """What `planner.predict` takes, from one row.

    Attributes
    ----------
    assumed : tuple of str
        Every default that was taken because the source does not say.
    """

    row: Row
    model: ModelSpec
    cluster: Cluster
    workload: Workload
    layout: Layout
    assumed: tuple[str, ...]


def framework_of(row: Row) -> str:
    """Name of the preset: the row's own, else that of its source (and of its recipes for racks, on a rack)."""
    if row.framework:
        return row.framework
    name = frameworks.preset_for_source(row.source)
    return frameworks.on_racks(name) if in_rack(row) else name


def known_model(name: str) -> ModelSpec | None:
    """The architecture of the catalog that a row's model name means, or None.

    Case, blanks and a remark in brackets at the end do not matter, nor do sizes that no other entry of the
    name has (Llama-4-Scout is llama-4-scout-17b-16e).
    """
    from planner.model import load, names

    plain = re.sub(r"\s*\(.*\)\s*$", "", name).strip().lower().replace(" ", "-").replace("_", "-")
    meant = [plain] if plain in names() else [n for n in names() if n.startswith(f"{plain}-")]
    return load(meant[0])[0] if len(meant) == 1 else None


def enough(row: Row) -> bool:
    """Whether the row states enough configuration to be predicted.

    Shape or known model name, gpu, n_gpus, tp, pp, seq_len, and gbs or mbs with dp. A row
    that has it and is skipped counts as a miss.
    """
    stated = None not in (row.n_gpus, row.tp, row.pp, row.seq_len) and bool(row.gpu)
    batch = row.gbs is not None or None not in (row.mbs, row.dp)
    return stated and batch and (row.shape_known or known_model(row.model) is not None)


def _heads(row: Row, assumed: list[str]) -> int:
    """The heads, or the divisor of the width that makes heads nearest to `DEFAULT_HEAD_DIM` wide.

    A multiple of tp, and of `DEFAULT_HEADS_STEP` where one divides the width.
    """
    if row.heads is not None:
        return row.heads
    hidden, tp = row.hidden or 0, row.tp or 1
    fitting = [n for n in range(tp, hidden + 1, tp) if hidden % n == 0]
    fitting = [n for n in fitting if n % DEFAULT_HEADS_STEP == 0] or fitting
    if not fitting:
        raise UnreadableRowError(f"heads are not stated and no number of heads fits hidden={hidden} with tp={tp}")
    heads = min(fitting, key=lambda n: abs(hidden / n - DEFAULT_HEAD_DIM))
    assumed.append(f"heads={heads}")
    return heads


def _agrees(row: Row, known: ModelSpec) -> bool:
    """Whether every figure of the shape that the row states is that of a known architecture.

    Then the rest (ends, norms, biases, ranks of latent attention, vocabulary) is that architecture's too.
    """
    experts = next((layer.ffn for layer in known.layers if isinstance(layer.ffn, Moe)), None)
    dense = next((layer.ffn for layer in known.layers if isinstance(layer.ffn, Mlp)), None)
    mixers = {layer.softmax.n_heads: layer.softmax for layer in known.layers if layer.softmax is not None}
    if len(mixers) != 1:
        return False
    (attention,) = mixers.values()
    latent = isinstance(attention, LatentAttention)
    pairs: list[tuple[float | None, float | None]] = [
        (row.layers, known.n_layers), (row.hidden, known.hidden), (row.heads, attention.n_heads),
        (row.n_experts or None, experts.n_experts if experts else None),
        (row.topk or None, experts.top_k if experts else None),
        (row.moe_ffn_hidden or None, experts.ffn_hidden if experts else None),
        (row.ffn_hidden or None, dense.ffn_hidden if dense else row.ffn_hidden),
    ]  # fmt: skip
    if not latent:
        pairs += [(row.kv_heads, attention.n_kv_heads), (row.head_dim, attention.qk_dim)]
    if dense is not None and row.gated_mlp is not None:
        pairs.append((row.gated_mlp, int(dense.gated)))
    stated_moe = bool(row.n_experts) == (experts is not None)
    return stated_moe and latent == (row.attention == "mla") and all(s is None or s == k for s, k in pairs)


def _model(row: Row, assumed: list[str]) -> ModelSpec:
    from planner.model.shape import from_shape

    known = known_model(row.model)
    if row.layers is None or row.hidden is None:
        if known is None:
            raise UnreadableRowError(f"the shape is not stated and {row.model!r} is not a known architecture")
        assumed.append(f"shape of {known.name}")
        return known
    if known is not None and _agrees(row, known):
        if row.vocab is None:
            assumed.append(f"vocab={known.vocab}")
        return known if row.vocab in (None, known.vocab) else replace(known, vocab=row.vocab)
    if row.n_experts and (row.moe_ffn_hidden is None or row.topk is None):
        raise UnreadableRowError("width or number of chosen experts is not stated")
    shared = (row.shared_experts or 0.0) * (row.moe_ffn_hidden or 0)
    if abs(shared - round(shared)) > 1e-6:
        raise UnreadableRowError(f"{row.shared_experts:g} shared experts of {row.moe_ffn_hidden} are no whole width")
    vocab = row.vocab
    if vocab is None:
        vocab = known.vocab if known is not None and known.hidden == row.hidden else DEFAULT_VOCAB
        assumed.append(f"vocab={vocab}")
    gated = bool(row.gated_mlp)
    if row.gated_mlp is None:
        assumed.append("gated_mlp=0")
    heads = _heads(row, assumed)
    # A gated feed-forward marks the Llama line (rotary, RMS norm, no bias, untied), the plain one GPT.
    shaped = from_shape(
        name=row.model or row.id, layers=row.layers, hidden=row.hidden, heads=heads, kv_heads=row.kv_heads or heads,
        head_dim=row.head_dim or None, ffn_hidden=row.ffn_hidden or None, gated=gated, vocab=vocab,
        seq_len=row.seq_len or 0, n_experts=row.n_experts or 0, topk=row.topk or 0,
        moe_ffn_hidden=row.moe_ffn_hidden or 0, shared_ffn_hidden=round(shared), n_dense_layers=row.n_dense_layers or 0,
        attention=row.attention, learned_positions=not gated, norm="rms" if gated else "layer", bias=not gated,
        tied=not gated,
    )  # fmt: skip
    return shaped if known is None else with_groups(shaped, known)


def _recompute(row: Row, preset: FrameworkPreset, layout: Layout, assumed: list[str]) -> Layout:
    """The layout with the recomputation that the row states; none where the cell is blank (`_unstated`)."""
    if not row.recompute:
        return layout
    found = recomputation.stated(row.recompute, preset.selective)
    if found is None:
        raise UnreadableRowError(f"recompute {row.recompute!r} is not understood")
    assumed += [found.assumed] * bool(found.assumed)
    return found.on(layout)


def _stated_schedule(row: Row) -> str:
    return re.sub(r"\s*\(.*\)\s*$", "", row.schedule).strip().lower()


def _schedule(row: Row) -> str:
    text = _stated_schedule(row) or ("interleaved-1f1b" if (row.vpp or 1) > 1 else "1f1b")
    if text not in schedule_names():
        raise UnreadableRowError(f"schedule {row.schedule!r} is not one of {', '.join(schedule_names())}")
    if row.pp == 1:
        return "1f1b"
    return text


def _keeps_gathered(row: Row) -> bool:
    """Whether a row's FSDP shards parameters between steps alone (PyTorch's SHARD_GRAD_OP, stage 2 in some sources)."""
    return row.fsdp.upper() == "SHARD_GRAD_OP"


def _zero_stage(row: Row, preset: FrameworkPreset, replicas: int, assumed: list[str]) -> int:
    """The stage over the dp·cp `replicas` of a parameter."""
    if replicas == 1:
        # Sources switch ZeRO on for a whole series; with one replica it shards nothing.
        if row.zero_stage:
            assumed.append("zero_stage=0 (one replica)")
        return 0
    if row.zero_stage is not None:
        return 3 if _keeps_gathered(row) else row.zero_stage
    if row.fsdp not in ("", "0"):
        assumed.append("zero_stage=3")
        return 3
    # FSDP stated as off leaves the optimizer of the preset, never a sharded parameter.
    stage = min(preset.zero_stage, 2) if row.fsdp == "0" else preset.zero_stage
    assumed.append(f"zero_stage={stage}")
    return stage


def _expert_degrees(row: Row, preset: FrameworkPreset, ranks: int, assumed: list[str]) -> tuple[int, int]:
    """Expert degrees (ep, etp) over the tp*cp*dp `ranks` of a stage; a dense model has no expert grid."""
    if not row.n_experts:
        return 1, 1
    ep, etp = row.ep or 1, row.etp
    if row.ep is None:
        assumed.append("ep=1")
    if etp is None:
        etp = row.tp if preset.etp_follows_tp and row.tp and ranks % (ep * row.tp) == 0 else 1
        assumed.append(f"etp={etp}")
    return ep, etp


def _layout(row: Row, preset: FrameworkPreset, assumed: list[str]) -> tuple[Layout, int]:
    """The layout and the global batch."""
    if None in (row.n_gpus, row.tp, row.pp, row.seq_len):
        missing = [k for k in ("n_gpus", "tp", "pp", "seq_len") if getattr(row, k) is None]
        raise UnreadableRowError(f"{', '.join(missing)} not stated")
    tp, pp, cp, n_gpus = row.tp or 1, row.pp or 1, row.cp or 1, row.n_gpus or 1
    dp = row.dp
    if dp is None:
        if n_gpus % (tp * pp * cp):
            raise UnreadableRowError(f"tp*pp*cp = {tp * pp * cp} does not divide {n_gpus} GPUs")
        dp = n_gpus // (tp * pp * cp)
        assumed.append(f"dp={dp}")
    if tp * pp * cp * dp != n_gpus:
        raise UnreadableRowError(f"tp*pp*cp*dp = {tp * pp * cp * dp} is not the {n_gpus} GPUs of the row")
    mbs, gbs = row.mbs, row.gbs
    if gbs is None and mbs is None:
        raise UnreadableRowError("neither gbs nor mbs is stated")
    if mbs is None:
        mbs = 1
        assumed.append("mbs=1")
    if gbs is None:
        gbs = mbs * dp * pp  # as many as fill a pipeline: what Primus' own example configurations run
        assumed.append(f"gbs={gbs} ({'a micro-batch a stage' if pp > 1 else 'one micro-batch'})")
    sp = row.sp
    if sp is None:
        sp = int(preset.sequence_parallel and tp > 1)
        if tp > 1:
            assumed.append(f"sp={sp}")
    schedule = _schedule(row)
    vpp = row.vpp or get_schedule(schedule).vpp_only or 1
    ep, etp = _expert_degrees(row, preset, tp * cp * dp, assumed)
    layout = Layout(
        tp=tp, sp=sp if tp > 1 else 0, cp=cp, pp=pp, vpp=vpp if pp > 1 else 1, dp=dp, ep=ep, etp=etp,
        zero_stage=_zero_stage(row, preset, dp * cp, assumed), mbs=mbs, schedule=schedule,
        cp_kind=cp_kind_of(row.other_flags) if cp > 1 else "",
        reshard="never" if _keeps_gathered(row) and dp > 1 else "default",
    )  # fmt: skip
    layout = software.with_offloads(layout, row.other_flags)
    return _recompute(row, preset, layout, assumed), gbs


def _interleaved(
    row: Row, layout: Layout, preset: FrameworkPreset, n_layers: int, gbs: int, assumed: list[str]
) -> Layout:
    """The layout with the virtual stages of the framework's default, where the row leaves them blank.

    Interleaving is a 1F1B schedule too: a source that says 1f1b and leaves vpp blank leaves it to the framework. One
    that says interleaved has at least two, by the same rule a layer each.
    """
    if layout.pp == 1:
        return layout
    stated, each = _stated_schedule(row), n_layers // layout.pp
    if row.vpp is None and stated in ("", "1f1b", "interleaved-1f1b"):
        most = preset.blank_vpp if preset.blank_vpp > 1 or stated != "interleaved-1f1b" else each
        rounds = n_layers % layout.pp == 0 and gbs >= layout.mbs * layout.dp * layout.pp
        vpp = max((v for v in range(1, most + 1) if each % v == 0), default=1) if rounds else 1
        layout = replace(layout, vpp=vpp, schedule="interleaved-1f1b" if vpp > 1 else layout.schedule)
    if not stated:
        assumed.append(f"schedule={layout.schedule}")
    if row.vpp is None:
        assumed.append(f"vpp={layout.vpp}")
    return layout


_FIRST_LAST = re.compile(r"decoder-(first|last)-pipeline-num-layers=(\d+)")
_PP_LAYOUT = re.compile(r"(?:pp_layout|pipeline-model-parallel-layout)=([^;]+)")


def _with_stages(row: Row, layout: Layout, n_layers: int, assumed: list[str]) -> Layout:
    """The layout with the layers of each stage, where the row's flags state them in Megatron-Core's words.

    A stated layout tells vpp where the row does not. What does not deal the model's layers is left to the
    default rule, and the row is marked so.
    """
    ends = {word: int(count) for word, count in _FIRST_LAST.findall(row.other_flags)}
    stated = _PP_LAYOUT.search(row.other_flags)
    if layout.pp == 1 or not (ends or stated):
        return layout
    try:
        if stated is None:
            first, last, vpp = ends.get("first"), ends.get("last"), layout.vpp
            split = megatron_split(n_layers, layout.pp, vpp, first=first, last=last)
        else:
            split = megatron_layout(stated[1])
            vpp = len(split) // layout.pp if row.vpp is None else layout.vpp
        dealt = not split_faults(split, n_layers, layout.pp * vpp)
    except InputError:
        dealt = False
    if not dealt:
        assumed.append("layers of the stages by the default rule: the flags do not deal the model's")
        return layout
    schedule = "interleaved-1f1b" if vpp > 1 and layout.schedule == "1f1b" else layout.schedule
    return replace(layout, vpp=vpp, schedule=schedule, stage_layers=split)


def _precision(row: Row, assumed: list[str]) -> str:
    """The recipe that the row's precision, and its flags where they say more, mean."""
    found = PRECISIONS.get(row.precision.lower())
    if found is None:
        raise UnreadableRowError(f"precision {row.precision!r} is not one of {', '.join(PRECISIONS)}")
    if found != precision.FRAMEWORKS_OWN:
        return found
    if (flag := _RECIPE.search(row.other_flags)) and flag[1] in FP8_RECIPES:
        return FP8_RECIPES[flag[1]]
    assumed.append(f"precision={frameworks.get(framework_of(row)).fp8_recipe}")
    return found


_MTP = re.compile(r"mtp[-_]num[-_]layers=(\d+)")


def _prediction_steps(row: Row) -> int:
    """Multi-token-prediction steps: by Megatron-Core's option, the ``m`` of a pipeline layout, or the known config."""
    if flag := _MTP.search(row.other_flags):
        return min(int(flag[1]), MOST_MTP)
    stated = _PP_LAYOUT.search(row.other_flags)
    if stated:
        return int("m" in stated[1])
    known = known_model(row.model) if frameworks.get(framework_of(row)).config_mtp else None
    return len(known.mtp_layers) if known is not None and known.hidden == (row.hidden or known.hidden) else 0


def _workload(row: Row, gbs: int, framework: str, assumed: list[str]) -> Workload:
    """What was trained; adapters at the rank that the row's model name states, else the defaults of `Lora`."""
    name = OPTIMIZERS.get(row.optimizer.lower())
    if name is None:
        raise UnreadableRowError(f"optimizer {row.optimizer!r} is not one of {', '.join(filter(None, OPTIMIZERS))}")
    kind = next((known for known in KINDS if known == (row.kind or "pretrain")), None)
    if kind is None:
        raise UnreadableRowError(f"kind {row.kind!r} is not one of {', '.join(KINDS)}")
    lora = None
    if kind == "lora":
        stated = _RANK.search(row.model)
        lora = Lora(rank=int(stated[1])) if stated else Lora()
        assumed += [] if stated else [f"lora rank={lora.rank}"]
        assumed.append(f"lora modules={' '.join(lora.modules)}")
    switches = software.switches_of(row.other_flags) | switches_of(row.other_flags, row.precision)
    switches |= parallel_switches_of(row.other_flags)
    assumed += software.not_modelled(row.other_flags)
    if row.n_experts:
        switches |= moe_switches_of(row.other_flags)
    return Workload(
        row.seq_len or 0, gbs, _precision(row, assumed), name, framework, kind, lora,
        switches=tuple(switches.items()), routing=routing_of(row.other_flags), mtp_layers=_prediction_steps(row),
    )  # fmt: skip


def to_case(row: Row) -> Case:
    """The row as model, cluster, workload and layout.

    Raises
    ------
    UnreadableRowError
        With the reason, where cells cannot be read, the row does not say enough, or says what is not modelled.
    """
    if row.unreadable:
        raise UnreadableRowError(row.unreadable)
    try:
        framework = framework_of(row)
        preset = frameworks.get(framework)
        assumed: list[str] = []
        layout, gbs = _layout(row, preset, assumed)
        model = _model(row, assumed)
        layout = _interleaved(row, layout, preset, model.n_layers, gbs, assumed)
        layout = _with_stages(row, layout, model.n_layers, assumed)
        workload = _workload(row, gbs, framework, assumed)
        cluster, cluster_notes = cluster_of(row)
        if recipe := recipe_of(row, framework, layout, cluster.gpus_per_node):
            workload = replace(workload, switches=(*workload.switches, *recipe))
            assumed.append(f"recipe across nodes: {described(recipe)}")
        if not row.recompute:
            found = recomputation.mildest(model, cluster, workload, layout, preset.recomputes)
            layout, assumed = found.on(layout), [*assumed, found.assumed]
    except InputError as error:
        raise UnreadableRowError(str(error)) from None
    return Case(row, model, cluster, workload, layout, (*assumed, *cluster_notes))
