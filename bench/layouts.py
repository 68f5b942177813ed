"""Layouts priced and sized a second on one core: Llama-3-70B on 4,096 H100, every legal layout of a wide space.

Priced: every op, collective and node of the step from full prices, and the lower bound of its time that a search
ranks by, for every layout. Sized: the peak bytes, on the rank that needs most. Enumerating and checking the rules is
counted too. The first pass of a process also plays the schedules' action lists (kept for later ones): its rate is
printed apart.
Run alone it prints the rates, and beside them the rate of exact step times (max-plus engine) of the fastest; under
``bench.py`` the whole process is timed, imports included.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from hwmodels import cluster as clusters
from planner import model as models
from planner.evaluate import bounds, exact_seconds
from planner.plan import Workload
from planner.priced import price_model
from planner.search.least import peak_bytes
from planner.search.space import Space, enumerate_layouts
from planner.step.assemble import Group, assemble_all, dag_groups

SPACE = Space(
    cp=(1, 2, 4, 8, 16, 32), fsdp=(0, 4, 8, 16, 32, 64, 128, 256, 512, 1024), mbs=(1, 2, 4, 8, 16),
    recompute=("none", "selective", "full"),
)  # fmt: skip
EXACT = 64
MODEL, _ = models.load("llama-3-70b")
CLUSTER = clusters.load("dgx-h100:512")
WORKLOAD = Workload(8192, 16384, framework="generic")


def priced_and_sized() -> tuple[int, float, list[tuple[Group, np.ndarray]]]:
    """Layouts, CPU seconds, and each group with its lower bounds."""
    start = time.process_time()
    layouts = enumerate_layouts(SPACE, MODEL, CLUSTER, WORKLOAD).layouts
    priced = price_model(MODEL, WORKLOAD, layouts, CLUSTER)
    peak_bytes(priced)
    groups = assemble_all(priced, list(dag_groups(priced, np.arange(len(layouts)))))
    found = [(group, bounds(group)) for group in groups]
    return len(layouts), time.process_time() - start, found


def exact_rate(groups: list[tuple[Group, np.ndarray]]) -> float:
    """Exact step times a second for the `EXACT` layouts of least bound in each group, graphs built anew."""
    start, count = time.process_time(), 0
    for group, bound in groups:
        best = np.argsort(bound, kind="stable")[:EXACT]
        count += len(exact_seconds(group, best))
    return count / (time.process_time() - start)


if __name__ == "__main__":
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    rates = []
    for _ in range(runs):
        count, seconds, groups = priced_and_sized()
        rates.append(count / seconds)
    median = statistics.median(rates)
    print(f"{median:,.0f} layouts priced and sized a second, one core ({count:,} layouts, median of {runs})")
    print(f"{rates[0]:,.0f} a second in the first pass of the process")
    if runs > 1:
        print(f"{exact_rate(groups):,.0f} exact step times a second (the {EXACT} best of each of {len(groups)} graphs)")
