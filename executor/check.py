"""Correctness before timing: loss and every gradient against one single-process run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from executor.device import Backend
from executor.job import Job
from executor.model import Decoder, batch, global_name, initialise
from planner.model.spec import ModelSpec
from planner.plan import Plan

TOLERANCE = {"fp32": 1e-4, "bf16": 5e-2}
"""Largest accepted max|g - g_ref| / max|g_ref| of any parameter. fp32 sums in another order are
wrong by some 1e-6; a missing or doubled reduction by 0.5 or more. bf16 keeps 8 bits."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A single-process run of one step: loss, gradients, and the loss of the next step."""

    loss: float
    gradients: dict[str, Tensor]
    next_loss: float


def reference(plan: Plan, spec: ModelSpec, backend: Backend, seed: int) -> Reference:
    """Run the whole model and the whole batch on this rank alone, in fp32, without any process group.

    The next loss, after one optimizer step on the same batch, tells whether the distributed
    optimizer updated every parameter.
    """
    model = Decoder(spec, plan.workload.seq_len)
    initialise(model, seed)
    model.to(backend.device)
    tokens, targets = (t.to(backend.device) for t in batch(spec, plan.workload.gbs, plan.workload.seq_len, seed))
    kind: Any = torch.optim.AdamW if plan.workload.optimizer == "adamw" else torch.optim.SGD
    from executor.parallel import LEARNING_RATE

    optimizer = kind([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE, fused=True)
    pieces = max(1, plan.workload.gbs // plan.layout.mbs)

    def run(backward: bool) -> float:
        total = 0.0
        with torch.set_grad_enabled(backward):
            for x, y in zip(tokens.chunk(pieces), targets.chunk(pieces), strict=True):
                loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1).float(), y.flatten()) / pieces
                if backward:
                    loss.backward()
                total += float(loss.detach())
        return total

    loss = run(True)
    gradients = {global_name(n): p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    optimizer.step()
    return Reference(loss, gradients, run(False))


def _spread(value: float, op: dist.ReduceOp.RedOpType, device: torch.device) -> float:
    cell = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(cell, op=op)
    return float(cell)


def global_loss(job: Job, loss: Tensor | None) -> float:
    """Mean loss over the global batch, from the ranks that hold a last stage."""
    device = job.backend.device
    pair = torch.zeros(2, dtype=torch.float64, device=device)
    if loss is not None:
        pair = torch.stack([loss.double(), torch.ones((), dtype=torch.float64, device=device)])
    dist.all_reduce(pair)
    return float(pair[0] / pair[1])


def verify(job: Job, wanted: Reference) -> dict[str, Any]:
    """Compare one distributed step with the reference on all ranks.

    Returns
    -------
    dict
        ``loss_rel_err``, ``grad_rel_err`` (worst parameter, on full tensors), ``worst_parameter``,
        ``next_loss_rel_err`` (after one optimizer step), ``tolerance``, ``passed``.
    """
    plan, device = job.plan, job.backend.device
    tokens, targets = batch(job.spec, plan.workload.gbs, plan.workload.seq_len, job.seed)
    own = job.own(tokens), job.own(targets)
    loss = global_loss(job, job.forward_backward(*own))
    worst, name = compare(job, wanted.gradients)
    job.optimise()
    again = job.forward_backward(*own)
    next_loss = global_loss(job, again)
    job.optimizer.zero_grad(set_to_none=True)
    worst_all = _spread(worst, dist.ReduceOp.MAX, device)
    names: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(names, (worst, name))
    tolerance = TOLERANCE[plan.workload.precision]
    loss_err = abs(loss - wanted.loss) / abs(wanted.loss)
    next_err = abs(next_loss - wanted.next_loss) / abs(wanted.next_loss)
    return {
        "loss": loss,
        "loss_rel_err": loss_err,
        "grad_rel_err": worst_all,
        "worst_parameter": max(names)[1],
        "next_loss_rel_err": next_err,
        "tolerance": tolerance,
        "passed": bool(max(loss_err, worst_all, next_err) <= tolerance),
        "model": f"{job.spec.name}, {job.spec.n_layers} layers, {job.spec.parameters} parameters",
    }


def compare(job: Job, wanted: dict[str, Tensor]) -> tuple[float, str]:
    """Largest relative error over this rank's gradients and the parameter it belongs to."""
    worst, where = 0.0, ""
    shapes = {name: note for part in job.parts for name, note in part.notes.items()}
    found = job.gradients()
    missing = [n for p in job.parts for n, q in p.named_parameters().items() if q.requires_grad and n not in found]
    if missing:
        return float("inf"), missing[0]
    # A gradient that is zero but for rounding (the bias of keys: softmax ignores it) has no scale
    # of its own.
    floor = 1e-3 * max(float(g.abs().max()) for g in wanted.values())
    for name, gradient in found.items():
        whole = wanted[name]
        part = job.groups.tp.shard(whole, shapes[name].shard_dim)
        scale = max(float(whole.abs().max()), floor)
        error = float((gradient.float() - part).abs().max()) / scale
        if not error <= worst:
            worst, where = error, name
    return worst, where


def reduced(spec: ModelSpec, plan: Plan, limit: int) -> tuple[ModelSpec, Plan]:
    """The model and plan to check: themselves, or, where the whole model has more than `limit`
    parameters and no single process could hold it, a narrow copy with the same layers and layout.
    """
    if spec.parameters <= limit:
        return spec, plan
    from planner.model.spec import Attention, Mlp, Moe

    layers = []
    for layer in spec.layers:
        attention, ffn = layer.attention, layer.ffn
        if isinstance(attention, Attention):
            attention = replace(attention, head_dim=16)
        width = 16 * plan.layout.tp
        ffn = (
            replace(ffn, ffn_hidden=width, shared_ffn_hidden=width * bool(ffn.shared_ffn_hidden))
            if isinstance(ffn, Moe)
            else replace(ffn, ffn_hidden=width)
            if isinstance(ffn, Mlp)
            else ffn
        )
        layers.append(replace(layer, attention=attention, ffn=ffn))
    seq = min(plan.workload.seq_len, 32 * max(1, plan.layout.tp))
    narrow = replace(
        spec,
        name=f"{spec.name} (narrow copy)",
        hidden=64,
        vocab=64 * plan.layout.tp,
        layers=tuple(layers),
        learned_positions=seq if spec.learned_positions else 0,
    )
    return narrow, replace(plan, workload=replace(plan.workload, seq_len=seq))
