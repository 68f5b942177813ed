"""A batch of N layouts against N batches of one: how many times faster one call is than a call for each.

The same layouts, priced, sized and bounded as `bench/layouts.py` does. Batches of one are timed on a sample of
`SINGLES` layouts, drawn with a fixed seed; a hundred thousand of them would take most of an hour. Both sides run
warm: the schedules' lists that a pipeline shares are known already, which is in favour of the batches of one.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from layouts import CLUSTER, MODEL, SPACE, WORKLOAD

from planner.evaluate import bounds
from planner.layout import LayoutBatch
from planner.priced import price_model
from planner.search.least import peak_bytes
from planner.search.space import enumerate_layouts
from planner.step.assemble import assemble_all, dag_groups

BATCH = 100_000
SINGLES = 200


def examine(layouts: LayoutBatch) -> tuple[np.ndarray, np.ndarray]:
    """Lower bound of the step seconds and peak bytes of every layout."""
    priced = price_model(MODEL, WORKLOAD, layouts, CLUSTER)
    peak = peak_bytes(priced)
    low = np.empty(len(layouts))
    for group in assemble_all(priced, list(dag_groups(priced, np.arange(len(layouts))))):
        low[group.index] = bounds(group)
    return low, peak


def seconds_each(batches: list[LayoutBatch]) -> tuple[float, list[tuple[np.ndarray, np.ndarray]]]:
    """CPU seconds a layout, and what was found."""
    begin = time.process_time()
    found = [examine(batch) for batch in batches]
    return (time.process_time() - begin) / sum(map(len, batches)), found


def main() -> None:
    """Print how many times faster the batch is; both must say the same."""
    layouts = enumerate_layouts(SPACE, MODEL, CLUSTER, WORKLOAD).layouts
    chosen = np.random.default_rng(0).permutation(len(layouts))[:BATCH]
    batch, sample = layouts.take(chosen), [layouts.take(chosen[i : i + 1]) for i in range(SINGLES)]
    seconds_each([batch, *sample])
    together, ((low, peak),) = seconds_each([batch])
    alone, each = seconds_each(sample)
    for i, (one_low, one_peak) in enumerate(each):
        if not (np.isclose(low[i], one_low[0], rtol=1e-9) and np.isclose(peak[i], one_peak[0], rtol=1e-9)):
            raise SystemExit(f"{layouts.layout(int(chosen[i])).label()}: a batch and a batch of one differ")
    times = alone / together
    print(
        f"{times:,.0f}x faster: {len(batch):,} layouts in one batch take {together * 1e6:.2f} us each, batches of "
        f"one {alone * 1e3:.2f} ms (a sample of {SINGLES} of them, equal to 1e-9)"
    )


if __name__ == "__main__":
    main()
