"""The space laid out axis by axis against every combination checked one by one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.cluster import load
from hwmodels.errors import InputError
from planner.layout import RULES, Layout, LayoutBatch, RuleContext, split_id
from planner.layout.degrees import CODES
from planner.layout.reads import FIELDS, fields_read
from planner.model import load as load_model
from planner.model.shape import from_shape
from planner.plan import Workload
from planner.search import Space
from planner.search.space import enumerate_layouts, survey, variants
from tests.planner.search.test_regret import dense, experts


def test_a_small_space_by_hand() -> None:
    """On 8 ranks with gbs 8: of tp {1, 2} x pp {1, 2} dp is 8, 4, 4, 2; each divides the batch with mbs 1 and 2.

    mbs 2 with dp 8 takes 16 sequences: dropped. ZeRO 0 and 1 with dp > 1 everywhere: 4 grids x 2 mbs x 2 stages = 16
    considered, 2 dropped by the batch.
    """
    space = Space(
        tp=(1, 2), sp=(0,), cp=(1,), pp=(1, 2), vpp=(1,), mbs=(1, 2), zero_stage=(0, 1), fsdp=(0,), recompute=("none",),
        schedule=("1f1b",),
    )  # fmt: skip
    found = enumerate_layouts(space, dense(), load("dgx-a100:1"), Workload(2048, 8))
    assert (found.considered, found.dropped, len(found.layouts)) == (16, {"gbs-microbatch": 2}, 14)


def every_combination(space: Space, world: int) -> set[Layout]:
    """Distinct layouts of a space whose fields all are given, before any rule, each run written once."""
    fields = ("tp", "sp", "cp", "pp", "vpp", "ep", "zero_stage", "fsdp", "mbs", "recompute", "schedule")
    found = set()
    for values in product(*(getattr(space, name) for name in fields)):
        layout = Layout(**dict(zip(fields, values, strict=True)))
        dp = max(world // (layout.tp * layout.cp * layout.pp), 1)
        interleaved = layout.schedule == "interleaved-1f1b"
        once = [
            layout.sp == 0 or layout.tp > 1,
            layout.vpp == 1 or layout.pp > 1,
            (layout.vpp > 1) == interleaved if layout.pp > 1 else layout.schedule == "1f1b",
            layout.fsdp != dp,
        ]
        if all(once):
            found.add(Layout(**dict(zip(fields, values, strict=True)), dp=dp))
    return found


@settings(max_examples=15, deadline=None)
@given(
    tp=st.sets(st.sampled_from([1, 2, 3, 4, 8]), min_size=1), pp=st.sets(st.sampled_from([1, 2, 4, 5]), min_size=1),
    cp=st.sets(st.sampled_from([1, 2]), min_size=1), mbs=st.sets(st.sampled_from([1, 2, 3]), min_size=1),
    gbs=st.sampled_from([8, 24, 32]), moe=st.booleans(),
)  # fmt: skip
def test_what_is_laid_out_is_what_every_combination_gives(
    tp: set[int], pp: set[int], cp: set[int], mbs: set[int], gbs: int, moe: bool
) -> None:
    """The same legal layouts and the same number considered; every candidate is legal or dropped by one rule."""
    model = experts() if moe else dense()
    space = Space(
        tp=tuple(tp), sp=(0, 1), cp=tuple(cp), pp=tuple(pp), vpp=(1, 2), mbs=tuple(mbs), ep=(1, 2) if moe else (1,),
        zero_stage=(0, 1, 3), fsdp=(0, 2), recompute=("none", "full"), schedule=("1f1b", "interleaved-1f1b"),
    )  # fmt: skip
    cluster, workload = load("dgx-a100:2"), Workload(2048, gbs)
    found = enumerate_layouts(space, model, cluster, workload)
    every = every_combination(space, cluster.n_ranks)
    context = RuleContext.of(model, workload, cluster.n_ranks)
    layouts = sorted(every, key=repr)
    batch = LayoutBatch.of(layouts)
    with np.errstate(divide="ignore"):
        kept = np.all([rule.holds(batch, context) for rule in RULES], axis=0)
    legal = {lay for lay, holds in zip(layouts, kept, strict=True) if holds}
    assert found.considered == len(every)
    assert {found.layouts.layout(i) for i in range(len(found.layouts))} == legal
    assert found.considered == sum(found.dropped.values()) + len(legal)


def test_rows_are_counted_as_they_are_laid_out() -> None:
    """Legal candidates of some rows of work, counted by classes and one by one, with what a rule over both drops."""
    model, cluster, workload = dense(), load("dgx-a100:1"), Workload(2048, 32768)
    space = Space(cp=(1,), fsdp=(0,), tp=(1, 2), mbs=(1, 2), recompute=("none",))
    one, other = (survey(space, model, cluster, workload) for _ in range(2))
    rows = np.arange(0, int(one.work_cell[-1]), 2)
    assert one.legal(rows) == sum(len(work) for work, _ in other.chunks(rows))
    assert one.dropped == other.dropped
    assert "step-length" in one.dropped


@pytest.mark.parametrize("framework", ["generic", "megatron", "fsdp2", "deepspeed"])
@pytest.mark.parametrize("moe", [False, True])
def test_rules_read_no_field_that_is_not_found(framework: str, moe: bool) -> None:
    """Whatever the other fields become, a rule's answer stays what it was."""
    model = experts() if moe else dense()
    context = RuleContext.of(model, Workload(2048, 64, framework=framework), 16)
    draw = np.random.default_rng(3)
    values: dict[str, list[int]] = {name: [1, 2, 4] for name in FIELDS}
    values |= {"sp": [0, 1], "zero_stage": [0, 1, 2, 3], "fsdp": [0, 2], "cp_ulysses": [0, 2], "order": [0, 1, 5]}
    values |= {"offload_parameters": [0, 1], "offload_activations": [0, 1], "offload_optimizer": [0, 50]}
    values |= {"recompute": [0, 1, 2, 3], "reshard": [0, 1, 2], "cp_kind": [0, 1, 2, 3], "recompute_modules": [0, 1]}
    values |= {"schedule": [CODES["schedule"].encode(name) for name in ("1f1b", "gpipe", "interleaved-1f1b")]}
    values |= {name: [0, split_id((1,))] for name in ("recompute_layers",)}
    values |= {"stage_layers": [0, split_id((4, 4))], "placement": [0]}
    n = 400
    columns = {name: draw.choice(values[name], n) for name in FIELDS}
    others = {name: draw.choice(values[name], n) for name in FIELDS}
    for rule in RULES:
        read = fields_read(rule.holds, context)
        changed = {name: columns[name] if name in read else others[name] for name in FIELDS}
        with np.errstate(all="ignore"):
            before, after = (rule.holds(LayoutBatch(**part), context) for part in (columns, changed))
        assert np.array_equal(np.broadcast_to(before, n), np.broadcast_to(after, n)), rule.id


def test_variants_are_workloads_that_differ() -> None:
    """Two precisions and a switch of two values are four workloads; a switch at what the preset does anyhow is none."""
    work = Workload(2048, 32, framework="megatron")
    space = Space.of({"precision": ("bf16", "fp16"), "switches": {"overlap_grad_reduce": ("true", "false")}})
    found = variants(space, work)
    assert [(one.precision, dict(one.switches)["overlap_grad_reduce"]) for one in found] == [
        ("bf16", "true"), ("bf16", "false"), ("fp16", "true"), ("fp16", "false"),
    ]  # fmt: skip
    again = Space.of({"switches": {"overlap_grad_reduce": ("true", "yes")}})
    assert len(variants(again, work)) == 1
    with pytest.raises(InputError) as error:
        Space.of({"precision": ("bf17",), "switches": {"overlap_grads": ("true",), "dropout": ("maybe",)}})
    assert len(error.value.faults) == 3


def test_shard_degrees_are_searched_below_all_of_dp_where_something_is_sharded() -> None:
    model = from_shape(name="s", layers=4, hidden=1024, heads=8, ffn_hidden=4096, vocab=8192, seq_len=1024)
    space = Space(tp=(1,), pp=(1,), cp=(1,), mbs=(1,), recompute=("none",))
    found = enumerate_layouts(space, model, load("dgx-a100:4"), Workload(1024, 32)).layouts
    each = [found.layout(i) for i in range(len(found))]
    assert {(lay.zero_stage, lay.fsdp) for lay in each} == {(0, 0), *product((1, 2, 3), (0, 8, 16))}


def test_gpt3_on_4096_has_a_hundred_thousand_layouts_by_default() -> None:
    model, _ = load_model("gpt3-175b")
    found = survey(Space(), model, load("dgx-a100:512"), Workload(2048, 1536, framework="megatron"))
    legal = sum(len(work) for work, _ in found.chunks())
    assert legal >= 100_000
    assert found.considered == sum(found.dropped.values()) + legal
