"""explain: where every millisecond comes from, op by op, down to coefficients and datasheets."""

from __future__ import annotations

from typing import Any

import numpy as np

from hwmodels.kernels.formats import format_of
from hwmodels.kernels.memory import memory_coefficient
from planner.assemble import Group
from planner.price import BlockPrice
from planner.priced import PricedModel


def explain_rows(priced: PricedModel, group: Group) -> list[dict[str, Any]]:
    """One row an op: what it is, how often a step runs it, its seconds, and its law's source.

    Rows are of the first layout of `group`; `seconds_per_step` counts all micro-batches and the
    layers of the whole model, on one tensor-parallel rank.
    """
    row = int(priced.inverse[group.index[0]])
    microbatches = int(group.microbatches[0])
    kinds = priced.model.layer_kinds()
    counts = [sum(layer == kind for layer in priced.model.layers) for kind in kinds]
    rows: list[dict[str, Any]] = []
    for block, copies in [(priced.embedding, 1), *zip(priced.layers, counts, strict=True), (priced.head, 1)]:
        rows += _block_rows(block, copies, row, microbatches, priced)
    rows.sort(key=lambda r: -r["seconds_per_step"])
    return rows


def _scalar(value: Any, row: int) -> float:
    array = np.asarray(value, dtype=np.float64)
    return float(array.reshape(-1)[row]) if array.ndim and array.size > 1 else float(array.reshape(-1)[0])


def _block_rows(
    block: BlockPrice, copies: int, row: int, microbatches: int, priced: PricedModel
) -> list[dict[str, Any]]:
    found = []
    for p in block.ops:
        seconds = _scalar(p.seconds.mid, row)
        if seconds <= 0.0:
            continue
        op = p.op
        dims = {k: _scalar(v, row) for k, v in op.dims.items() if not isinstance(v, (str, bool)) and v is not None}
        found.append(
            {
                "block": block.name,
                "op": op.name,
                "kind": op.collective or op.kind,
                "phase": op.phase,
                "group": op.group,
                "dims": dims,
                "runs_per_step": copies * microbatches,
                "seconds_each": seconds,
                "seconds_per_step": seconds * copies * microbatches,
                "low_s": _scalar(p.seconds.low, row),
                "high_s": _scalar(p.seconds.high, row),
                "source": _source(op.kind, op.dtype, priced),
            }
        )
    return found


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
