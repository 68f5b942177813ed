"""One formula serves one layout and many: prices and bytes of a batch equal those of each layout alone."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import cluster as clusters
from planner import model as models
from planner.evaluate import bounds, detail, details, exact_seconds
from planner.plan import Workload
from planner.priced import PricedModel, price_model
from planner.search.space import Space, enumerate_layouts
from planner.step.assemble import assemble, dag_groups, group_memory

CASES = {
    "dense": ("llama-3-8b", "dgx-h100:4", Workload(8192, 64, framework="generic"),
              Space(cp=(1, 2), fsdp=(0, 4, 8), mbs=(1, 2), vpp=(1, 2))),
    "fsdp": ("llama-3-8b", "dgx-h100:4", Workload(8192, 64, framework="fsdp2"),
             Space(cp=(1, 2), fsdp=(0, 4, 8), mbs=(1, 2), zero_stage=(0, 3))),
    "flat": ("llama-3-8b", "dgx-a100:4", Workload(2048, 64, framework="deepspeed"), Space(mbs=(1, 2))),
    "experts": ("mixtral-8x7b", "dgx-h100:8", Workload(4096, 128, framework="megatron"),
                Space(ep=(1, 2, 8), mbs=(1, 2))),
}  # fmt: skip


@cache
def legal(case: str) -> PricedModel:
    """Every legal layout of a case in one batch."""
    model_name, cluster_name, workload, space = CASES[case]
    model, cluster = models.load(model_name)[0], clusters.load(cluster_name)
    return price_model(model, workload, enumerate_layouts(space, model, cluster, workload).layouts, cluster)


def figures(priced: PricedModel) -> list[dict[str, np.ndarray]]:
    """Step seconds, bytes by rank and what they consist of for each layout."""
    found: list[dict[str, np.ndarray]] = [{} for _ in range(len(priced.layouts))]
    for shape in dag_groups(priced, np.arange(len(priced.layouts))):
        group, sized = assemble(priced, *shape), group_memory(priced, *shape[:4])
        values = {
            "bound": bounds(group), "exact": exact_seconds(group, np.arange(len(group.index))),
            "peak": sized.peak_bytes, "host": sized.host, "moment": sized.moment,
            "low": sized.footprint.low, "high": sized.footprint.high, "flops": group.flops,
            **{f"bytes {name}": value for name, value in sized.by_category.items()},
            **{f"part {name}": value for name, value in group.parts.items()},
            **{f"hidden {name}": value for name, value in group.hidden.items()},
        }  # fmt: skip
        for place, i in enumerate(group.index):
            found[i] = {name: value[place] for name, value in values.items()}
    return found


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_batch_equals_its_layouts_alone(case: str, seed: int) -> None:
    every = legal(case)
    chosen = np.random.default_rng(seed).choice(len(every.layouts), size=min(6, len(every.layouts)), replace=False)
    layouts = every.layouts.take(chosen)
    together = figures(price_model(every.model, every.workload, layouts, every.cluster))
    for i, batched in enumerate(together):
        one = price_model(every.model, every.workload, layouts.take(np.asarray([i])), every.cluster)
        (alone,) = figures(one)
        for name, value in batched.items():
            scale = {"part": alone["exact"], "hidden": alone["exact"]}.get(name.split()[0], 0.0)
            np.testing.assert_allclose(value, alone[name], rtol=1e-12, atol=1e-12 * scale, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_the_peak_is_the_sum_of_its_categories(case: str) -> None:
    priced = legal(case)
    shape = next(dag_groups(priced, np.arange(min(200, len(priced.layouts)))))
    sized = group_memory(priced, *shape[:4])
    np.testing.assert_allclose(sized.peak_bytes, sum(sized.by_category.values()), rtol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_details_of_many_are_those_of_each_alone(case: str) -> None:
    """To the bit, whichever layouts share a graph or a memory estimate with it."""
    every = legal(case)
    chosen = np.random.default_rng(5).choice(len(every.layouts), size=min(12, len(every.layouts)), replace=False)
    asked = [
        (every, group, place)
        for shape in dag_groups(every, np.sort(chosen))
        for group in [assemble(every, *shape)]
        for place in range(len(group.index))
    ]
    assert len(asked) > 3
    for (priced, group, place), together in zip(asked, details(asked), strict=True):
        sized = group_memory(priced, group.index[[place]], group.pp, group.vpp, group.schedule)
        assert together == detail(priced, group, place, sized)
