"""The torchrun entry of calibration: ``-m executor.calibrate_worker --out FILE --budget SECONDS [--quick]``."""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist

from executor import messages, process
from executor.benchmarks import attention, collectives, gemm, launch_cost, memory_bound, overlap
from executor.benchmarks.base import Bench
from executor.device import Backend
from planner.files import write_json

_SHARES = {"compute": 0.75, "collectives": 0.18, "overlap": 0.05}


def _say(text: str) -> None:
    if dist.get_rank() == 0:
        messages.say("progress", text=text)


def measure(backend: Backend, budget_s: float, quick: bool) -> dict[str, Any]:
    """All rows, as `executor.calibrate.CalibrationRows` holds them."""
    torch.manual_seed(dist.get_rank())
    world = dist.get_world_size()
    least = 3 if quick else 9

    def bench(kind: str, parts: int = 1) -> Bench:
        together = kind in ("collectives", "overlap")
        return Bench(backend, budget_s * _SHARES[kind] / parts, least, together)

    found: dict[str, Any] = {"launch_s": launch_cost.run(bench("overlap"))}
    _say("calibrate gemm, memory-bound operators and attention")
    where = bench("compute")
    kinds = {"gemm": gemm, "memory": memory_bound, "attention": attention}
    cases = {kind: module.cases(where, quick) for kind, module in kinds.items()}
    # One run for all of them: a machine whose clock drifts over tens of seconds then drifts under all alike.
    in_turn = iter(where.run([case for members in cases.values() for case in members]))
    for kind, members in cases.items():
        found[kind] = [next(in_turn) for _ in members]
    found["skew"] = sum(slowest for slowest, _ in where.imbalance) / sum(mean for _, mean in where.imbalance) - 1.0
    found["collectives"], found["overlap"] = [], []
    shapes = collectives.groups(world)
    for size, stride in shapes:
        _say(f"calibrate collectives over {size} ranks, stride {stride}")
        group = collectives.make(size, stride)
        where = bench("collectives", len(shapes))
        rows = where.run(collectives.cases(where, size, stride, group, backend.sizes.collective_bytes))
        for row in rows:
            if row["op"] == "send_recv":
                # One call is a transfer there and one back.
                row["seconds"] /= 2
        found["collectives"] += rows
    if world > 1:
        _say("calibrate overlap of compute and communication")
        found["overlap"] = overlap.run(bench("overlap", 3))
    found["environment"] = {**backend.environment(), "ranks": world, "quick": quick}
    return found


def run() -> None:
    """Body of a worker."""
    parser = argparse.ArgumentParser(prog="executor.calibrate_worker", description="Microbenchmarks on this rank.")
    parser.add_argument("--out", required=True)
    parser.add_argument("--budget", type=float, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    backend = process.start(args.device, args.threads, 120.0)
    rows = measure(backend, args.budget, args.quick)
    if dist.get_rank() == 0:
        write_json(args.out, rows)


if __name__ == "__main__":
    process.main(run)
