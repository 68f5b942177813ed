"""What an overlapped all-reduce costs the compute it runs beside."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.distributed as dist

from executor.benchmarks.base import Bench, Case


def run(bench: Bench) -> list[dict[str, Any]]:
    """Rows with the seconds of compute alone, of the collective alone, and of both started together.

    ``hidden_share = (compute + collective - both) / min(compute, collective)``, between 0 (nothing
    is gained) and 1 (the shorter of the two is free).
    """
    sizes = bench.backend.sizes
    n_in, n_out = sizes.gemm[5]
    tokens = sizes.tokens[-1] // 2
    x, w = bench.tensor(tokens, n_in, dtype=sizes.dtype), bench.tensor(n_out, n_in, dtype=sizes.dtype)
    cases: list[Case] = []
    for nbytes in (1 << 20, 1 << 23):
        flat = bench.tensor(nbytes // 4)
        # As many GEMMs as last roughly as long as the collective, so that either could hide the other.
        alone = bench.run([Case({}, lambda: x @ w.t()), Case({}, partial(dist.all_reduce, flat, op=dist.ReduceOp.MAX))])
        number = max(1, round(alone[1]["seconds"] / alone[0]["seconds"]))

        def compute(number: int = number) -> None:
            for _ in range(number):
                x @ w.t()

        def both(number: int = number, flat: Any = flat) -> None:
            work = dist.all_reduce(flat, op=dist.ReduceOp.MAX, async_op=True)
            for _ in range(number):
                x @ w.t()
            if work is not None:
                work.wait()

        facts = {"nbytes": nbytes, "gemms": number, "m": tokens, "n": n_out, "k": n_in}
        cases += [
            Case({**facts, "what": "compute"}, compute),
            Case({**facts, "what": "collective"}, partial(dist.all_reduce, flat, op=dist.ReduceOp.MAX)),
            Case({**facts, "what": "both"}, both),
        ]
    rows = bench.run(cases)
    found = []
    for i in range(0, len(rows), 3):
        compute_s, collective_s, both_s = (rows[i + j]["seconds"] for j in range(3))
        share = (compute_s + collective_s - both_s) / min(compute_s, collective_s)
        facts = {k: rows[i][k] for k in ("nbytes", "gemms", "m", "n", "k")}
        found.append(
            {
                **facts,
                "compute_s": compute_s,
                "collective_s": collective_s,
                "both_s": both_s,
                "hidden_share": min(1.0, max(0.0, share)),
            }
        )
    return found
