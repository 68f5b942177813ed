"""The other half of ``make bench``: DP2, TP2 and PP2 predicted and run for real on two CPU ranks, three times.

Each time the machine is calibrated first, then the three plans are timed step by step in turn in
one launch. The figure of a plan is the median over the three times of its signed error
(predicted over measured step time), beside each of them; the order of the plans is compared
where their measured times differ by more than the noise.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from executor import calibrate
from executor.launch import run_plans
from hwmodels import cluster as clusters
from planner.cli.calibrate import fitted
from planner.compare import compare_many
from planner.layout import Layout
from planner.model import load
from planner.plan import Workload, build_plan
from planner.predict import predict, prediction

HISTORY = Path(__file__).resolve().parent / "history.jsonl"
TIMES = 3
REPEATS = 8
LIMIT_PCT = 20.0
WORKLOAD = Workload(256, 8, "fp32", "adamw", "ours")
LAYOUTS: dict[str, Layout] = {
    "dp2": Layout(dp=2, mbs=4),
    "tp2": Layout(tp=2, mbs=8),
    "pp2": Layout(pp=2, mbs=2),
}


def once(folder: Path) -> tuple[dict[str, float], dict[str, float], dict[str, float], bool]:
    """Calibrate, predict, run: predicted and measured seconds, error in per cent, and whether the order agrees."""
    model, config = load("tiny-llama")
    machine = fitted(clusters.load("cpu-local:1"), calibrate.measure(2))
    plans = []
    for name, layout in LAYOUTS.items():
        step = predict(model, machine, WORKLOAD, layout)
        plans.append(build_plan(name, config, model, "cpu-local", WORKLOAD, layout, 2, prediction(step)))
    measured = run_plans(plans, folder, repeats=REPEATS, warmup=2)
    check = compare_many(list(zip(plans, measured, strict=True)))
    predicted = {p.name: p.predicted.step_s for p in plans if p.predicted}
    seconds = {m.plan_name: m.median_step_s for m in measured}
    errors = {name: (predicted[name] / seconds[name] - 1.0) * 100.0 for name in predicted}
    return predicted, seconds, errors, check.agrees is not False


def main() -> int:
    """Measure, print, append to the history; 1 when a median error is over its limit."""
    errors: dict[str, list[float]] = {name: [] for name in LAYOUTS}
    agreed: list[bool] = []
    print(f"{'':8}{'plan':8}{'predicted':>11}{'measured':>11}{'error':>9}", flush=True)
    for number in range(1, TIMES + 1):
        with tempfile.TemporaryDirectory(prefix="meshwright-") as folder:
            predicted, seconds, found, agrees = once(Path(folder))
        agreed.append(agrees)
        for name in LAYOUTS:
            errors[name].append(found[name])
            row = f"{predicted[name]:10.3f}s{seconds[name]:10.3f}s{found[name]:+8.1f}%"
            print(f"time {number}  {name:8}{row}", flush=True)
    medians = {name: statistics.median(values) for name, values in errors.items()}
    for name, median in medians.items():
        print(f"median  {name:8}{'':22}{median:+8.1f}%   limit {LIMIT_PCT:.0f}%")
    print(f"order of the plans as measured (where they differ by more than the noise): {sum(agreed)} of {TIMES} times")
    record: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "kind": "executor",
        "cores": os.cpu_count(),
        "error_pct": {name: [round(v, 1) for v in values] for name, values in errors.items()},
        "median_error_pct": {name: round(v, 1) for name, v in medians.items()},
        "order_agreed": agreed,
    }
    with HISTORY.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")
    over = [name for name, value in medians.items() if abs(value) > LIMIT_PCT]
    for name in over:
        print(f"{name}: median error {medians[name]:+.1f} % is over {LIMIT_PCT:.0f} %", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
