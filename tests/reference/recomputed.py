"""What recomputation keeps, rebuilds and runs again of one layer, and which layers it works on, in plain floats.

Korthikanti et al. (arXiv 2205.05198, section 5) for the attention core and whole layers; Megatron-Core's
``--recompute-modules``, ``--recompute-method`` and ``--recompute-num-layers``; torchtitan's selective checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.layout import Layout
from planner.model.spec import DecoderLayer, LatentAttention, Moe, Weight
from tests.reference.ops import Item, Rank


@dataclass
class Saved:
    """Bytes that a layer saves: attention outside the core, the core, the feed-forward part, norms and masks.

    And the rows of the routed experts that the rank holds, and what context parallelism holds for a moment.
    """

    attention: float
    core: float
    feed: float
    other: float
    rows: float
    exchanged: float = 0.0


@dataclass
class Recomputed:
    """Share of each forward item that runs again, bytes kept, bytes rebuilt at a time."""

    share: Callable[[Item], float]
    kept: float
    rebuilt: float


def recomputed(rank: Rank, layer: DecoderLayer, saved: Saved) -> Recomputed:
    """Under the layout's policy."""
    kind = rank.layout.recompute
    whole = saved.attention + saved.core + saved.feed + saved.other
    row = rank.tokens_sp * rank.hidden * rank.width
    _stop_early(rank, layer)
    if kind == "none":
        return Recomputed(lambda _: 0.0, whole, 0.0)
    if kind == "selective":
        return _selective(rank, layer, saved, whole)
    if kind == "op":
        kept = row + _outputs(rank, layer)
        return Recomputed(lambda i: 0.0 if i.rerun == "never" else min(i.whole, i.by_op), kept, max(whole - kept, 0.0))
    return Recomputed(lambda i: 0.0 if i.rerun == "never" else i.whole, row, whole)


def _stop_early(rank: Rank, layer: DecoderLayer) -> None:
    """PyTorch leaves out what comes behind the last saved tensor: the down projection and the sums after it."""
    if not rank.preset.recompute_stops_early or layer.parallel or isinstance(layer.ffn, Moe):
        return
    tail = {"mlp.down", "mlp.down.B", "mlp.down.add"} | (set() if rank.preset.dropout else {"ffn.residual"})
    for item in rank.items:
        if item.name in tail:
            item.whole = 0.0


def _selective(rank: Rank, layer: DecoderLayer, saved: Saved, whole: float) -> Recomputed:
    names = rank.layout.recompute_modules or ("core_attn",)
    h, a, ffn = rank.hidden, layer.softmax, layer.ffn
    norm_0 = norm_1 = drop = entering = 0.0
    largest = [0.0]
    alone_0 = isinstance(a, LatentAttention) or not rank.preset.norm_in_linear
    alone_1 = isinstance(ffn, Moe) or not rank.preset.norm_in_linear
    checkpoint = rank.tokens_kept * h * rank.width
    if isinstance(ffn, Moe):
        entering = rank.input_kept(rank.tokens_sp, h, "", high=True)
        if ffn.shared_ffn_hidden:
            entering += rank.input_kept(rank.tokens_kept, h, "up", free=rank.lora is None)
    elif ffn is not None:
        entering = rank.input_kept(rank.tokens_kept, h, "up")
    if not layer.parallel:
        norm_0 = rank.input_kept(rank.tokens_kept, h, "qkv") if alone_0 and a is not None else 0.0
        norm_1 = entering if alone_1 else 0.0
    if "core_attn" in names:
        drop += saved.core
        largest.append(saved.core)
    if "layernorm" in names:
        drop += norm_0 + norm_1
        largest.append(norm_0 + norm_1)
    if "mla_up_proj" in names and isinstance(a, LatentAttention):
        heads = a.n_heads / rank.layout.tp
        made = rank.width * rank.tokens * heads * (2 * a.qk_dim + a.v_dim)
        drop += made
        largest.append(made)
    if ffn is not None and ("moe" if isinstance(ffn, Moe) else "mlp") in names:
        largest.append(saved.feed)
        drop += saved.feed - (norm_1 if "layernorm" in names else 0.0)
        if not layer.parallel and not ("layernorm" in names and alone_1):
            drop -= checkpoint
    elif isinstance(ffn, Moe):
        act, shared = _expert_parts(rank, ffn, saved.rows)
        for module, nbytes in (("moe_act", act), ("shared_experts", shared)):
            if module in names:
                drop += nbytes
                largest.append(nbytes)
    chosen = set(names)
    return Recomputed(lambda i: float(i.rerun != "never" and bool(i.modules & chosen)), whole - drop, max(largest))


def _expert_parts(rank: Rank, ffn: Moe, rows: float) -> tuple[float, float]:
    """Bytes kept of the expert activation's output, and inside the shared experts."""
    lay = rank.layout
    act = rank.input_kept(rows, ffn.ffn_hidden / lay.etp, "")
    if not ffn.shared_ffn_hidden:
        return act, 0.0
    width = ffn.shared_ffn_hidden / lay.tp
    per = 1.0 if ffn.gated and rank.narrow and rank.preset.quantised_activation_input else rank.width
    inside = per * rank.tokens * width * (2 if ffn.gated else 1)
    return act, inside + rank.input_kept(rank.tokens, width, "down")


def _outputs(rank: Rank, layer: DecoderLayer) -> float:
    """What the kept ops make: attention, the first, third ... product, reduce-scatters; marks the rest to run again."""
    a = layer.softmax
    mixer = a.parameters(rank.model.hidden) if a is not None else ()
    total = rank.tokens * a.n_heads / rank.layout.tp * (a.v_dim * rank.width + 4) if a is not None else 0.0
    columns: dict[str, list[float]] = {}
    keep = True
    for p in (*mixer, *(layer.ffn.parameters(rank.model.hidden) if layer.ffn is not None else ())):
        if not isinstance(p, Weight) or p.expert:
            continue
        if p.name == "router":
            name = "router"
        elif p in mixer:
            name = f"attention.{p.fused_with or p.name}"
        else:
            part = p.name.removeprefix("shared_").replace("gate", "up") if p.name != "shared_expert_gate" else p.name
            name = f"{'shared' if isinstance(layer.ffn, Moe) else 'mlp'}.{part}"
        columns.setdefault(name, [0.0, 0.0])[0 if keep else 1] += p.n_out
        if keep:
            total += (rank.tokens_sp if p.shard == "replicated" else rank.tokens) * rank.columns(p) * rank.width
        keep = not keep
    for item in rank.items:
        if item.comm and item.kind == "reduce_scatter":
            item.by_op = 0.0
        elif not item.comm and item.name in columns:
            kept, again = columns[item.name]
            item.by_op = again / (kept + again)
    exits = int(layer.attention is not None)
    if layer.ffn is not None:
        exits += bool(layer.ffn.shared_ffn_hidden) if isinstance(layer.ffn, Moe) else 1
    return total + (exits * rank.tokens_sp * rank.hidden * rank.width if rank.layout.sp else 0.0)


def rebuilt_together(lay: Layout, part: int, length: int) -> list[list[int]]:
    """Layers of a virtual stage that are rebuilt together, chunk by chunk; the others are saved whole."""
    if lay.recompute == "none":
        return []
    numbers = lay.recompute_layers
    n = {"full": 1, "every": 2}.get(lay.recompute, length)
    if numbers:
        n = numbers[part] if len(numbers) > 1 else numbers[0]
    if lay.recompute == "full":
        return [list(range(length))[i : i + n] for i in range(0, length, n)]
    if lay.recompute == "every":
        return [[i] for i in range(n - 1, length, n)]
    return [[i] for i in range(n if lay.recompute == "block" else length) if i < length]
