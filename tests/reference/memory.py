"""Bytes of every rank, in plain floats: the schedule's list is played action by action and every sum written out."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from planner.model.spec import DecoderLayer, Moe, Weight
from planner.schedule import Kind
from tests.reference.formats import MOMENTS, NF4, Held, held_by_layer

if TYPE_CHECKING:
    from tests.reference.step import _Step

MIB = 2**20
FRAGMENTS = 0.048
"""Share of fragmentation (ten pairs of allocated and reserved in simumax_b200)."""


@dataclass
class Sized:
    """Bytes of one rank at its peak by category, and what sets it."""

    by_category: dict[str, float]
    moment: str


def sizes(step: _Step) -> list[Sized]:
    """Every rank's peak: the largest of loading, any action of the step, the optimizer and saving."""
    return [_rank(step, r) for r in range(step.lay.pp)]


def _rank(step: _Step, r: int) -> Sized:
    p, lay = step.preset, step.lay
    held = [s for s in step.stages if s.rank == r]
    dense, expert = (sum((getattr(s, n) for s in held), start=Held()) for n in ("dense", "expert"))
    z = lay.zero_stage
    owned = (dense.trained, expert.trained) if z == 0 else (
        dense.trained / step.shard, expert.trained / step.expert_shard)  # fmt: skip
    states = _states(step, dense, expert)
    at_home = states["parameters"] + states["optimizer"]
    share = lay.offload_optimizer / 100
    states["optimizer"] *= 1 - share
    states["gradients"] *= 1 - (share if z >= 2 else 0)
    states["parameters"] *= 0 if lay.offload_parameters and z >= 3 else 1
    fixed = {"parameters": states["parameters"], "optimizer": states["optimizer"], "workspace": _workspace(step, r)}
    kept = fixed | {"gradients": states["gradients"], "comm_buffers": _buffers(step, dense.trained + expert.trained)}
    everything = dense.all + expert.all
    # A model built whole is there before its shards and their optimizer are.
    whole = 4 * everything - at_home if p.loads_whole and z >= 3 else 0
    loading = max(whole, 4 * sum(owned) if p.flat_gradients else 0)
    candidates = [("load", fixed | {"temporary": loading}), *((n, kept | b) for n, b in _steps(step, r, dense, expert))]
    flat = min(dense.trained * step.grad, p.bucket_bytes) + min(expert.trained * step.grad, p.bucket_bytes)
    updating = (sum(owned) * _stepping(step) + (flat if p.flat_gradients else 0.0)) * (1 - share)
    candidates.append(("optimizer", kept | {"temporary": updating}))
    wide = everything * step.width
    candidates.append(("save", kept | {"gathered": wide if p.saves_whole and z >= 3 else 0.0}))
    name, best = max(candidates, key=lambda c: sum(c[1].values()))
    best = dict(best)
    gpu = step.cluster.device.kind == "gpu"
    # DeepSpeed's flat tensors lie beside what the largest action of the step holds, not in its place.
    working = max(sum(c[1].values()) for c in candidates[1:-2]) - sum(kept.values())
    beside = min(working, updating) if p.flat_gradients else 0.0
    if p.flat_gradients and z >= 1:  # a bucket of gathered parameters in the pool of NCCL's stream
        beside += min(dense.trained * step.grad, p.bucket_bytes) if step.shard > 1 else 0.0
        beside += min(expert.trained * step.grad, p.bucket_bytes) if step.expert_shard > 1 else 0.0
    best["allocator"] = ceil(sum(best.values()) * FRAGMENTS / (2 * MIB)) * 2 * MIB + beside if gpu else 0.0
    best["nccl"] = _communicators(step) if gpu else 0.0
    best["context"] = float(step.cluster.context_bytes)
    return Sized(best, name)


def _steps(step: _Step, r: int, dense: Held, expert: Held) -> list[tuple[str, dict[str, float]]]:
    """What the rank holds beside its state while each action of its list runs."""
    away = step.lay.offload_activations
    saved = {s: sum(stage.kept[away:]) + sum(b.saved for b in stage.ends)
             for s, stage in enumerate(step.stages) if stage.rank == r}  # fmt: skip
    waiting = {s: sum(b.waiting for b in step.stages[s].blocks) for s in saved}
    layers = [b for s in saved for b in step.stages[s].layers]
    work = max((b.working for b in layers), default=0.0)
    again = _rebuilt(step, r)
    if away:  # one layer is on its way
        again += max(b.saved_whole for s in step.stages for b in s.layers)
    ahead, back = _unsharded(step, r, dense, expert)
    beside = _beside(step, saved)
    kept, forward, backward = step.logits
    now, open_losses = 0.0, 0
    found: list[tuple[str, dict[str, float]]] = []

    def note(name: str, logits: float, gathered: float, more: tuple[float, float] = (0.0, 0.0)) -> None:
        found.append((name, {"activations": now + beside, "logits": open_losses * kept + logits, "gathered": gathered,
                             "temporary": more[0], "recompute": more[1]}))  # fmt: skip

    for action in step.schedule.actions(step.lay.pp, step.microbatches, step.lay.vpp)[r]:
        s, last = action.stage, action.stage % step.length == step.length - 1
        if action.kind is Kind.FORWARD:
            now += saved[s]
            note("forward", 0.0, ahead)
            if last:
                open_losses += 1
                note("loss", max(forward - kept, 0.0), ahead)
        elif action.kind is Kind.BACKWARD_WEIGHT:
            note("backward", 0.0, back)
            now -= waiting[s]
        else:
            if last:
                note("loss backward", max(backward - kept, 0.0), back)
                open_losses -= 1
            note("backward", 0.0, back, (work, again))
            now += (waiting[s] if action.kind is Kind.BACKWARD_INPUT else 0.0) - saved[s]
    return found


def _rebuilt(step: _Step, r: int) -> float:
    """Most that the rank's recomputation rebuilds at a time, beyond whole layers behind it, free by then."""
    found, lay = [0.0], step.lay
    by_itself = lay.recompute in ("selective", "op") or (lay.recompute == "full" and not lay.recompute_layers)
    for stage in (s for s in step.stages if s.rank == r):
        for members in stage.together:
            built = sum(stage.layers[i].rebuilt for i in members)
            behind = range(members[-1] + 1, len(stage.layers))
            freed = sum(stage.layers[i].saved_whole for i in behind if i not in stage.again)
            found.append(built if by_itself else built - freed)
    return max(found)


def _beside(step: _Step, saved: dict[int, float]) -> float:
    """A forward beside a backward: a micro-batch of a virtual stage more, without a pipeline a layer more."""
    experts = any(isinstance(layer.ffn, Moe) for layer in step.model.layers)
    if not (step.preset.moe_exchange_overlap and experts):
        return 0.0
    if step.lay.pp > 1:
        return max(sum(b.saved for b in step.stages[s].blocks) for s in saved)
    return max(b.saved_whole for s in saved for b in step.stages[s].layers)


def _states(step: _Step, dense: Held, expert: Held) -> dict[str, float]:
    z, work = step.lay.zero_stage, step.workload
    two = step.preset.compute_copy and step.width < 4  # a compute copy and a main copy
    main = {"fp32": 4.0, "bf16": 0.0, "remainder": 2.0}[work.main_dtype] if two else 0.0
    whole = step.plan.reduce != "each" and step.microbatches > 1
    all_of = dense.trained + expert.trained
    shared = dense.trained / step.shard + expert.trained / step.expert_shard
    moments = (MOMENTS[work.optimizer] + main) * (shared if z >= 1 else all_of)
    if work.optimizer == "muon":
        moments += 4 * dense.other / (step.shard if z >= 1 else 1)
    return {
        "parameters": _resident(step, dense, step.shard) + _resident(step, expert, step.expert_shard),
        "gradients": step.grad * (shared if z >= 2 and not whole else all_of),
        "optimizer": moments,
    }


def _resident(step: _Step, held: Held, shard: float) -> float:
    """Bytes of parameters: trained and frozen ones outside narrow matrices, and those inside with every copy."""
    p, w, z3 = step.preset, step.workload, step.lay.zero_stage >= 3
    main = step.width if w.main_dtype == "bf16" else 4.0
    trained = step.width if p.compute_copy else main
    wide = trained if w.lora is None else step.width
    packed = wide
    if w.lora is not None and w.lora.base:
        packed = NF4
    elif step.narrow and p.compute_copy:
        q, stays = step.narrow.size, step.narrow.scaling in p.quantised_params
        if z3:
            packed = q if stays else step.width
        else:
            one = stays and w.lora is not None and step.narrow.scaling in ("delayed", "current")
            packed = (q if one else 2 * q) if stays else step.width + 2 * q
    total = held.trained * trained + held.frozen * step.width + held.packed * (packed - wide)
    return total / (shard if z3 else 1.0)


def _stepping(step: _Step) -> float:
    """fp32 copies of narrow gradients beside fp32 main weights; the square root that eager Adam makes."""
    p, w = step.preset, step.workload
    total = 0.0
    if p.compute_copy and step.width < 4 and w.main_dtype == "fp32" and step.grad < 4:
        total += 4.0 + (step.grad if p.flat_gradients else 0.0)
    if not p.fused_optimizer and MOMENTS[w.optimizer]:
        total += 4.0
    return total


def _buffers(step: _Step, trained: float) -> float:
    """Boundary in and out; one gathered activation or the scores of local attention; a bucket of ZeRO-2."""
    lay, one, p = step.lay, step.one, step.preset
    boundary = one.tokens_sp * one.hidden * step.width
    total = 2 * step.schedule.directions * boundary if lay.pp > 1 else 0.0
    scores = 0.0
    if not p.transformer_engine and p.attention not in ("flash", "sdpa-cpu"):
        heads = max((layer.softmax.n_heads for layer in step.model.layers if layer.softmax), default=0)
        scores = step.width * lay.mbs * heads / lay.tp * one.seq * step.workload.seq_len
    total += max(boundary * lay.tp if lay.sp else 0.0, scores)
    total += max(b.exchanged for s in step.stages for b in s.layers)
    if lay.zero_stage == 2:
        total += min(trained * step.grad, float(p.bucket_bytes))
    return total


def _unsharded(step: _Step, r: int, dense: Held, expert: Held) -> tuple[float, float]:
    """ZeRO-3: two layers gathered and the root group; backward a layer's gradients and the root's on top."""
    lay, p = step.lay, step.preset
    if lay.zero_stage < 3:
        return 0.0, 0.0
    sent, trained, root, own = 0.0, 0.0, 0.0, 0.0
    for number, stage in enumerate(step.stages):
        if stage.rank != r:
            continue
        for layer, plain in zip(step.split[number], step.plain_of[number], strict=True):
            a, b = held_by_layer(layer, step.model.hidden, step.workload, lay, plain)
            sent, trained = max(sent, step.sent(a) + step.sent(b)), max(trained, a.trained + b.trained)
        for end in step.ends_of[number]:
            root, own = root + step.sent(end), own + end.trained
    whole = step.sent(dense) + step.sent(expert)
    if step.plan.unshard not in ("once", "forward"):
        whole = min((2 if p.prefetch_params else 1) * sent + root, whole)
    each = step.width + (step.grad if step.grad != step.width else 0.0)
    return whole, whole + trained * each + own * step.width


def _workspace(step: _Step, r: int) -> float:
    """cuBLAS twice, Transformer Engine, and its empty weight gradients."""
    device, p = step.cluster.device, step.preset
    total = 0.0
    if device.kind == "gpu" and device.vendor != "AMD":
        new = device.generation in ("hopper", "blackwell", "blackwell-ultra")
        total += 2 * (32 * MIB if new or p.deterministic else (2 * 4096 + 8 * 16) * 1024)
        if p.transformer_engine:
            total += (3 if p.userbuffers else 1) * (32 if new else 4) * MIB
    elif device.kind == "gpu":
        total += (3 if p.transformer_engine else 2) * (64 if device.generation == "cdna4" else 32) * MIB
    if not (p.transformer_engine and p.main_grad_buffer and p.fused_grad_accumulation) or step.workload.lora:
        return total
    here: list[DecoderLayer] = [x for n, s in enumerate(step.stages) if s.rank == r for x in step.split[n]]
    shapes = set()
    for layer in here:
        weights = [w for w in layer.parameters(step.model.hidden) if isinstance(w, Weight) and w.name != "router"]
        for w in weights:
            mates = [m for m in weights if (m.fused_with or m.name) == (w.fused_with or w.name)]
            shapes.add((w.n_in, sum(m.n_out for m in mates), w.shard, w.expert))
    for n_in, n_out, shard, routed in shapes:
        parts = 1 if shard == "replicated" else (step.lay.etp if routed else step.lay.tp)
        total += n_in * n_out * step.width / parts
    return total


def _communicators(step: _Step) -> float:
    """Half of the context for each group beyond three; DeepSpeed's pipeline has five of its own."""
    lay = step.lay
    groups = sum(n > 1 for n in (lay.tp, lay.cp, lay.pp, lay.dp * lay.cp, lay.ep, lay.etp))
    groups += int(lay.ep * lay.etp > 1 and step.edp > 1) + int(0 < lay.fsdp < lay.dp)
    groups += step.preset.pipeline_communicators if lay.pp > 1 else 0
    return max(groups - 3, 0) * step.cluster.context_bytes / 2.0
