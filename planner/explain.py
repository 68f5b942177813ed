"""explain: where every millisecond comes from, op by op, down to coefficients and datasheets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hwmodels.kernels.formats import format_of
from hwmodels.kernels.memory import memory_coefficient
from planner.price import BlockPrice, OpPrice, overlapped, partners
from planner.priced import PricedModel
from planner.recompute import kind_counts
from planner.schedule import get as get_schedule
from planner.step.assemble import Group
from planner.workload.recompute import rerun_share


def explain_rows(priced: PricedModel, group: Group) -> list[dict[str, Any]]:
    """One row an op and phase: what it is, how often a step runs it, its seconds, and its law's source.

    Rows are of the first layout of `group`; seconds count all micro-batches and the layers of the
    whole model, on one rank of each stage. `exposed_s` and `hidden_s` split the seconds of a step into what holds
    up compute and what runs behind it; a transfer of the pipeline and of data parallelism runs on a stream of its
    own, and what of it is exposed is a matter of the whole step (`Step.phases`): None.
    """
    rows = [*_compute_rows(priced, group), *_stream_rows(priced, group)]
    rows.sort(key=lambda r: -r["seconds_per_step"])
    return rows


def _scalar(value: Any, row: int) -> float:
    array = np.asarray(value, dtype=np.float64)
    return float(array.reshape(-1)[row]) if array.ndim and array.size > 1 else float(array.reshape(-1)[0])


def _compute_rows(priced: PricedModel, group: Group) -> Iterator[dict[str, Any]]:
    """Ops of a micro-batch, and the forward ops that recomputation runs again."""
    row, layouts = int(priced.inverse[group.index[0]]), group.layouts.take(np.arange(1))
    microbatches = int(group.microbatches[0])
    policy = priced.policies[int(priced.policy[group.index[0]])]
    layers = [
        *zip(priced.layers, *kind_counts(priced.model, layouts, group.pp, group.vpp, group.schedule), strict=True)
    ]
    for block, copies, again in [(priced.embedding, 1, 0), *layers, (priced.head, 1, 0)]:
        named, others = partners(block.ops)
        for p in block.ops:
            firsts = get_schedule(group.schedule).directions  # each copy of a pipeline has a first micro-batch
            runs = microbatches - firsts if p.op.skips_first else (firsts if p.op.first_only else microbatches)
            count = runs * copies
            exposed, hidden = (_scalar(v, row) for v in _split(p, named, others, priced, group))
            yield from _row(block, p, row, priced, p.op.phase, count, 1.0, exposed, hidden)
            share = rerun_share(p.op, policy) if p.op.phase == "forward" else 0.0
            if share and again:
                exposed = _scalar(_split(p, named, {}, priced, group)[0], row)
                count = microbatches * again
                yield from _row(block, p, row, priced, "recompute", count, share, exposed, hidden)


def _split(p: OpPrice, named: Any, others: Any, priced: PricedModel, group: Group) -> tuple[Any, Any]:
    """Exposed and hidden seconds of all runs of a micro-batch."""
    if p.op.kind != "collective":
        return p.seconds.mid, 0.0
    partner = named.get(p.op.behind)
    if partner is not None and partner.op.phase != p.op.phase and get_schedule(group.schedule).split_backward:
        return p.seconds.mid, 0.0  # I and W run apart, so that one cannot hide what belongs to the other
    return overlapped(p.op, p.seconds.mid, named, others, priced.cluster, group.layouts.take(np.arange(1)))


def _row(
    block: BlockPrice,
    p: OpPrice,
    row: int,
    priced: PricedModel,
    phase: str,
    count: int,
    share: float,
    exposed: float,
    hidden: float,
) -> Iterator[dict[str, Any]]:
    """The row of an op that a step runs `count` times on `share` of its work; none for an op that takes no time."""
    seconds, op = _scalar(p.seconds.mid, row) * share, p.op
    if seconds > 0.0:
        dims = {k: _scalar(v, row) for k, v in op.dims.items() if not isinstance(v, (str, bool)) and v is not None}
        yield {
            "block": block.name,
            "op": op.name,
            "kind": op.collective or op.kind,
            "phase": phase,
            "group": op.group,
            "dims": dims,
            "runs_per_step": count,
            "seconds_each": seconds,
            "seconds_per_step": seconds * count,
            "exposed_s": exposed * share * count,
            "hidden_s": hidden * share * count,
            "low_s": _scalar(p.seconds.low, row) * share,
            "high_s": _scalar(p.seconds.high, row) * share,
            "source": _source(op.kind, op.dtype, priced),
        }


def _stream_rows(priced: PricedModel, group: Group) -> Iterator[dict[str, Any]]:
    """What runs once a step or between stages: data-parallel traffic, sends, optimizer, norm, tied embedding.

    Seconds of the rank that spends most on each.
    """
    costs, comm, m = group.durations.costs(np.arange(1)), group.comm, int(group.microbatches[0])
    zero, spreads = int(group.layouts.zero_stage[0]), group.spreads
    shard, law = ("fsdp" if zero else "dp_cp"), float(spreads.data_parallel[0])
    gathers = {"none": 0, "once": 1, "forward": m, "each": 2 * m}[comm.unshard]
    reductions = {"none": 0, "end": 1, "bucketed": 1, "each": m}[comm.reduce]
    scatter = "reduce_scatter" if zero else "all_reduce"
    sends = costs.send_forward_s + costs.send_backward_s
    table = (
        ("parameters.gather", "all_gather", "data_parallel", shard, costs.unshard_s.sum(axis=(2, 3)), gathers, law),
        ("gradients.reduce", scatter, "data_parallel", shard, costs.reduce_s.sum(axis=(2, 3)), reductions, law),
        ("parameters.gather_after", "all_gather", "data_parallel", shard, costs.gather_s, 1, law),
        ("gradients.mirror", "all_reduce", "data_parallel", "pp", costs.mirror_s, 1, law),
        ("gradients.tied", "all_reduce", "data_parallel", "pp", costs.tied_s[:, None], 1, law),
        ("boundary.send", "send_recv", "pipeline", "pp", sends.sum(axis=2), m, float(spreads.sends[0])),
        ("gradients.norm", "all_reduce", "optimizer", "world", priced.sync_s[group.index[:1], None], 1, law),
        ("optimizer", "memory", "optimizer", "", costs.optimizer_s, 1, float(spreads.optimizer[0])),
    )
    for name, kind, phase, axis, by_rank, runs, spread in table:
        each = float(by_rank.max())
        if each > 0.0 and runs:
            once = kind == "memory" or name == "gradients.norm"
            family = "memory" if kind == "memory" else "collective"
            yield {
                "block": "step", "op": name, "kind": kind, "phase": phase, "group": axis, "dims": {},
                "runs_per_step": runs, "seconds_each": each, "seconds_per_step": each * runs,
                "exposed_s": each * runs if once else None, "hidden_s": 0.0 if once else None,
                "low_s": each / (1.0 + spread), "high_s": each * (1.0 + spread),
                "source": _source(family, "fp32", priced),
            }  # fmt: skip


def _source(kind: str, dtype: str, priced: PricedModel) -> str:
    """Datasheet figure and fitted coefficients behind an op's price."""
    cluster = priced.cluster
    if kind == "collective":
        links = [link for link in (cluster.fabric.intra, cluster.fabric.inter) if link is not None]
        return "; ".join(f"{link.name}: {link.bandwidth:.4g} bytes/s ({link.source})" for link in links)
    device = cluster.device
    family = {"gemm": "gemm", "grouped_gemm": "gemm", "attention": "attention", "memory": "memory"}[kind]
    used = [
        f"{name}={c.value:.4g} ({c.source}, {c.rows} rows, residual {c.residual:.1%})"
        for name, c in sorted(device.coefficients.items())
        if name.startswith(family)
    ]
    if family == "memory" and not used:
        c = memory_coefficient(device, "efficiency")
        used = [f"memory.efficiency={c.value:.4g} ({c.source}, {c.rows} rows, residual {c.residual:.1%})"]
    peak = device.peak_flops.get(format_of(dtype).peak, 0.0)
    sheet = f"{device.name}: peak {peak:.4g} FLOP/s, {device.memory_bandwidth:.4g} bytes/s"
    return "; ".join([sheet, *used[:6]])
