"""Both engines on one step of 16 stages x 256 micro-batches x 4 virtual stages (interleaved 1F1B).

Prints the seconds of the SimPy engine without and with contention, of the max-plus engine for each candidate of a
batch of 64, and of building the graph, each the median of the number of runs that is asked for (5). The durations
are drawn from a seed, as far apart as those of stages of one model (0.5 to 1.5 of a mean).
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from planner.simulate.costs import CommPlan
from planner.simulate.dag import build_dag
from planner.simulate.events import simulate_events
from planner.simulate.maxplus import step_seconds

STAGES, MICROBATCHES, VPP, BATCH = 16, 256, 4, 64
COMM = CommPlan(buckets=4, reduce="bucketed", gather_after_step=True)


def seconds_of(work: Callable[[], object], runs: int) -> float:
    """Median wall seconds of `runs` calls."""
    found = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def main(runs: int) -> None:
    words = ("interleaved-1f1b", STAGES, MICROBATCHES, VPP, COMM)
    dag = build_dag(*words)

    def build() -> None:
        build_dag.cache_clear()
        build_dag(*words)

    durations = np.random.default_rng(0).uniform(0.5, 1.5, (BATCH, dag.slots.size))
    print(f"{dag.n_core:,} nodes, {len(dag.pred):,} edges, {len(dag.level_ptr) - 1:,} levels")
    print(f"build {seconds_of(build, runs):.3f} s")
    for contention in (False, True):
        taken = seconds_of(lambda with_it=contention: simulate_events(dag, durations[0], contention=with_it), runs)
        print(f"SimPy {taken:.3f} s {'with' if contention else 'without'} contention")
    print(f"max-plus {1e3 * seconds_of(lambda: step_seconds(dag, durations), runs) / BATCH:.3f} ms a candidate")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
