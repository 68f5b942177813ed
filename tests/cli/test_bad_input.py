"""Every kind of bad input, through the command line: one message, what, where, why, what would work, exit code."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from planner.cli import search

SCENARIO = """\
model: llama-3-8b
cluster: dgx-h100:1
workload: {seq_len: 4096, gbs: 64}
search: {tp: [1, 2], pp: [1]}
"""
TRAINED = ("--model", "llama-3-8b", "--cluster", "dgx-h100:1", "--seq-len", "4096", "--gbs", "64")


def _scenario(folder: Path, text: str = SCENARIO, name: str = "s.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_missing_scenario_names_the_shipped_ones(call) -> None:
    found = call("search", "lama3-70b-128xh100")
    assert (
        found.code == 2 and "no scenario named 'lama3-70b-128xh100'" in found.err and "llama3-70b-128xh100" in found.err
    )


@pytest.mark.parametrize("command", ["search", "scenario"])
def test_a_missing_file(call, command: str) -> None:
    found = call(command, "nowhere/s.yaml")
    assert found.code == 2 and "nowhere/s.yaml" in found.err and len(found.err.splitlines()) == 1


def test_broken_yaml_names_its_line(call, tmp_path: Path) -> None:
    path = _scenario(tmp_path, SCENARIO + "objective: [step_time\n")
    found = call("search", path)
    assert found.code == 2 and f"{path}:" in found.err and "YAML" in found.err


@pytest.mark.parametrize(
    ("line", "where", "what"),
    [
        ("serch: {tp: [1]}", "s.yaml:5", "serch"),
        ("objective: fastest", "s.yaml:5", "objective"),
        ('run: {ranks: "8"}', "s.yaml:5", "run.ranks"),
        ("run: {ranks: -8}", "s.yaml:5", "run.ranks"),
        ("constraints: {memory_headroom: 1.5}", "s.yaml:5", "memory_headroom"),
        ("constraints: {tp: small}", "s.yaml:5", "constraints.tp"),
    ],
)
def test_each_fault_of_a_scenario_names_file_line_and_key(
    call, tmp_path: Path, line: str, where: str, what: str
) -> None:
    found = call("search", _scenario(tmp_path, SCENARIO + line + "\n"))
    assert found.code == 2 and where in found.err and what in found.err
    assert "Try: " in found.err


def test_all_faults_of_a_scenario_at_once(call, tmp_path: Path) -> None:
    text = 'model: llama-3-8x\ncluster: dgx-h999:1\nworkload: {seq_len: "4096", gbs: 0}\nfoo: 1\n'
    found = call("search", _scenario(tmp_path, text))
    assert found.code == 2 and found.err.startswith("error: 5 faults\n")
    for word in ("llama-3-8x", "dgx-h999", "'4096'", "gbs", "foo"):
        assert word in found.err


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (("--tp", "-2"), "tp=-2", "degrees-positive"),
        (("--pp", "0"), "pp=0", "degrees-positive"),
        # 2 * 1 * 3 = 6 is not the 8 ranks of one DGX
        (("--tp", "2", "--dp", "3"), "tp*cp*pp*dp = 6", "the cluster has 8 ranks"),
        # Llama-3-8B has 32 heads and 32 layers
        (("--tp", "3", "--dp", "1"), "tp=3 does not divide the attention heads", "tp in 1, 2, 4, 8, 16, 32"),
        (("--pp", "5", "--vpp", "7", "--dp", "1"), "pp*vpp = 35", "32 layers"),
        (("--pp", "2", "--stage-layers", "15,16"), "31 layers in all", "stage_layers 16,16"),
        (("--pp", "2", "--stage-layers", "15,17", "--vpp", "2"), "2 entries", "pp*vpp = 4 virtual stages"),
        (("--pp", "2", "--schedule", "zb-h1", "--framework", "megatron"), "schedule zb-h1", "framework generic"),
        (("--pp", "8", "--mbs", "8", "--schedule", "dualpipe"), "8 micro-batches", "16 or more micro-batches"),
        (("--mbs", "3"), "mbs*dp = 24 does not divide gbs=64", "mbs in 1, 2, 4, 8"),
        (("--ep", "2"), "ep=2", "no experts"),
        (("--sp", "1"), "sp=1 with tp=1", "sp=0, or tp>1"),
        (("--zero-stage", "4"), "zero_stage=4", "0 to 3"),
        (("--recompute", "some"), "recompute is 'some'", "none or selective or full"),
        (("--schedule", "1f2b"), "schedule is '1f2b'", "1f1b"),
    ],
)
def test_a_layout_that_breaks_a_rule(call, words: tuple[str, ...], what: str, fix: str) -> None:
    found = call("predict", *TRAINED, *words)
    assert (found.code, found.out) == (2, "") and what in found.err and fix in found.err


def test_a_layout_that_breaks_several_rules_says_so_once(call) -> None:
    found = call("predict", *TRAINED, "--tp", "3", "--pp", "35", "--dp", "1")
    assert found.code == 2 and "tp-heads" in found.err and "layers-stages" in found.err and "world-product" in found.err


def test_options_that_are_missing_are_named_together(call) -> None:
    found = call("predict")
    assert found.code == 2
    for option in ("--model", "--cluster", "--seq-len", "--gbs"):
        assert f"missing option {option}" in found.err


def test_model_and_cluster_faults_come_together(call) -> None:
    found = call("predict", "--model", "llama-9", "--cluster", "dgx-x", "--seq-len", "8", "--gbs", "8")
    assert found.code == 2 and "llama-9" in found.err and "dgx-x" in found.err


def test_a_broken_model_config(call, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", ')
    found = call("predict", "--model", path, *TRAINED[2:])
    assert found.code == 2 and f"{path}:1" in found.err and "JSON" in found.err
    path.write_text('{"model_type": "lama"}')
    found = call("predict", "--model", path, *TRAINED[2:])
    assert found.code == 2 and "lama" in found.err and "llama" in found.err


@pytest.mark.parametrize("command", ["simulate", "run"])
def test_a_plan_that_is_none(call, tmp_path: Path, command: str) -> None:
    path = tmp_path / "plan.json"
    assert call(command, path).code == 2
    path.write_text('{"schema": 1, "kind": "training", "bogus": 1}')
    found = call(command, path)
    assert found.code == 2 and "bogus" in found.err and "workload" in found.err


def test_a_search_range_that_is_none(call) -> None:
    found = call("search", *TRAINED, "--tp", "1..x", "--pp", "two", "--schedule", "1f2b")
    assert found.code == 2 and "--tp" in found.err and "--pp" in found.err


def test_nothing_legal_is_exit_3_with_the_binding_constraint(call) -> None:
    # 64 sequences over 8 ranks, 7 to a micro-batch: legal words, no such layout
    found = call("search", *TRAINED, "--mbs", "7")
    assert found.code == 3 and "Binding constraint" in found.err and "Nearest that fits" in found.err


def test_too_large_a_model_is_exit_3_with_the_nearest(call) -> None:
    found = call("search", "--model", "llama-3-70b", "--cluster", "dgx-h100:1", "--seq-len", "8192", "--gbs", "8")
    assert found.code == 3 and "memory" in found.err and "misses by least" in found.err and found.out == ""


def test_rows_that_are_not_there(call) -> None:
    found = call("search", *TRAINED, "--tp", "2", "--pp", "1", "--top", "2", "--save", "7")
    assert found.code == 2 and "no row 7" in found.err


def test_rows_beyond_the_table_are_refused_before_the_search(call, monkeypatch) -> None:
    monkeypatch.setattr(search, "find", lambda problem: pytest.fail("it was searched"))
    found = call("search", *TRAINED, "--save", "99")
    assert found.code == 2 and "no row 99" in found.err and "1 to 10" in found.err


def test_a_layout_out_of_memory_is_priced_with_a_warning_and_exit_3(call) -> None:
    # 70e9 parameters take 16 bytes each and more: 1.1 TB on one device of 80 GiB
    trained = ("--model", "llama-3-70b", *TRAINED[2:])
    found = call("predict", *trained)
    assert found.code == 3 and found.err.startswith("warning: out of memory: stage 0 needs ")
    assert "of 80.0 GiB" in found.err and len(found.err.splitlines()) == 1 and "step time" in found.out
    found = call("predict", *trained, "--json")
    assert found.code == 3 and json.loads(found.out)["step"]["verdict"] == "out of memory"
    assert found.err.startswith("warning: out of memory")


def test_a_plan_is_no_measurement_and_the_reverse(call, tmp_path: Path) -> None:
    call("search", *TRAINED, "--tp", "2", "--pp", "1", "--top", "1", "--out", "o")
    plan, measured = tmp_path / "o" / "plan-1.json", tmp_path / "measured.json"
    measured.write_text('{"schema": 1, "plan_hash": "0", "plan_name": "p", "step_s": [0.1]}')
    found = call("compare", plan, plan)
    assert found.code == 2 and "this is a plan, not a measurement" in found.err and len(found.err.splitlines()) == 1
    found = call("compare", measured, measured)
    assert found.code == 2 and "this is a measurement, not a plan" in found.err and len(found.err.splitlines()) == 1


def test_a_cluster_file_takes_no_node_count(call, tmp_path: Path) -> None:
    path = _scenario(tmp_path, "name: c\n", "c.yaml")
    found = call("predict", *TRAINED[:2], "--cluster", f"{path}:2", *TRAINED[4:])
    assert found.code == 2 and "node count after a file" in found.err and f"--cluster {path}" in found.err


def test_a_mistyped_framework_names_the_one_that_is_meant(call) -> None:
    found = call("predict", *TRAINED, "--framework", "megatrn")
    assert found.code == 2 and "unknown framework 'megatrn'. Try: megatron" in found.err and "generic" not in found.err


def test_faults_of_a_scenario_come_in_the_order_of_its_lines(call, tmp_path: Path) -> None:
    text = "foo: 1\nworkload: {seq_len: 8, gbs: 0}\nsearch: {c: [1]}\ncluster: dgx-h999:1\nmodel: llama-3-8x\n"
    found = call("search", _scenario(tmp_path, text))
    lines = [int(line.split("s.yaml:")[1].split(":")[0]) for line in found.err.splitlines()[1:]]
    assert lines == [1, 2, 3, 4, 5]
    assert "did you mean cp?" in found.err


def test_plan_and_degrees_exclude_each_other(call, tmp_path: Path) -> None:
    found = call("predict", "--plan", tmp_path / "plan.json", "--tp", "2", "--gbs", "8")
    assert found.code == 2 and "--tp together with --plan" in found.err and "--gbs together with --plan" in found.err


def test_validate_needs_a_table(call, tmp_path: Path) -> None:
    assert call("validate", tmp_path / "none.csv").code == 2
    path = tmp_path / "t.csv"
    path.write_text("id,group\n1,g\n")
    assert call("validate", path).code == 2
    assert call("validate", path, "--tighten").code == 2


def test_validate_without_a_single_prediction_fails(call, tmp_path: Path) -> None:
    facts = Path(__file__).parents[1] / "validation" / "published.csv"
    header, first = facts.read_text().splitlines()[:2]
    path = tmp_path / "t.csv"
    path.write_text(header + "\n")
    found = call("validate", path)
    assert found.code == 1 and f"no row was predicted, of 0 in {path}" in found.err
    row = dict(zip(header.split(","), next(csv.reader([first])), strict=True)) | {"gpu": "no such GPU"}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, header.split(","))
        writer.writeheader()
        writer.writerow(row)
    found = call("validate", path, "--json")
    assert found.code == 1 and json.loads(found.out)["predicted"] == 0 and "no row was predicted, of 1" in found.err


def test_a_folder_that_cannot_be_written_to(call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    found = call("search", *TRAINED, "--tp", "2", "--pp", "1", "--out", tmp_path / "file" / "sub")
    assert found.code == 1 and "cannot be written" in found.err
