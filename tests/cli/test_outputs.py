"""What the commands print and write when all is well."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from planner.plan_io import load_plan

TRAINED = ("--model", "llama-3-8b", "--cluster", "dgx-h100:1", "--seq-len", "4096", "--gbs", "64")
NARROW = (*TRAINED, "--tp", "1,2", "--pp", "1..2", "--zero-stage", "0,1", "--mbs", "1", "--top", "3")
TINY = """\
model:
  {model_type: llama, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4,
   num_key_value_heads: 4, vocab_size: 256, rms_norm_eps: 1.0e-5, max_position_embeddings: 64,
   tie_word_embeddings: false}
cluster: cpu-local
workload: {seq_len: 32, gbs: 4, precision: fp32, optimizer: adamw, framework: ours}
search: {mbs: [1], recompute: [none], top: 3}
run: {execute: true, plans: 2, repeats: 2, warmup: 1}
"""


def test_search_json_has_the_documented_keys_best_first(call) -> None:
    found = call("search", *NARROW, "--json")
    content = json.loads(found.out)
    assert found.code == 0 and content["schema"] == 1
    assert {"considered", "dropped", "priced", "simulated", "wall_s", "plans"} <= set(content)
    plans = content["plans"]
    assert len(plans) == 3 and [p["rank"] for p in plans] == [1, 2, 3]
    assert [p["step_s"] for p in plans] == sorted(p["step_s"] for p in plans)
    assert content["considered"] == content["priced"] + sum(content["dropped"].values())
    for plan in plans:
        assert plan["tp"] * plan["cp"] * plan["pp"] * plan["dp"] == 8
        assert plan["step_low_s"] < plan["step_s"] < plan["step_high_s"]
        # tokens of a step over its time and the 8 GPUs
        assert plan["tokens_per_s_per_gpu"] == pytest.approx(64 * 4096 / plan["step_s"] / 8)
    assert "search the layouts" in found.err


def test_search_says_what_was_asked_dropped_and_found(call) -> None:
    found = call("search", *NARROW)
    assert found.code == 0
    asked = ("llama-3-8b: 8,030,261,248 parameters, 32 layers", "8 x h100", "seq_len 4096, gbs 64, bf16")
    for words in (*asked, "considered", "dropped by", "step ms", "tok/s/GPU", "peak GiB", "$/1M tok"):
        assert words in found.out


def test_a_precision_adapters_and_an_optimizer_are_taken_and_echoed(call, tmp_path: Path) -> None:
    found = call("predict", *TRAINED, "--tp", 8, "--precision", "fp8-delayed", "--lora", "rank=8", "--out", "p.json")
    assert found.code == 0
    assert "fp8-delayed, adamw, lora, rank 8 on qkv o" in found.out
    assert load_plan(tmp_path / "p.json").workload.lora.rank == 8
    full = json.loads(call("predict", *TRAINED, "--tp", 8, "--precision", "fp8-delayed", "--json").out)
    bf16 = json.loads(call("predict", *TRAINED, "--tp", 8, "--json").out)
    assert full["step"]["step_s"]["mid"] < bf16["step"]["step_s"]["mid"]
    assert any("Transformer Engine" in note for note in full["step"]["notes"])


def test_a_precision_that_the_device_lacks_names_the_nearest(call) -> None:
    found = call("predict", *TRAINED, "--tp", 8, "--precision", "nvfp4")
    assert found.code == 2
    assert "needs nvfp4" in found.err and "Try: precision fp8-block" in found.err
    assert call("search", *NARROW, "--precision", "mxfp8").code == 2
    found = call("predict", *TRAINED, "--precision", "fp9", "--optimizer", "lion")
    assert found.code == 2 and "unknown precision 'fp9'" in found.err and "unknown optimizer 'lion'" in found.err


def test_search_writes_plans_of_chosen_rows_and_the_table(call, tmp_path: Path) -> None:
    found = call("search", *NARROW, "--save", "2", "--out", "there", "--json")
    assert sorted(p.name for p in (tmp_path / "there").iterdir()) == ["layouts.csv", "plan-2.json"]
    second = json.loads(found.out)["plans"][1]
    plan = load_plan(tmp_path / "there" / "plan-2.json")
    assert (plan.layout.tp, plan.layout.pp, plan.predicted.step_s) == (second["tp"], second["pp"], second["step_s"])
    rows = list(csv.DictReader((tmp_path / "there" / "layouts.csv").read_text().splitlines()))
    assert [float(r["step_s"]) for r in rows] == [p["step_s"] for p in json.loads(found.out)["plans"]]


def test_the_same_question_has_the_same_answer(call) -> None:
    first, second = (json.loads(call("search", *NARROW, "--json").out) for _ in range(2))
    first.pop("wall_s"), second.pop("wall_s")
    assert first == second


def test_options_override_a_scenario(call, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("model: llama-3-8b\ncluster: dgx-h100:1\nworkload: {seq_len: 4096, gbs: 64}\nsearch: {mbs: [1]}\n")
    plans = json.loads(call("search", path, "--gbs", "32", "--tp", "4", "--pp", "1", "--top", "1", "--json").out)[
        "plans"
    ]
    # 32 sequences over dp=2 ranks, one at a time
    assert [(p["tp"], p["dp"], p["mbs"], p["microbatches"]) for p in plans] == [(4, 2, 1, 16)]


def test_predict_agrees_with_the_search_and_its_plan_predicts_the_same(call, tmp_path: Path) -> None:
    best = json.loads(call("search", *NARROW, "--save", "1", "--out", "o", "--json").out)["plans"][0]
    degrees = [word for name in ("tp", "sp", "pp", "dp", "mbs") for word in (f"--{name}", best[name])]
    named = ["--zero-stage", best["zero_stage"], "--recompute", best["recompute"], "--schedule", best["schedule"]]
    asked = json.loads(call("predict", *TRAINED, *degrees, *named, "--vpp", best["vpp"], "--json").out)
    planned = json.loads(call("predict", "--plan", "o/plan-1.json", "--json").out)
    assert (
        asked["step"]["step_s"]["mid"] == planned["step"]["step_s"]["mid"] == pytest.approx(best["step_s"], rel=1e-12)
    )


def test_predict_prints_phases_memory_and_the_chain(call) -> None:
    found = call("predict", *TRAINED, "--tp", "2", "--zero-stage", "1", "--explain", "--out", "p.json")
    assert found.code == 0 and "plan written to p.json" in found.err
    for words in ("step time", "interval", "forward", "optimizer", "peak memory by stage", "where every millisecond"):
        assert words in found.out


def test_simulate_writes_a_trace_that_reads_as_one(call, tmp_path: Path) -> None:
    call("search", *NARROW, "--pp", "2", "--save", "1", "--out", "o")
    found = call("simulate", "o/plan-1.json", "--straggler", "1=1.5", "--out", "t.json", "--json")
    content = json.loads(found.out)
    assert found.code == 0 and content["simulated"]["step_s"] > content["predicted"]["step_s"]["mid"]
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    ends = [event["ts"] + event["dur"] for event in events if event["ph"] == "X"]
    assert max(ends) / 1e6 == pytest.approx(content["simulated"]["step_s"], rel=1e-6)


@pytest.mark.parametrize("word", ["1", "x=2", "1=fast"])
def test_a_straggler_that_is_none(call, word: str) -> None:
    call("search", *NARROW, "--save", "1", "--out", "o")
    assert call("simulate", "o/plan-1.json", "--straggler", word).code == 2


def test_scenario_without_a_run_reports(call, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "model: llama-3-8b\ncluster: dgx-h100:1\nworkload: {seq_len: 4096, gbs: 64}\nsearch: {tp: [2], top: 2}\n"
    )
    found = call("scenario", path, "--out", "o", "--json")
    content = json.loads(found.out)
    assert found.code == 0 and content["comparisons"] == [] and len(content["plans"]) == 2
    assert content["files"][-2:] == ["o/report.html", "o/trace.json"]
    page = (tmp_path / "o" / "report.html").read_text()
    assert "llama-3-8b" in page and "<script src" not in page and "http://" not in page


def test_report_of_plans(call, tmp_path: Path) -> None:
    call("search", *NARROW, "--out", "o")
    found = call("report", "o", "--out", "r")
    assert found.code == 0 and "3 plans, 0 of them measured" in found.out
    assert (tmp_path / "r" / "report.html").is_file() and (tmp_path / "r" / "trace.json").is_file()
    assert call("report", tmp_path / "r").code == 2  # a folder without plans


def test_validate_scores_a_table(call, tmp_path: Path) -> None:
    facts = Path(__file__).parents[1] / "validation" / "published.csv"
    lines = facts.read_text().splitlines()
    chosen = [lines[0], *(line for line in lines if line.startswith(("SC21-001,", "SC21-002,")))]
    (tmp_path / "t.csv").write_text("\n".join(chosen) + "\n")
    found = call("validate", "t.csv", "--json", "--out", "p.csv")
    content = json.loads(found.out)
    assert found.code == 0 and (content["schema"], content["rows"], content["predicted"]) == (1, 2, 2)
    assert content["groups"][0]["group"] == "megatron_a100_sc21" and content["groups"][0]["n"] == 2
    assert len(list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))) == 2
    assert "step_time" in call("validate", "--data", "t.csv").out


def test_validate_writes_a_page_that_names_its_command_and_no_machine(call, tmp_path: Path) -> None:
    facts = Path(__file__).parents[1] / "validation" / "published.csv"
    lines = facts.read_text().splitlines()
    table = tmp_path / "t.csv"
    table.write_text("\n".join([lines[0], *(line for line in lines if line.startswith(("SC21-001,", "KOR-001,")))]))
    page = tmp_path / "docs" / "page.md"
    found = call("validate", table, "--group", "korthikanti_a100", "--markdown", page)
    text = page.read_text()
    command = "`python -m planner validate t.csv --group korthikanti_a100 --markdown docs/page.md`"
    assert found.code == 0 and command in text and str(tmp_path) not in text
    assert "| korthikanti_a100 | A | step_time | 1 |" in text and "megatron_a100_sc21" not in text


def test_fit_prints_the_host_constants_of_each_preset(call, tmp_path: Path) -> None:
    facts = Path(__file__).parents[1] / "validation" / "published.csv"
    lines = facts.read_text().splitlines()
    chosen = [lines[0], *(line for line in lines if line.startswith(("SC21-001,", "SC21-002,", "KOR-001,")))]
    (tmp_path / "training_measurements.csv").write_text("\n".join(chosen) + "\n")
    content = json.loads(call("fit", "--data", tmp_path, "--json").out)
    assert [found["preset"] for found in content["presets"]] == ["megatron-2021", "megatron-2022"]
    for found, rows in zip(content["presets"], (2, 1), strict=True):
        assert found["rows"] == rows and found["residual"] >= 0
        assert set(found["constants"]) == {"kernel_s", "microbatch_s", "step_s"}
        assert all(found["after_pct"][g] <= found["before_pct"][g] + 1e-9 for g in found["before_pct"])
    table = call("fit", "--data", tmp_path, "--preset", "megatron-2022").out
    assert "megatron-2022" in table and "korthikanti_a100" in table and "megatron-2021" not in table
    (tmp_path / "none.csv").write_text(lines[0] + "\n")
    assert call("fit", "--data", tmp_path / "none.csv").code == 2


def test_list_json(call) -> None:
    content = json.loads(call("list", "--json").out)
    kinds = {"models", "devices", "clusters", "schedules", "frameworks", "switches", "precisions", "optimizers"}
    assert set(content) == {"schema", "scenarios", "rules", "objectives", "names"} | kinds
    assert {"1f1b", "gpipe", "interleaved-1f1b"} <= {row["name"] for row in content["schedules"]}
    assert {"tiny-llama-cpu", "llama3-70b-128xh100"} <= {row["name"] for row in content["scenarios"]}
    a100 = next(row for row in content["devices"] if row["name"] == "a100-sxm-80gb")
    assert a100["peak_flops"]["bf16"] == 312e12  # A100 datasheet, dense


@pytest.mark.slow
def test_the_whole_loop_on_this_machine(call, tmp_path: Path) -> None:
    """Search, run two plans through torchrun, compare, report; then compare and report again from the files."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    found = call("scenario", "tiny.yaml", "--no-calibrate", "--out", "o", "--json")
    assert found.code == 0, found.err
    content = json.loads(found.out)
    assert len(content["comparisons"]) == 2
    for row in content["comparisons"]:
        error = 100 * (row["predicted_s"] - row["measured_s"]) / row["measured_s"]
        assert row["error_pct"] == pytest.approx(error)
    folder = next((tmp_path / "o" / "runs").iterdir())
    again = call("compare", folder / "plan.json", folder / "measured.json", "--json")
    kept = next(c for c in content["comparisons"] if c["plan"] == load_plan(folder / "plan.json").name)
    assert json.loads(again.out)["comparison"]["error_pct"] == pytest.approx(kept["error_pct"])
    assert "2 of them measured" in call("report", "o/runs", "--out", "r").out
    trace = json.loads((tmp_path / "o" / "trace.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in trace if event["name"] == "process_name"}
    assert any(n.startswith("predicted") for n in names) and any(n.startswith("measured") for n in names)
    other = next(p for p in (tmp_path / "o" / "runs").iterdir() if p != folder)
    mixed = call("compare", other / "plan.json", folder / "measured.json")
    assert mixed.code == 2 and "plan_hash" in mixed.err


SHALLOW = ("--model", "llama-3-8b", "--cluster", "dgx-h100:1", "--seq-len", "2048", "--gbs", "32", "--pp", "4")


@pytest.mark.parametrize(
    ("words", "label"),
    [
        (("--schedule", "zb-h1"), "pp4 dp2 mbs1 zb-h1"),
        (("--schedule", "zb-v"), "pp4 vpp2 dp2 mbs1 zb-v"),
        (("--schedule", "dualpipe"), "pp4 dp2 mbs1 dualpipe"),
        (("--schedule", "dualpipe-v", "--stage-layers", "0,5x6,2,0"), "dualpipe-v layers 0,5x6,2,0"),
        (("--stage-layers", "first=7,last=5"), "1f1b layers 7,2x10,5"),
    ],
)
def test_predict_simulate_and_plan_agree_on_every_schedule(call, words: tuple[str, ...], label: str) -> None:
    """One layout through predict, its plan, predict of the plan and the event engine: the same step."""
    first = call("predict", *SHALLOW, *words, "--recompute", "full", "--out", "plan.json", "--json")
    assert first.code in (0, 3), first.err
    step_s = json.loads(first.out)["step"]["step_s"]["mid"]
    plan = load_plan("plan.json")
    assert plan.predicted.step_s == step_s
    text = call("predict", "--plan", "plan.json").out
    assert label.replace("mbs1", "mbs1 full") in text
    played = json.loads(call("simulate", "plan.json", "--out", "trace.json", "--json").out)
    assert played["predicted"]["step_s"]["mid"] == pytest.approx(step_s, rel=1e-12)
    assert played["simulated"]["step_s"] == pytest.approx(step_s, rel=1e-9)
    trace = json.loads(Path("trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {e["pid"] for e in trace if e.get("ph") == "X"} == {0, 1, 2, 3}


def test_a_plan_keeps_the_layers_that_its_stages_state(call) -> None:
    """Stages edited by hand are priced as they stand."""
    call("predict", *SHALLOW, "--recompute", "full", "--out", "plan.json")
    content = json.loads(Path("plan.json").read_text(encoding="utf-8"))
    cuts = [0, 14, 22, 28, 32]
    for stage, begin, end in zip(content["stages"], cuts[:-1], cuts[1:], strict=True):
        stage["layers"] = list(range(begin, end))
    Path("plan.json").write_text(json.dumps(content), encoding="utf-8")
    text = call("predict", "--plan", "plan.json").out
    assert "layers 14,8,6,4" in text and "layers of the virtual stages: 14,8,6,4" in text


def test_deepseek_v3_runs_at_pp_16_and_llama_405b_at_any_pp(call) -> None:
    large = ("--seq-len", "4096", "--gbs", "8192", "--zero-stage", "1", "--recompute", "full")
    model = ("--model", "deepseek-v3", "--cluster", "dgx-h100:256", "--pp", "16", "--ep", "64")
    text = call("predict", *model, *large).out
    assert "layers of the virtual stages: 3,14x4,2" in text
    for pp in (3, 5, 12):
        model = ("--model", "llama-3.1-405b", "--cluster", f"dgx-h100:{pp * 4}", "--tp", "8", "--sp", "1", "--pp", pp)
        done = call("predict", *model, *large)
        assert done.code in (0, 3) and "step time" in done.out


def test_list_schedules_says_who_runs_them(call) -> None:
    found = json.loads(call("list", "schedules", "--json").out)["schedules"]
    by_name = {row["name"]: row for row in found}
    assert by_name["dualpipe"]["frameworks"] == ["generic"] and by_name["dualpipe"]["directions"] == 2
    assert by_name["zb-v"]["vpp"] == 2 and by_name["zb-v"]["torch_class"] == "ScheduleZBVZeroBubble"
    assert "megatron" in by_name["1f1b"]["frameworks"] and "megatron" not in by_name["zb-h1"]["frameworks"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("stages", 0, "recompute"), "full"),
        (("actions", 0), "sorted"),
    ],
    ids=("recompute", "actions"),
)
@pytest.mark.parametrize("command", ["predict", "simulate"])
def test_what_a_plan_says_beyond_its_layout_is_not_priced_in_silence(call, path, value, command: str) -> None:
    words = ["--model", "llama-3-8b", "--cluster", "dgx-h100:1", "--seq-len", "4096", "--gbs", "32"]
    call("predict", *words, "--tp", "2", "--pp", "2", "--zero-stage", "1", "--out", "p.json")
    content = json.loads(Path("p.json").read_text())
    where = content
    for key in path[:-1]:
        where = where[key]
    if value == "sorted":
        value = sorted(where[path[-1]], key=lambda action: "F" not in action)  # all forwards, then all backwards
    where[path[-1]] = value
    Path("p.json").write_text(json.dumps(content))
    args = ["--plan", "p.json"] if command == "predict" else ["p.json"]
    found = call(command, *args)
    assert found.code == 2
    assert str(path[0]) in found.err
    assert "a prediction prices the layout" in found.err
