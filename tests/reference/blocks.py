"""Embedding, decoder layer and head of one micro-batch on one rank: seconds by direction, bytes saved for backward."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from planner.model.spec import DecoderLayer, LatentAttention, Mamba1, Mlp, ModelSpec, Moe, Weight
from tests.reference.exchange import Core, Exchanged, degrees
from tests.reference.mixers import mixer
from tests.reference.ops import Parts, Rank
from tests.reference.recomputed import Recomputed, Saved, recomputed


@dataclass
class Block:
    """Seconds and bytes of one block. `again` is what recomputation adds to the backward."""

    forward: Parts
    input_gradient: Parts
    weight_gradient: Parts
    again: Parts
    saved: float
    """Under the layout's recomputation, where it works on this block."""
    saved_whole: float
    rebuilt: float
    """By that recomputation at a time."""
    waiting: float
    """Between I and W: inputs of the matrices and gradients of their outputs."""
    exchanged: float = 0.0
    """While context parallelism runs the core, and no longer."""
    working: float = 0.0
    """Gradients that the backward of a layer holds at a time."""


NOTHING = Parts(0.0, 0.0, 0.0)


def _finish(rank: Rank, saved: float, inputs: float, again: Recomputed | None = None) -> Block:
    """Sum the items; `inputs`: the matrices'. Only decoder layers are checkpointed (Korthikanti et al., section 5)."""
    found = again or Recomputed(lambda _: 0.0, saved, 0.0)
    return Block(rank.parts("F"), rank.parts("I"), rank.parts("W"), rank.parts("F", found.share), found.kept, saved,
                 found.rebuilt, (saved if rank.preset.split_keeps_graph else inputs) + sum(rank.gradients))  # fmt: skip


def _norm(rank: Rank, name: str) -> None:
    n = rank.tokens_sp * rank.hidden * rank.width
    if rank.preset.fused_norm:
        rank.moved(name, "F", 2 * n)
        rank.moved(f"{name}.grad", "I", (3 + 2 * rank.preset.apart_gradients) * n, 2)
    elif rank.model.norm == "rms" and rank.width == 2:
        # PyTorch's composite in fp32: cast, square, mean, product, cast, weight; and their gradients
        e = rank.tokens_sp * rank.hidden
        rank.moved(name, "F", e * ((2 + 4) + (4 + 4) + 4 + (4 + 4) + (4 + 2) + (2 + 2)), 7)
        rank.moved(f"{name}.grad", "I", e * (8 + 4 + 6 + 12 + 8 + 8 + 12 + 6), 9)
    else:
        rank.moved(name, "F", (1 + 2 + 2) * n, 7)
        rank.moved(f"{name}.grad", "I", (3 + 1 + 1 + 2 + 3 + 2) * n, 7)


def _residual(rank: Rank, name: str) -> None:
    """Read branch and residual, write their sum; dropout adds a mask, and a pass when it is apart."""
    n, w = rank.tokens_sp * rank.hidden, rank.width
    if not rank.preset.dropout:
        rank.moved(name, "F", 3 * w * n)
        rank.moved(f"{name}.grad", "I", 3 * w * n)
        return
    apart = not rank.preset.fused_elementwise
    rank.moved(name, "F", n * (3 * w + 1 + (2 * w if apart else 0)), 2 if apart else 1)
    rank.moved(f"{name}.grad", "I", n * (2 * w + 1))


def _activation(rank: Rank, name: str, rows: float, features: float, gated: bool) -> None:
    n = rows * features * rank.width
    read = 2 if gated else 1
    if rank.preset.fused_elementwise:
        extra, launches = 0, 1
    else:
        extra, launches = (2, 2) if gated else (3, 3)
    rank.moved(name, "F", n * (read + 1 + extra), launches)
    rank.moved(f"{name}.grad", "I", n * (2 * read + 1 + 2 * extra), 2 * launches - 1)


def _heads(rank: Rank, layer: DecoderLayer) -> tuple[float, float]:
    """Query and key-value heads on this rank; fewer KV heads than ranks are copied."""
    a = layer.softmax
    assert a is not None
    return a.n_heads / rank.layout.tp, max(a.n_kv_heads / rank.layout.tp, 1.0)


def _attention(rank: Rank, layer: DecoderLayer) -> tuple[float, float, float]:
    """Returns bytes saved besides the core, those of the core, and those held while it runs."""
    a, w = layer.softmax, rank.width
    assert a is not None
    heads, kv = _heads(rank, layer)
    start = len(rank.items)
    weights = [p for p in a.parameters(rank.model.hidden) if isinstance(p, Weight)]
    latent = isinstance(a, LatentAttention)
    if isinstance(a, LatentAttention):  # only the up-projections are split: the latents and the rotary key enter
        wide = (a.q_lora_rank or rank.hidden) + a.kv_lora_rank + a.rope_dim
        rank.enter("latent", "attention.kv_b", wide, module="qkv")
        rank.mark(start, "mla_up_proj")
    else:
        rank.enter("attention.qkv", module="qkv", cut=True)
    done: set[str] = set()
    for weight in weights:
        name = weight.fused_with or weight.name
        if weight.name == "o" or name in done:
            continue
        done.add(name)
        together = [p for p in weights if p.name != "o" and (p.fused_with or p.name) == name]
        rows = rank.tokens_sp if weight.shard == "replicated" else rank.tokens
        wide = sum(rank.columns(p) for p in together)
        start = len(rank.items)
        rank.linear(f"attention.{name}", rows, rank.rows_in(weight), wide, module="qkv", normed=True,
                    there=name == "qkv")  # fmt: skip
        rank.mark(start, *(("mla_up_proj",) if latent and weight.shard == "column" else ()))
    qk = w * rank.tokens * a.qk_dim * (heads + kv)
    if not rank.model.learned_positions and a.rotary:
        passes, launches = (2, 2) if rank.preset.fused_elementwise else (5 if w == 4 else 3 + 4 + 3, 8)
        start = len(rank.items)
        for way in ("F", "I"):
            rank.moved("rotary" + way, way, passes * qk * rank.model.rotary_fraction, launches)
        rank.mark(start, *(("mla_up_proj",) if latent else ()))
    if getattr(a, "qk_norm", None):
        rank.moved("qk_norm", "F", 2 * qk, 2)
        rank.moved("qk_norm.grad", "I", 3 * qk, 2)
    fused = rank.preset.attention in ("flash", "sdpa-cpu")
    found = _core(rank, layer, fused)
    if rank.preset.unpads_attention:
        # flash-attn bert_padding: index q, k, v (read, write); zeros and index_put of the output
        q, k, o = (w * rank.tokens * n for n in (heads * a.qk_dim, kv * (a.qk_dim + a.v_dim), heads * a.v_dim))
        rank.moved("unpad", "F", 2 * (q + k) + 3 * o, 5)
        rank.moved("unpad.grad", "I", 3 * (q + k) + 2 * o, 7)
    for item in rank.items:
        item.modules |= {"core_attn"} if item.rerun == "selective" else set()
    if a.gated:  # sigmoid(gate) * output: three tensors forward, five backward
        nbytes = w * rank.tokens * heads * a.v_dim
        rank.moved("gate", "F", 3 * nbytes)
        rank.moved("gate.grad", "I", 5 * nbytes)
    out = next(p for p in weights if p.name == "o")
    rank.linear("attention.o", rank.tokens, rank.rows_in(out), float(out.n_out), module="o", there=True, back=True)
    rank.leave("attention.o", cut=True)
    saved = rank.tokens * (heads * a.qk_dim + kv * (a.qk_dim + a.v_dim))
    saved += rank.tokens * heads * a.v_dim if fused else 0.0  # the fused core reads its output again
    if getattr(a, "qk_norm", None):
        saved += rank.tokens * a.qk_dim * (heads + kv)  # a norm's backward reads its input, the core its output
    saved += 2 * rank.tokens * heads * a.v_dim if a.gated else 0.0
    inputs = rank.input_kept(rank.tokens_kept, rank.hidden, "qkv")
    swapped = degrees(rank)[1] > 1  # then what comes back is another tensor than the core's own output
    inputs += rank.input_kept(rank.tokens, heads * a.v_dim, "o", free=fused and not swapped)
    if isinstance(a, LatentAttention):
        latent = float((a.q_lora_rank or 0) + a.kv_lora_rank)
        saved += rank.tokens_sp * latent
        inputs += rank.input_kept(rank.tokens_sp, latent, "qkv")
    return w * saved + inputs + found.fetched, found.statistics, found.transient


def _core(rank: Rank, layer: DecoderLayer, fused: bool) -> Exchanged:
    """Kernels and transfers; unfused scores and masks are what the softmax keeps."""
    core = Core(rank, layer)
    found = core.run(fused=fused)
    return found if fused else replace(found, statistics=_unfused_core(rank, layer, core))


def _unfused_core(rank: Rank, layer: DecoderLayer, core: Core) -> float:
    """Scores, softmax, dropout, values; saves softmax, mask and dropout output: the 5as/h of equation 1."""
    a, w, s = layer.softmax, rank.width, float(rank.workload.seq_len)
    assert a is not None
    batch, rows = rank.layout.mbs * core.heads, rank.seq * core.inner
    scores = batch * rows * s
    # Megatron's kernel wants sequences x heads and queries in fours, 16 bits, and a row of 17 to so many keys.
    takes = batch % 4 == 0 and rows % 4 == 0 and 16 < s <= rank.preset.fused_softmax_keys and w == 2
    one_kernel = takes and rank.preset.attention == "unfused-fused-softmax"

    def product(name: str, way: str, m: float, n: float, k: float) -> None:
        rank.gemm(name, way, m, n, k, batch=batch, impl="batched", rerun="selective" if way == "F" else "full")

    product("scores", "F", rows, s, a.qk_dim)
    product("values", "F", rows, a.v_dim, s)
    product("dP", "I", rows, s, a.v_dim)
    product("dV", "I", s, a.v_dim, rows)
    product("dQ", "I", rows, a.qk_dim, s)
    product("dK", "I", s, a.qk_dim, rows)
    if one_kernel:
        rank.moved("softmax", "F", 2 * w * scores, 1, "selective")
        rank.moved("softmax.grad", "I", 3 * w * scores, 1)
    else:  # to fp32, scale, mask, softmax, back; the gradient of softmax reads two and writes one
        casts, n = (0, 3) if w == 4 else (2 * (w + 4), 5)
        rank.moved("softmax", "F", (3 * 8 + casts) * scores, n, "selective")
        rank.moved("softmax.grad", "I", (8 + 8 + 12 + casts) * scores, n)
    capped = 0.0
    if a.softcap:  # divide, tanh, multiply; tanh's output stays
        rank.moved("cap", "F", 3 * 2 * w * scores, 3, "selective")
        rank.moved("cap.grad", "I", (2 + 3 + 2) * w * scores, 3)
        capped = w * scores
    if not rank.preset.dropout:
        return scores * w + capped
    rank.moved("dropout", "F", (2 * w + 1) * scores, 1, "selective")
    rank.moved("dropout.grad", "I", (2 * w + 1) * scores)
    return scores * (2 * w + 1) + capped


def _dense(rank: Rank, name: str, weights: list[Weight], gated: bool) -> float:
    """Column-split up (and gate), activation, row-split down; returns bytes saved inside."""
    cut = name == "mlp"
    rank.enter(f"{name}.up", module="up", cut=cut)
    down = weights[-1]
    wide = sum(rank.columns(p) for p in weights[:-1])
    rank.linear(f"{name}.up", rank.tokens, rank.hidden, wide, module="up", normed=cut, there=cut)
    _activation(rank, f"{name}.act", rank.tokens, rank.rows_in(down), gated)
    rank.linear(f"{name}.down", rank.tokens, rank.rows_in(down), rank.hidden, module="down", there=cut, back=cut)
    rank.leave(f"{name}.down", cut=cut)
    return _act_width(rank, gated) * rank.tokens * wide + rank.input_kept(rank.tokens, rank.rows_in(down), "down")


def _act_width(rank: Rank, gated: bool) -> float:
    """Bytes kept of an activation's input: SwiGLU's in 8 bits where the framework does so."""
    return 1.0 if gated and rank.narrow and rank.preset.quantised_activation_input else rank.width


def _mlp(rank: Rank, ffn: Mlp) -> float:
    start = len(rank.items)
    weights = [p for p in ffn.parameters(rank.model.hidden) if isinstance(p, Weight)]
    inside = _dense(rank, "mlp", weights, ffn.gated)
    rank.mark(start, "mlp")
    return rank.input_kept(rank.tokens_kept, rank.hidden, "up") + inside


def _moe(rank: Rank, ffn: Moe) -> float:
    """Route, permute, exchange, experts, and back: rows of the busiest rank (Megatron-Core ``moe_layer.py``)."""
    pre, lay, w, h = rank.preset, rank.layout, rank.width, rank.hidden
    weights = [p for p in ffn.parameters(rank.model.hidden) if isinstance(p, Weight)]
    experts = [p for p in weights if p.expert]
    shared = [p for p in weights if p.name in ("shared_gate", "shared_up", "shared_down")]
    begin = len(rank.items)
    scores = rank.tokens_sp * ffn.n_experts
    rank.section = "attention"  # the router belongs to the part before the exchange
    rank.linear("router", rank.tokens_sp, h, ffn.n_experts, high=True)
    if pre.moe_router_fusion:
        passes, launches = 2.25 + 3.0 * pre.moe_aux_loss, 1 + 2 * pre.moe_aux_loss
    else:
        passes, launches = 6.0 + 4.0 * pre.moe_aux_loss, 10 + 8 * pre.moe_aux_loss
        if ffn.score_correction:
            passes, launches = passes + 4.0, launches + 4
        if ffn.groups > 1:
            passes, launches = passes + 2.0, launches + 6
    passes, launches = passes + pre.moe_z_loss, launches + 4 * pre.moe_z_loss
    for way in ("F", "I"):
        rank.moved("route" + way, way, passes * 4 * scores, launches)
    rank.section = ""
    saved = scores * (4.0 + 1.0 + 4.0 * pre.moe_aux_loss + 4.0 * pre.moe_z_loss)
    load, sent, uneven = _loads(rank)
    held = ffn.n_experts / lay.ep
    each = _expert_rows(rank, ffn)
    copies = rank.tokens_sp * ffn.top_k * sent
    _permutations(rank, ffn, each * held, copies)
    _exchange(rank, ffn, copies, load / sent, uneven, bool(shared))
    if rank.narrow and not pre.moe_router_padding and pre.moe_dispatcher != "hybridep":
        for name in ("pad", "unpad"):
            for way in ("F", "I"):
                rank.moved(name + way, way, 2 * w * each * held * h)
    narrow, wide = rank.rows_in(experts[-1]), sum(rank.columns(p) for p in experts[:-1])
    rank.section = "experts"
    rank.grouped("moe.expert.up", each, h, wide, held)
    fused = pre.moe_fused_mlp and rank.narrow is not None and rank.narrow.scaling == "mx"
    if fused:  # casts between the products and the activation are in the GEMMs' epilogues
        rank.items = [i for i in rank.items if i.name != "moe.expert.up.cast.grad"]
    else:
        start = len(rank.items)
        _activation(rank, "moe.expert.act", each * held, narrow, ffn.gated)
        rank.mark(start, "moe_act")
    rank.grouped("moe.expert.down", each, narrow, h, held)
    if fused:
        rank.items = [i for i in rank.items if i.name != "moe.expert.down.cast"]
    if rank.lora is None:
        rank.accumulate("moe.expert", held * h * (wide + narrow))
    rank.section = ""
    saved += _act_width(rank, ffn.gated) * each * held * wide
    # A probability scales the output, or, by a kernel of its own unless the activation is SwiGLU, the activation.
    unscaled = 0.0 if ffn.gated else w * each * held * narrow
    saved += unscaled if pre.moe_weighted_activation else w * copies * h
    saved += rank.input_kept(rank.tokens_sp, h, "", high=True)
    saved += rank.input_kept(each * held, h, "") + rank.input_kept(each * held, narrow, "")
    if shared:
        start = len(rank.items)
        saved += _dense(rank, "shared", shared, ffn.gated)
        saved += rank.input_kept(rank.tokens_kept, h, "up", free=rank.lora is None)  # the router's input
        rank.mark(start, "shared_experts")
    rank.mark(begin, "moe")
    return saved


def _loads(rank: Rank) -> tuple[float, float, float]:
    """Rows of the busiest rank over the mean, rows sent over routed, and the busiest link over the mean."""
    r = rank.workload.routing
    if r.pad_to_capacity:
        return r.capacity_factor, r.capacity_factor, 1.0
    load, sent = (min(r.skew, r.capacity_factor), min(1.0, r.capacity_factor)) if r.capacity_factor else (r.skew, 1.0)
    return load, sent, max(load / sent, 1.0)


def _expert_rows(rank: Rank, ffn: Moe) -> float:
    """Rows of one expert: in whole blocks of 16, or 32 with scales of 32 elements (MXFP8, NVFP4)."""
    lay = rank.layout
    each = max(rank.tokens_sp * ffn.top_k * lay.ep * lay.etp * _loads(rank)[0] / ffn.n_experts, 1.0)
    if rank.narrow:
        block = 32 if rank.narrow.scaling in ("mx", "nv") else 16
        each = math.ceil(each / block - 1e-9) * float(block)
    return each


def _permutations(rank: Rank, ffn: Moe, rows: float, copies: float) -> None:
    """Copies written and tokens read (index operators read every copy); a second sort behind an all-to-all."""
    pre, size = rank.preset, rank.width * rank.hidden
    moved = copies if pre.moe_dispatcher == "alltoall" else rows
    fused = pre.moe_permute_fusion
    once = 1 / ffn.top_k
    if pre.moe_dispatcher in ("deepep", "hybridep"):  # D(R) = R (1 - C(E - E/R, k) / C(E, k)) copies of a token
        once *= _ranks_hit(ffn, rank.layout.ep)
    nbytes, launches = size * moved * (1 + (once if fused else 1)), 1 if fused else 5
    for name in ("permute", "unpermute"):
        rank.moved(name, "F", nbytes, launches)
        again = size * moved if name == "unpermute" and not pre.moe_weighted_activation else 0.0
        rank.moved(f"{name}.grad", "I", nbytes + again, launches)
    if pre.moe_dispatcher == "alltoall" and ffn.n_experts > rank.layout.ep and rank.layout.ep * rank.layout.etp > 1:
        for way in ("F", "I"):
            for name in ("sort", "unsort"):
                rank.moved(name + way, way, 2 * size * rows, 1 if fused else 2)


def _ranks_hit(ffn: Moe, ranks: int) -> float:
    """Ranks that host some of a token's experts: out of all experts, or of those of the groups that are drawn."""
    e, k, g, limit = ffn.n_experts, ffn.top_k, ffn.groups, ffn.group_limit
    own, pool = e // ranks, limit * e // g
    if g <= ranks:  # a rank lies within one group, which must be drawn
        missed = math.comb(pool - own, k) / math.comb(pool, k) if pool - own >= k else 0.0
        found = ranks * limit / g * (1 - missed)
    else:
        hosted, found = g // ranks, 0.0
        for j in range(1, min(hosted, limit) + 1):
            drawn = math.comb(hosted, j) * math.comb(g - hosted, limit - j) / math.comb(g, limit)
            found += drawn * (1 - math.comb(pool - j * e // g, k) / math.comb(pool, k)) * ranks
    return min(max(found, 1.0), float(min(k, ranks)))


def _exchange(rank: Rank, ffn: Moe, copies: float, load: float, uneven: float, shared: bool) -> None:
    """Dispatch and combine and their mirrors, each beside what the framework runs it with."""
    pre, lay, w, h, grid = rank.preset, rank.layout, rank.width, rank.hidden, rank.layout.ep * rank.layout.etp
    narrow = rank.narrow if pre.quantised_dispatch and rank.narrow and rank.narrow.scaling in ("block", "mx") else None
    out = narrow.size if narrow else w
    beside = {"dispatchF": "", "combineF": "", "dispatchI": "", "combineI": ""}
    if pre.moe_exchange_overlap:  # the four slots of Megatron-Core's TransformerLayerSchedulePlan.run
        late = pre.moe_delay_wgrad
        beside = {
            "dispatchF": ("experts", "I" if late else "IW"), "combineF": ("attention", "IW"),
            "dispatchI": ("experts", "FW" if late else "F"), "combineI": ("attention", "F"),
        }  # fmt: skip
    elif pre.moe_shared_overlap and shared:
        beside = {"dispatchF": "shared.up", "combineF": "shared.down", "dispatchI": "shared.up.dgrad",
                  "combineI": "shared.down.dgrad"}  # fmt: skip
    tokens = rank.tokens_sp
    for way in ("F", "I"):
        for name in ("dispatch", "combine"):
            size = out if name == "dispatch" and way == "F" else w
            partner = beside[name + way]
            if pre.moe_dispatcher == "allgather":
                gather = (name == "dispatch") == (way == "F")
                op = "all_gather" if gather else "reduce_scatter"
                rank.collective(name, way, op, "ep_etp", tokens * grid * h * size, behind=partner)
            elif pre.moe_dispatcher == "alltoall":
                rank.collective(name, way, "all_to_all", "ep", copies * h * size, behind=partner, uneven=uneven)
            elif grid > 1:
                phase = name if way == "F" else {"dispatch": "combine", "combine": "dispatch"}[name]
                rank.expert_kernel(
                    name, way, phase, tokens * _loads(rank)[1], ffn.top_k * lay.etp, ffn.n_experts * lay.etp,
                    "fp8" if narrow and size == out and name == "dispatch" and way == "F" else rank.dtype, uneven,
                    partner, (ffn.groups, ffn.group_limit),
                )  # fmt: skip
        if pre.moe_dispatcher == "alltoall":
            rank.collective("gather", way, "all_gather", "etp", w * copies * load * h * lay.etp)
            rank.collective("scatter", way, "reduce_scatter", "etp", w * copies * load * h * lay.etp)


def _sum_in_norm(rank: Rank) -> None:
    """Inductor: x + branch and its norm read two rows and write two; their gradients read three and write one."""
    row = rank.tokens_sp * rank.hidden
    mask = row if rank.preset.dropout else 0.0
    rank.items[:] = [i for i in rank.items if not i.name.startswith("attention.residual")]
    for name, way, nbytes, launches in (
        ("norm1", "F", 4 * rank.width * row + mask, 1),
        ("norm1.grad", "I",
         ((3 if rank.preset.dropout else 4) + 2 * rank.preset.apart_gradients) * rank.width * row + mask, 2),
    ):
        at = next(n for n, i in enumerate(rank.items) if i.name == name)
        old = rank.items.pop(at)
        rank.moved(name, way, nbytes, launches)
        rank.items[-1].modules, rank.items[-1].section = old.modules, old.section


def decoder_layer(rank: Rank, layer: DecoderLayer, plain: bool = False) -> Block:
    """One layer: per token and tp=1 in fp16 with dropout it saves h(34 + 5as/h) bytes (2205.05198, equation 1)."""
    rank = replace(rank, items=[], gradients=[], updates=[], plain=plain, section="attention")
    saved = _fill_layer(rank, layer)
    outside = saved.attention + saved.feed + saved.other
    block = _finish(rank, outside + saved.core, _inputs(rank, layer, outside), recomputed(rank, layer, saved))
    return replace(block, exchanged=saved.exchanged, working=_working(rank, layer))


def _row(rank: Rank) -> float:
    """Bytes of the residual stream of a micro-batch on this rank."""
    return rank.tokens_sp * rank.hidden * rank.width


def _fill_layer(rank: Rank, layer: DecoderLayer) -> Saved:
    """Kernels of a layer; returns the bytes that it saves."""
    rank.section = "attention"
    for i in range(layer.n_norms):
        start = len(rank.items)
        _norm(rank, f"norm{i}")
        # Transformer Engine fuses a norm with a grouped-query or mixer projection, and with a dense up projection
        behind = layer.ffn if i or layer.attention is None else layer.attention
        alone = isinstance(behind, LatentAttention | Moe) or not rank.preset.norm_in_linear
        rank.mark(start, *(("layernorm",) if i < 2 and alone and layer.recurrent is not behind else ()))
    attention = core = feed = other = exchanged = 0.0
    row = rank.tokens_sp * rank.hidden
    start = len(rank.items)
    if layer.attention is not None:
        if layer.softmax is not None:
            attention, core, exchanged = _attention(rank, layer)
            core *= not rank.preset.offload_core
        elif layer.recurrent is not None:
            attention = mixer(rank, layer.recurrent)
        _residual(rank, "attention.residual")
        other += row if rank.preset.dropout else 0.0
    rank.section = ""
    if layer.ffn is not None:
        feed = _moe(rank, layer.ffn) if isinstance(layer.ffn, Moe) else _mlp(rank, layer.ffn)
        _residual(rank, "ffn.residual")
        other += row if rank.preset.dropout else 0.0
    if rank.preset.apart_gradients:
        _gradients_apart(rank, layer)
    other += row * rank.width * layer.n_norms
    if layer.parallel and layer.n_norms == 1:
        # attention and feed-forward read one normalised tensor
        other -= min(rank.input_kept(rank.tokens_sp, rank.hidden, module) for module in ("qkv", "up"))
    fuses = rank.preset.fused_residual_norm and rank.preset.fused_norm
    if fuses and layer.attention and layer.ffn and layer.n_norms == 2:
        _sum_in_norm(rank)
    rows = _expert_rows(rank, layer.ffn) * layer.ffn.n_experts / rank.layout.ep if isinstance(layer.ffn, Moe) else 0.0
    return Saved(attention, core, feed, other, rows, exchanged)


def _gradients_apart(rank: Rank, layer: DecoderLayer) -> None:
    """Bias gradients read the output's gradient once; gradients of q, k and v are read and written in one tensor."""
    parts = [layer.softmax, layer.ffn if isinstance(layer.ffn, Mlp) else None]
    weights = [w for p in parts if p is not None for w in p.parameters(rank.hidden) if isinstance(w, Weight)]

    def made(weight: Weight) -> float:
        rows = rank.tokens_sp if weight.shard == "replicated" else rank.tokens
        return rows * rank.columns(weight) * rank.width

    biased = [w for w in weights if w.bias]
    if biased and rank.lora is None:
        rank.moved("bias.grad", "W", sum(map(made, biased)), len({w.fused_with or w.name for w in biased}))
    if joined := [w for w in weights if w.fused_with == "qkv"]:
        rank.moved("qkv joined", "I", 2 * sum(map(made, joined)))


def _working(rank: Rank, layer: DecoderLayer) -> float:
    """At the start of a layer's backward: the residual's gradient, those of the feed-forward's width, one weight's."""
    ffn, p = layer.ffn, rank.preset
    if isinstance(ffn, Moe):
        wide = _expert_rows(rank, ffn) * ffn.n_experts / rank.layout.ep * ffn.ffn_hidden / rank.layout.etp
    else:
        wide = rank.tokens * ffn.ffn_hidden / rank.layout.tp if ffn else 0.0
    total = rank.width * (rank.tokens_sp * rank.hidden + wide * (2 if ffn and ffn.gated else 1))
    cached = p.transformer_engine and p.fused_grad_accumulation
    if p.main_grad_buffer and not cached and rank.lora is None:
        total += rank.width * max(rank.updates)
    return total


def _inputs(rank: Rank, layer: DecoderLayer, saved: float) -> float:
    """Inputs of a layer's matrices, each tensor once: arXiv 2401.10241, table 1, whose GPT layer has 14 sbh of them."""
    a, ffn, lay = layer.softmax, layer.ffn, rank.layout
    if rank.lora is not None:  # all that the layer saves outside the core
        return saved
    n = 0.0
    if a is not None:
        heads, _ = _heads(rank, layer)
        n += rank.tokens_kept * rank.hidden + rank.tokens * heads * a.v_dim
    elif layer.recurrent is not None:
        own = layer.recurrent
        n += rank.tokens_kept * rank.hidden + rank.tokens * own.d_inner / lay.tp
        n += rank.tokens * (own.d_inner / lay.tp + own.dt_rank) if isinstance(own, Mamba1) else 0.0
    if isinstance(a, LatentAttention):
        n += rank.tokens_sp * ((a.q_lora_rank or 0) + a.kv_lora_rank)
    if isinstance(ffn, Moe):
        each = _expert_rows(rank, ffn)
        n += rank.tokens_sp * rank.hidden + each * ffn.n_experts / lay.ep * (rank.hidden + ffn.ffn_hidden / lay.etp)
        n += rank.tokens * (ffn.shared_ffn_hidden or 0) / lay.tp
    elif ffn is not None:
        n += rank.tokens_kept * rank.hidden + rank.tokens * ffn.ffn_hidden / lay.tp
    return rank.width * n


def embedding(rank: Rank) -> Block:
    """Look-up in the vocabulary shard, sum over tp; token numbers (8 bytes) and the dropout mask are saved."""
    rank = replace(rank, items=[], gradients=[])
    if rank.model.patches is not None:
        return _patches(rank)
    n = rank.tokens * rank.hidden * rank.width
    rank.moved("lookup", "F", 2 * n)
    rank.leave("embedding", high=True)
    trained = rank.lora is None
    if trained:
        rank.moved("scatter", "W", 3 * n)
    mask = 1.0 if rank.preset.dropout else 0.0
    row = rank.tokens_sp * rank.hidden
    if rank.model.learned_positions or rank.preset.dropout:
        rank.moved("positions", "F", row * (3 * rank.width + mask), 2)
        if trained:
            rank.moved("positions.grad", "I", row * (2 * rank.width + mask))
    seen = _images(rank)
    normed = 0.0
    if rank.model.embedding_norm:
        start = len(rank.items)
        _norm(rank, "embedding norm")
        if not trained:
            rank.items = [i for n_, i in enumerate(rank.items) if n_ < start or i.way != "I"]
        normed = _row(rank)
    if not trained:
        return _finish(rank, seen, seen)
    # The scatter-add reads the token numbers and the gradient of every row.
    rank.gradients.append(n)
    return _finish(rank, 8.0 * rank.tokens + row * mask + normed + seen, 8.0 * rank.tokens + seen)


def vocabulary(rows: int, multiple: int, tp: int) -> int:
    """Rows of the table once every tp rank has a multiple of `multiple` of them."""
    while multiple and rows % (multiple * tp):
        rows += 1
    return rows


def _images(rank: Rank) -> float:
    """Tower and projector of the images of a micro-batch; returns the bytes saved."""
    tower, work, lay, w = rank.model.vision, rank.workload, rank.layout, rank.width
    if tower is None or not work.images:
        return 0.0
    images = lay.mbs * work.images / lay.cp
    trained, full = work.vision == "trained" and rank.lora is None, rank.lora is None
    alone = replace(lay, sp=0, cp=1, recompute="none", recompute_modules=(), recompute_layers=())
    object.__setattr__(alone, "mbs", images)  # images of a micro-batch on a rank need not be whole, and a layout's are
    spec = ModelSpec("tower", "vision", tower.hidden, 0, (), norm="layer", norm_bias=True)
    inside = replace(
        rank, model=spec, layout=alone, items=[], gradients=[],
        workload=replace(work, seq_len=tower.patch.patches, documents=None, lora=None, kind="pretrain", images=0.0),
    )  # fmt: skip
    made = _fill_layer(inside, DecoderLayer(tower.attention, tower.ffn, norm="layer", norm_bias=True))
    layer = made.attention + made.core + made.feed + made.other
    for item in inside.items:
        item.seconds, item.launches = item.seconds * tower.n_layers, item.launches * tower.n_layers
    inside.gradients = [g * tower.n_layers for g in inside.gradients]
    pixels, rows = float(tower.patch.channels * tower.patch.frames * tower.patch.patch**2), images * tower.patch.patches
    begun = len(inside.items)
    inside.moved("cut", "F", 2 * w * rows * pixels)
    inside.linear("patch", rows, pixels, float(tower.hidden), high=True)
    inside.items = [i for n, i in enumerate(inside.items) if n < begun or i.way != "I"]
    mask = 1.0 if rank.preset.dropout else 0.0
    inside.moved("positions", "F", rows * tower.hidden * (3 * w + mask), 2)
    inside.moved("positions.grad", "I", rows * tower.hidden * (2 * w + mask))
    saved = 0.0
    if trained:
        rank.gradients += inside.gradients
        saved = tower.n_layers * layer + w * rows * pixels + mask * rows * tower.hidden
    rank.items += [i for i in inside.items if trained or i.way == "F"]
    start, rows = len(rank.items), images * (tower.patch.patches // tower.merged)
    for _ in range(tower.mergers):
        for n, weight in enumerate(tower.projector):
            before = len(rank.items)
            rank.linear(f"projector{n}", rows, rank.rows_in(weight), rank.columns(weight), high=True)
            if n == 0 and not trained:
                rank.items = [i for k, i in enumerate(rank.items) if k < before or i.way != "I"]
            saved += w * rows * rank.rows_in(weight) if full else 0.0
            if weight.shard == "row":
                rank.collective("projector", "F", "all_reduce", "tp", w * rows * rank.hidden)
            if n < len(tower.projector) - 1:
                rank.moved("projector gelu", "F", 2 * w * rows * rank.columns(weight))
                rank.moved("projector gelu.grad", "I", 3 * w * rows * rank.columns(weight))
                saved += w * rows * rank.columns(weight) if full else 0.0
        for way in ("F", "I"):
            rank.moved("merge", way, 2 * w * rows * rank.hidden)
    if not full:
        rank.items = [i for k, i in enumerate(rank.items) if k < start or i.way == "F"]
    return saved


def _patches(rank: Rank) -> Block:
    """Images of C x P x P pixels a patch: rows are made, multiplied with one matrix, positions added."""
    p, w = rank.model.patches, rank.width
    assert p is not None
    pixels = float(p.channels * p.frames * p.patch**2)
    rows = rank.layout.mbs * p.patches
    rank.moved("cut", "F", 2 * w * rows * pixels)
    rank.linear("patch", rows, pixels, rank.hidden, high=True)
    rank.items = [i for i in rank.items if i.way != "I"]
    tokens = rank.layout.mbs * rank.workload.seq_len * rank.hidden
    mask = 1.0 if rank.preset.dropout else 0.0
    rank.moved("positions", "F", tokens * (3 * w + mask), 2)
    rank.moved("positions.grad", "I", tokens * (2 * w + mask))
    saved = w * rows * pixels + tokens * mask
    return _finish(rank, saved, saved)


def head(rank: Rank) -> tuple[Block, tuple[float, float, float]]:
    """Head and prediction steps in one; also bytes of logits: kept, most forward, most backward.

    A step (DeepSeek-V3, section 2.2): look the next token up, norm both, h and embedding -> h, a layer, the head.
    """
    rank = replace(rank, items=[], gradients=[], updates=[])
    saved, inputs, around = _fill_head(rank)
    for item in rank.items:
        item.rerun = "never"
    stays, shares = saved, []
    for layer in rank.model.mtp_used(rank.workload.mtp_layers):
        n, w = rank.tokens * rank.hidden, rank.width
        ids = 8.0 * rank.tokens if rank.lora is None else 0.0
        rank.section = ""
        begun = len(rank.items)
        rank.moved("mtp lookup", "F", 2 * w * n)
        rank.leave("mtp embedding", high=True)
        if rank.lora is None:
            rank.moved("mtp lookup.grad", "W", 3 * w * n)
        for item in rank.items[begun:]:
            item.rerun = "never"
        _norm(rank, "enorm")
        _norm(rank, "hnorm")
        for way in ("F", "I"):
            rank.moved("mtp concat" + way, way, 4 * _row(rank))
        rank.enter("mtp.proj", features=2 * rank.hidden)
        rank.linear("mtp.proj", rank.tokens, 2 * rank.hidden, rank.hidden / rank.layout.tp)
        rank.collective("mtp gather", "F", "all_gather", "tp", w * n)
        if rank.layout.sp:
            rank.collective("mtp gather", "I", "all_gather", "tp", w * n)
        joined = rank.input_kept(rank.tokens_kept, 2 * rank.hidden, "")
        found = _fill_layer(rank, layer)
        outside = found.attention + found.feed + found.other
        policy = recomputed(rank, layer, found)
        shares.append(policy.share)
        rank.section = ""
        begun = len(rank.items)
        again, head_inputs, _ = _fill_head(rank)
        for item in rank.items[begun:]:
            item.rerun = "never"
        own = ids + 2 * _row(rank) + joined
        inputs += joined + _inputs(rank, layer, outside) + head_inputs
        saved += own + outside + found.core + again
        whole = rank.layout.recompute in ("full", "block", "every")
        stays += again + (ids + 2 * _row(rank) if whole else own + policy.kept)
    steps = 1 + len(shares)
    behind = Recomputed(lambda i: 0.0 if i.rerun == "never" else shares[0](i), stays, 0.0) if shares else None
    kept, forward, backward = around  # the losses run one after the other
    before = kept * (steps - 1)
    return _finish(rank, saved, inputs, behind), (kept + before, forward + before, backward + before)


def _fill_head(rank: Rank) -> tuple[float, float, tuple[float, float, float]]:
    """Final norm, vocabulary-parallel projection and loss; bytes saved, of inputs, around the logits."""
    vocab = vocabulary(rank.model.vocab, rank.preset.vocab_multiple, rank.layout.tp) / rank.layout.tp
    logits, w = rank.tokens * vocab, rank.width
    if rank.model.n_classes:
        return _fill_classifier(rank)
    more = 0.0
    if rank.model.final_norm:
        _norm(rank, "final_norm")
    if rank.model.head_transform:  # BERT: dense, GELU, norm, each on the rank's own rows
        rank.linear("transform", rank.tokens_sp, rank.hidden, rank.hidden, high=True)
        rank.moved("gelu", "F", 2 * _row(rank))
        rank.moved("gelu.grad", "I", 3 * _row(rank))
        _norm(rank, "transform norm")
        more = _row(rank) if rank.lora is None else 0.0
    rank.enter("head", high=True)
    rank.linear("head", rank.tokens, rank.hidden, vocab, high=True)
    if rank.preset.fused_cross_entropy:
        rank.moved("loss", "F", 2 * w * logits, 1, "never")
        rank.moved("loss.grad", "I", 2 * w * logits)
        around = (w, w, w if rank.preset.transformer_engine else w + w)
    else:
        # log-softmax reads and writes fp32; its backward reads two and writes one; casts where needed
        cast, n = (0, 2) if w == 4 else (w + 4, 3)
        rank.moved("loss", "F", (4 + 4 + cast) * logits, n, "never")
        rank.moved("loss.grad", "I", (4 + 4 + 4 + cast) * logits, n)
        # Megatron turns the fp32 copy into softmax and gradient in place; PyTorch's operators make new tensors.
        around = (w + 4, w + 4 + (4 if w < 4 else 0), w + 4 + 4 + 4)
        if rank.preset.in_place_loss:
            around = (4, w + 4, w + 4 if w < 4 else 4)
    for _ in range(rank.preset.logged_losses):  # cast, log-softmax, negative log-likelihood of logits already there
        rank.moved("logged", "F", (8 + (w + 4 if w != 4 else 0)) * logits, 3 if w != 4 else 2, "never")
    # Maximum, target logit and sum of exponentials of each token.
    rank.collective("loss", "F", "all_reduce", "tp", 4.0 * rank.tokens, runs=3, rerun="never")
    reads = (1 if rank.model.final_norm else 0) + (1 if rank.lora is None else 0)
    reads += 2 if rank.model.head_transform else 0
    saved = reads * rank.tokens_sp * rank.hidden * w + more
    inputs = (rank.tokens_kept * rank.hidden * w if rank.lora is None else 0.0) + more
    if rank.preset.split_keeps_graph:  # PyTorch's graph holds the logits as well
        rank.gradients.append(logits * around[0])
    updated = max(rank.updates) * w if rank.preset.main_grad_buffer and rank.lora is None else 0.0
    kept, forward, backward = (logits * each for each in around)
    return saved, inputs, (kept, forward, max(backward, logits * w + updated))


def _fill_classifier(rank: Rank) -> tuple[float, float, tuple[float, float, float]]:
    """A matrix on the first token of each sequence and its loss, on every tp rank."""
    w, n = rank.width, rank.layout.mbs
    small = float(n * rank.model.n_classes)
    _norm(rank, "final_norm")
    rank.linear("classifier", float(n), rank.hidden, float(rank.model.n_classes), high=True)
    rank.moved("loss", "F", small * (8 + w), 2, "never")
    rank.moved("loss.grad", "I", small * (12 + w), 2)
    first = n * rank.hidden * w if rank.lora is None else 0.0
    return _row(rank) + first, first, (small * (w + 4), small * (w + 8), small * (w + 12))
