"""Scenario files: what ships, what they may say, and every fault with file, line and key."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scenarios
from hwmodels import cluster as clusters
from hwmodels.errors import InfeasibleError, InputError
from planner.model import load as load_model
from planner.plan import Lora, Routing
from planner.scenario import FIELDS, RunSettings, Scenario, json_schema, load_scenario
from planner.search.space import Space

GOOD = """\
model: tiny-llama
cluster: cpu-local
workload: {seq_len: 256, gbs: 8}
"""


def read(folder: Path, text: str) -> Scenario:
    (folder / "s.yaml").write_text(textwrap.dedent(text))
    return load_scenario(folder / "s.yaml")


def refused(folder: Path, text: str, *expected: str) -> InputError:
    with pytest.raises(InputError) as error:
        read(folder, text)
    for part in expected:
        assert part in str(error.value)
    assert len(error.value.faults) == len(expected)
    return error.value


# name -> (ranks, parameters as in tests/planner/model/test_counts.py, seq_len, gbs)
SHIPPED = {
    "gpt3-175b-1024xa100": (1024, 174_615_846_912, 2048, 1536),
    "gpt3-175b-4096xa100": (4096, 174_615_846_912, 2048, 1536),
    "gpt3-175b-4096xa100-open": (4096, 174_615_846_912, 2048, 1536),
    # 128 layers of 2 x 8192^2 + 2 x 8192 x 1024 (attention), 256 x 3 x 8192 x 2560 (experts), 8192 x 256 (router) and
    # 2 x 8192 (norms); twice 131072 x 8192, and the last norm
    "moe-2t-131072xgb200": (131_072, 2_083_329_679_360, 8192, 16_384),
    "llama3-70b-128xh100": (128, 70_553_706_496, 8192, 512),
    "llama3-70b-lora-8xh200": (8, 70_553_706_496, 8192, 8),
    "llama3.1-405b-16384xh100": (16384, 405_853_388_800, 8192, 2048),
    "deepseek-v3-2048xh100": (2048, 671_026_404_352, 4096, 8192),
    "mixed-h100-a100": (64, 70_553_706_496, 4096, 256),
    "two-regions-h100": (32, 8_030_261_248, 8192, 512),
    "tiny-llama-cpu": (2, 15_798_784, 256, 8),
}


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_shipped_scenarios_load_by_name(name: str) -> None:
    scenario = load_scenario(name)
    found = (scenario.cluster.n_ranks, scenario.model.parameters, scenario.workload.seq_len, scenario.workload.gbs)
    assert found == SHIPPED[name]
    assert scenario.name == name
    assert isinstance(scenario.space(), Space)


def test_everything_that_ships_is_listed_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scenarios.names() == tuple(sorted(SHIPPED))
    assert scenarios.path("tiny-llama-cpu") == scenarios.path("tiny-llama-cpu.yaml")
    # as the README writes it, away from the checkout
    monkeypatch.chdir(tmp_path)
    assert load_scenario("scenarios/tiny-llama-cpu.yaml").name == "tiny-llama-cpu"
    with pytest.raises(InputError, match="no scenario named 'nope'"):
        scenarios.path("nope")
    with pytest.raises(InputError, match=r"no scenario named 'tiny-lama-cpu'.*Try: tiny-llama-cpu"):
        load_scenario("tiny-lama-cpu")
    with pytest.raises(InputError, match="no such file"):
        load_scenario("folder/s.yaml")


def test_the_toy_runs_three_plans_on_two_ranks() -> None:
    scenario = load_scenario("tiny-llama-cpu")
    assert scenario.run == RunSettings(execute=True, ranks=2, plans=3, repeats=7, warmup=2)
    assert (scenario.workload.precision, scenario.workload.framework) == ("fp32", "ours")
    assert scenario.outputs == "out/tiny-llama-cpu"


def test_what_is_left_out_takes_its_default(tmp_path: Path) -> None:
    scenario = read(tmp_path, GOOD)
    assert (scenario.name, scenario.objective, scenario.top, scenario.outputs) == ("s", "step_time", 10, "out/s")
    assert scenario.workload.precision == "bf16"
    assert scenario.run == RunSettings(execute=False, ranks=2)
    assert scenario.limits == {}
    assert scenario.space() == Space()


def test_adapters_documents_and_dtypes_are_read(tmp_path: Path) -> None:
    line = next(text for text in GOOD.splitlines() if text.startswith("workload"))
    more = "precision: bf16, grad_dtype: bf16, main_dtype: remainder, lora: {rank: 4, modules: [qkv, up], base: nf4}"
    packed = "documents: {mean_tokens: 10, mean_square_tokens2: 160}"
    scenario = read(tmp_path, GOOD.replace(line, f"workload: {{seq_len: 32, gbs: 8, {more}, {packed}}}"))
    work = scenario.workload
    assert (work.kind, work.lora, work.attended_tokens) == ("lora", Lora(4, ("qkv", "up"), base="nf4"), 16.0)
    assert (work.grad_dtype, work.main_dtype) == ("bf16", "remainder")
    assert work.routing == Routing()
    capped = "routing: {skew: 1.5, capacity_factor: 1.25, pad_to_capacity: true}"
    load = read(tmp_path, GOOD.replace(line, f"workload: {{seq_len: 32, gbs: 8, {capped}}}")).workload.routing
    assert load == Routing(1.5, 1.25, True)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("precision: fp9", "it is not a known precision"),
        ("optimizer: lion", "it is not a known optimizer"),
        ("kind: rlhf", "workload.kind"),
        ("lora: {modules: [router]}", "workload.lora.modules"),
        ("kind: sft, lora: {rank: 4}", "kind sft trains every weight"),
        ("documents: {mean_tokens: 10, mean_square_tokens2: 50}", "at least the square of the mean"),
        ("routing: {skew: 0.5}", "workload.routing.skew"),
        ("routing: {pad_to_capacity: true}", "there is no capacity to pad to"),
    ],
)
def test_a_wrong_word_about_training_is_one_fault(tmp_path: Path, text: str, fault: str) -> None:
    line = next(text for text in GOOD.splitlines() if text.startswith("workload"))
    with pytest.raises(InputError, match=fault) as caught:
        read(tmp_path, GOOD.replace(line, f"workload: {{seq_len: 32, gbs: 8, {text}}}"))
    assert len(caught.value.faults) == 1


def test_ranges_in_every_form(tmp_path: Path) -> None:
    scenario = read(tmp_path, GOOD.replace("cpu-local", "dgx-h100:1") + """\
search:
  tp: [4, 1, 2, 2]
  pp: 2
  mbs: 2..4
  dp: {min: 2}
  cp: max
  zero_stage: max
  recompute: full
  schedule: [gpipe, 1f1b]
  top: 3
""")  # fmt: skip
    space = scenario.space()
    assert (space.tp, space.pp, scenario.top) == ((1, 2, 4), (2,), 3)
    assert space.mbs == (2, 4)  # divisors of gbs=8 from 2 to 4
    assert space.dp == (2, 4, 8)  # divisors of the 8 ranks from 2 on
    assert space.cp == (1, 2, 4, 8)
    assert space.zero_stage == (0, 1, 2, 3)
    assert (space.recompute, space.schedule) == (("full",), ("gpipe", "1f1b"))
    assert space.vpp == ()


def test_constraints_narrow_what_is_searched(tmp_path: Path) -> None:
    scenario = read(tmp_path, GOOD.replace("cpu-local", "dgx-h100:1") + """\
search: {pp: [1, 2, 4]}
constraints: {tp: "<4", pp: ">=2", cp: [1, 2], dp: "2..4", mbs: "!=1", recompute: none, memory_headroom: 0.1}
""")  # fmt: skip
    space = scenario.space()
    assert space.tp == (1, 2)  # tiny-llama has 8 heads, a node 8 GPUs: 1, 2, 4, 8 by default
    assert space.pp == (2, 4)
    assert space.cp == (1, 2)
    assert space.dp == (2, 4)
    assert space.mbs == (2, 4, 8)
    assert space.recompute == ("none",)
    assert scenario.limits == {"memory_headroom": 0.1}


def test_orders_of_a_scenario_are_those_of_its_framework(tmp_path: Path) -> None:
    text = "model: llama-3.2-1b\ncluster: dgx-h100:2\nworkload: {seq_len: 1024, gbs: 64, framework: megatron}\n"
    found = read(tmp_path, text + "search: {order: [any]}\n").space()
    assert found.order == ("tp-cp-dp-pp", "tp-cp-pp-dp")
    told = "search: {order: [any]}\nconstraints: {order: [tp-cp-pp-dp]}\n"
    assert read(tmp_path, text + told).space().order == ("tp-cp-pp-dp",)
    refused(tmp_path, text + "search: {order: [tp-pp]}\n", "value 'tp-pp'")


def test_a_constraint_that_leaves_nothing_is_infeasible(tmp_path: Path) -> None:
    scenario = read(tmp_path, GOOD + 'constraints: {tp: ">=16"}\n')
    with pytest.raises(InfeasibleError, match=r"No value of tp satisfies the constraint >=16.*tp in 1, 2") as error:
        scenario.space()
    assert error.value.exit_code == 3


def test_a_calibrated_cluster_may_take_the_place(tmp_path: Path) -> None:
    scenario = read(tmp_path, GOOD + "search: {dp: max}\n")
    assert scenario.space().dp == (1, 2)
    assert scenario.space(clusters.load("dgx-h100:1")).dp == (1, 2, 4, 8)
    assert replace(scenario, cluster=clusters.load("dgx-h100:1")).space().dp == (1, 2, 4, 8)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps(load_model("tiny-llama")[1]))
    (tmp_path / "mine.yaml").write_text(clusters.to_yaml(clusters.load("dgx-h100:2")))
    scenario = read(tmp_path, GOOD.replace("tiny-llama", "m/config.json").replace("cpu-local", "mine.yaml"))
    assert scenario.model.parameters == 15_798_784
    assert scenario.cluster.n_ranks == 16
    assert scenario.cluster_name == str(tmp_path / "mine.yaml")


INLINE = """\
model:
  model_type: llama
  hidden_size: 64
  intermediate_size: 128
  num_hidden_layers: 2
  num_attention_heads: 4
  vocab_size: 100
cluster:
  name: two
  pools:
  - {device: a100-sxm-80gb, gpus_per_node: 2, nodes: 1}
  fabric: {intra_node: nvlink3}
  context: 1GiB
  context_source: test
workload: {seq_len: 32, gbs: 4}
"""


def inline_names() -> str:
    node = clusters.load("dgx-a100")
    return INLINE.replace("a100-sxm-80gb", node.device.name).replace("nvlink3", node.fabric.intra.name)


def test_model_and_cluster_inline(tmp_path: Path) -> None:
    scenario = read(tmp_path, inline_names())
    assert scenario.model.n_layers == 2
    assert scenario.config["hidden_size"] == 64
    assert (scenario.cluster.n_ranks, scenario.cluster_name) == (2, "two")


def test_faults_of_inline_documents_have_lines(tmp_path: Path) -> None:
    text = inline_names().replace("hidden_size: 64", 'hidden_size: "64"').replace("nodes: 1}", "nodes: 0}")
    refused(tmp_path, text.replace("  vocab_size: 100\n", ""), "s.yaml:3: model.hidden_size: is '64'",
            "s.yaml:1: model.vocab_size: is missing", "s.yaml:10: cluster.pools[0].nodes")  # fmt: skip


def test_every_fault_comes_at_once_with_file_line_and_key(tmp_path: Path) -> None:
    error = refused(tmp_path, """\
        name: bad
        modle: x
        model: lama-3-70b
        cluster: dgx-h1000:2
        workload: {seq_len: "8192", gbs: -2, precison: bf16, framework: megatrn}
        search:
          tp: [1, "2"]
          pp: {min: 4, max: 2}
          schedule: [1f1d]
          vpp: []
          dp: {least: 2}
        constraints:
          tp: "<=x"
          mbs: 0
          memory_headroom: 1.5
        objective: fastest
        run: {execute: "yes"}
        """,
        "s.yaml:2: modle: unknown key 'modle'. Try: did you mean model",
        "s.yaml:3: model: no model named 'lama-3-70b'",
        "s.yaml:4: cluster: ",
        "s.yaml:5: workload.seq_len: value '8192'",
        "s.yaml:5: workload.gbs: value -2",
        "s.yaml:5: workload.precison: unknown key 'precison'. Try: did you mean precision?",
        "s.yaml:5: workload.framework: value 'megatrn'",
        "s.yaml:7: search.tp: value '2' (text)",
        "s.yaml:8: search.pp: range 4 to 2",
        "s.yaml:9: search.schedule: value '1f1d'",
        "s.yaml:10: search.vpp: an empty list",
        "s.yaml:11: search.dp: value {'least': 2}",
        "s.yaml:13: constraints.tp: value '<=x'",
        "s.yaml:14: constraints.mbs: value 0",
        "s.yaml:15: constraints.memory_headroom: value 1.5",
        "s.yaml:16: objective: value 'fastest'",
        "s.yaml:17: run.execute: value 'yes'",
    )  # fmt: skip
    assert error.exit_code == 2


def test_missing_keys_and_files_that_are_no_scenario(tmp_path: Path) -> None:
    refused(tmp_path, "model: gpt2\n", "key 'cluster' is missing", "key 'workload' is missing")
    refused(tmp_path, "- 1\n", "is not a mapping of keys")
    refused(tmp_path, "", "is empty")
    refused(tmp_path, "a: [1\n", "is not valid YAML")
    refused(tmp_path, GOOD + "model: gpt2\n", "key 'model' is given twice")


def test_a_sequence_longer_than_the_learned_positions(tmp_path: Path) -> None:
    text = GOOD.replace("tiny-llama", "gpt2").replace("256", "2048")
    refused(tmp_path, text, "s.yaml:3: workload.seq_len: seq_len is 2048 (gpt2 has 1024 learned positions)")
    assert read(tmp_path, text.replace("2048", "1024")).workload.seq_len == 1024


def test_a_run_needs_the_ranks_of_the_cluster(tmp_path: Path) -> None:
    refused(tmp_path, GOOD + "run: {execute: true, ranks: 4}\n", "s.yaml:4: run.ranks: 4 ranks (the cluster has 2")


def test_the_schema_for_editors_names_every_key() -> None:
    schema = json_schema()
    assert {"model", "cluster", "workload"} == set(schema["required"])
    assert set(FIELDS) < set(schema["$defs"]["SearchFile"]["properties"])
    json.dumps(schema)


KEYS = st.sampled_from((*FIELDS, "max", "seq_len", "gbs", "x"))
SCALARS = st.none() | st.booleans() | st.integers(-2, 9) | st.floats(-1, 1) | st.text("ab<=1.", max_size=4)
JUNK = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2), max_leaves=3
)
SECTIONS = st.sampled_from(
    ("model", "cluster", "workload", "search", "constraints", "objective", "run", "outputs"),
)


@settings(deadline=None, max_examples=80)
@given(st.dictionaries(SECTIONS, JUNK, min_size=1, max_size=3))
def test_nonsense_is_refused_but_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, changed: dict[str, object]
) -> None:
    folder = tmp_path_factory.mktemp("s")
    base = {"model": "tiny-llama", "cluster": "cpu-local", "workload": {"seq_len": 256, "gbs": 8}}
    (folder / "s.yaml").write_text(json.dumps({**base, **changed}))
    try:
        load_scenario(folder / "s.yaml").space()
    except (InputError, InfeasibleError) as error:
        assert str(error)
