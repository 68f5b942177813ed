"""``sweep``: scenarios, sizes, models and clusters through the command line; resumed, infeasible, refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

SMALL = """\
model: tiny-llama
cluster: {cluster}
workload: {{seq_len: 256, gbs: {gbs}, precision: {precision}}}
search: {{mbs: [1], zero_stage: [0], top: 1}}
{more}
"""


def scenario(folder: Path, name: str, cluster: str = "dgx-h100:1", gbs: int = 64, more: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    precision = "fp32" if cluster.startswith("cpu") else "bf16"
    path.write_text(SMALL.format(cluster=cluster, gbs=gbs, precision=precision, more=more))
    return path


def swept(call: Any, *words: object) -> tuple[dict[str, Any], Any]:
    found = call("sweep", *map(str, words), "--workers", "1", "--json")
    return json.loads(found.out), found


def test_a_folder_of_scenarios_is_searched_kept_and_resumed(call: Any, tmp_path: Path) -> None:
    scenario(tmp_path / "in", "one")
    scenario(tmp_path / "in", "two", gbs=128)
    first, found = swept(call, tmp_path / "in", "--out", tmp_path / "out")
    assert found.code == 0 and [row["status"] for row in first["cases"]] == ["done", "done"]
    assert [row["gbs"] for row in first["cases"]] == [64, 128]
    assert len(list((tmp_path / "out" / "cases").iterdir())) == 2
    again, found = swept(call, tmp_path / "in", "--out", tmp_path / "out")
    assert again == first and "2 of 2 are there already" in found.err
    scenario(tmp_path / "in", "two", gbs=192)  # another question: searched, and the other one kept
    third, found = swept(call, tmp_path / "in", "--out", tmp_path / "out")
    assert "1 of 2 are there already" in found.err and third["cases"][1]["gbs"] == 192
    with (tmp_path / "out" / "sweep.csv").open() as stream:
        table = list(csv.DictReader(stream))
    assert [float(row["step_s"]) for row in table] == [row["step_s"] for row in third["cases"]]


def test_sizes_draw_a_curve_and_the_batch_stays_or_grows(call: Any, tmp_path: Path) -> None:
    path = scenario(tmp_path, "one")
    strong, _ = swept(call, path, "--gpus", "8..32", "--out", tmp_path / "out")
    assert [(row["gpus"], row["gbs"]) for row in strong["cases"]] == [(8, 64), (16, 64), (32, 64)]
    assert strong["cases"][0]["efficiency"] == 1.0 and strong["policy"].startswith("strong scaling")
    weak, _ = swept(call, path, "--gpus", "8,24", "--gbs-per-gpu", "4", "--out", tmp_path / "out")
    assert [(row["gpus"], row["gbs"]) for row in weak["cases"]] == [(8, 32), (24, 96)]
    shown = call("sweep", str(path), "--gpus", "8..32", "--out", str(tmp_path / "out"), "--workers", "1")
    assert "scaling of tiny-llama on dgx-h100" in shown.out and "tokens/s   GPUs; * best layout" in shown.out


def test_a_size_is_searched_as_its_preset(call: Any, tmp_path: Path) -> None:
    path = scenario(tmp_path, "one")
    found, _ = swept(call, path, "--gpus", "16", "--out", tmp_path / "out")
    alone = call("search", str(path), "--cluster", "dgx-h100:2", "--contended", "0", "--json")
    assert found["cases"][0]["best"] == json.loads(alone.out)["plans"][0]


def test_models_and_clusters_stand_side_by_side(call: Any, tmp_path: Path) -> None:
    path = scenario(tmp_path, "one")
    words = ("--models", "tiny-llama,gpt2", "--clusters", "dgx-h100,dgx-a100:2", "--out", tmp_path / "out")
    found, _ = swept(call, path, *words)
    assert [(row["model"], row["cluster"], row["gpus"]) for row in found["cases"]] == [
        ("tiny-llama", "dgx-h100", 8), ("tiny-llama", "dgx-a100", 16),
        ("gpt2", "dgx-h100", 8), ("gpt2", "dgx-a100", 16),
    ]  # fmt: skip
    shown = call("sweep", str(path), *map(str, words), "--workers", "1")
    assert "most tokens a second: " in shown.out and "fewest dollars a token: " in shown.out


def test_what_does_not_fit_is_a_row_that_says_why(call: Any, tmp_path: Path) -> None:
    scenario(tmp_path / "in", "good")
    scenario(tmp_path / "in", "none", more="constraints: {tp: '>=3', pp: 1, memory_headroom: 0.999}")
    scenario(tmp_path / "in", "empty", more="constraints: {zero_stage: [3]}")
    found, done = swept(call, tmp_path / "in", "--out", tmp_path / "out")
    assert done.code == 0
    by_name = {Path(row["scenario"]).stem: row for row in found["cases"]}
    assert {name: row["status"] for name, row in by_name.items()} == {
        "good": "done", "none": "infeasible", "empty": "infeasible",
    }  # fmt: skip
    assert "zero_stage" in by_name["empty"]["why"] and by_name["none"]["why"] and by_name["none"]["layout"] is None
    (tmp_path / "in" / "good.yaml").unlink()
    assert swept(call, tmp_path / "in", "--out", tmp_path / "out")[1].code == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "12"), "a node has 8"),
        (("--gpus", "8..4"), "an empty or endless range"),
        (("--gpus", "8", "--gbs-per-gpu", "0"), "no number of sequences a GPU"),
        (("--gpus", "8", "--gbs-per-gpu", "1/3"), "a multiple of 3 GPUs"),
        (("--models", "tiny-llama,gtp2"), "gpt2"),
        (("--clusters", "dgx-h101"), "dgx-h100"),
        (("--engine", "spark"), "unknown engine 'spark'"),
        (("--models", ","), "names nothing"),
    ],
)
def test_bad_options_are_one_message(call: Any, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    found = call("sweep", str(scenario(tmp_path, "one")), *words, "--out", str(tmp_path / "out"))
    assert found.code == 2 and said in found.err and not (tmp_path / "out").exists()


def test_every_fault_of_every_file_is_said_before_anything_runs(call: Any, tmp_path: Path) -> None:
    scenario(tmp_path / "in", "a", gbs=0)
    scenario(tmp_path / "in", "b", cluster="dgx-h101")
    found = call("sweep", str(tmp_path / "in"), "--out", str(tmp_path / "out"))
    assert found.code == 2 and "a.yaml" in found.err and "b.yaml" in found.err
    (tmp_path / "none").mkdir()
    assert call("sweep", str(tmp_path / "none")).code == 2


def test_search_takes_the_same_options(call: Any, tmp_path: Path) -> None:
    path = scenario(tmp_path, "one", more="constraints: {tp: '<=8'}")
    words = ("--gpus", "8,16", "--zero-stage", "0,1", "--workers", "1", "--json")
    swept_ = call("search", str(path), *words)
    plain = call("search", str(path), "--zero-stage", "0,1", "--contended", "0", "--json")
    cases = json.loads(swept_.out)["cases"]
    assert swept_.code == 0 and [row["gpus"] for row in cases] == [8, 16]
    assert cases[0]["best"] == json.loads(plain.out)["plans"][0]
    assert not (tmp_path / "out").exists()  # nothing is kept unless --out says where


def test_search_compares_what_options_describe(call: Any, tmp_path: Path) -> None:
    words = ("--models", "tiny-llama,gpt2", "--clusters", "dgx-h100:1,dgx-a100", "--seq-len", "256", "--gbs", "64")
    found = call("search", *words, "--mbs", "1", "--workers", "1", "--out", str(tmp_path / "out"), "--json")
    cases = json.loads(found.out)["cases"]
    assert [(row["model"], row["cluster"], row["gpus"]) for row in cases] == [
        ("tiny-llama", "dgx-h100", 8), ("tiny-llama", "dgx-a100", 8), ("gpt2", "dgx-h100", 8), ("gpt2", "dgx-a100", 8),
    ]  # fmt: skip
    assert len(list((tmp_path / "out" / "cases").iterdir())) == 4
    nothing = call("search", *words, "--mbs", "1", "--workers", "1", "--tp", "64", "--out", str(tmp_path / "out"))
    assert nothing.code == 3 and "infeasible" in nothing.out


def test_a_sweep_keeps_conditions_and_objectives_of_its_search(call: Any, tmp_path: Path) -> None:
    path = scenario(tmp_path, "one")
    words = ("--where", "tp >= 2", "--pareto", "step_time,peak_memory")
    found = call("search", str(path), "--gpus", "8,16", *words, "--workers", "1", "--json")
    alone = call("search", str(path), *words, "--contended", "0", "--json")
    assert found.code == 0, found.err
    assert json.loads(found.out)["cases"][0]["best"] == json.loads(alone.out)["plans"][0]
    assert json.loads(found.out)["cases"][1]["best"]["tp"] >= 2


@pytest.mark.parametrize("words", [("--why", "tp=8"), ("--deadline", "30d"), ("--save", "1"), ("--place", "1")])
def test_what_one_answer_is_asked_is_not_asked_of_many(call: Any, tmp_path: Path, words: tuple[str, ...]) -> None:
    found = call("search", str(scenario(tmp_path, "one")), "--gpus", "8,16", *words)
    assert found.code == 2 and f"a sweep has no {words[0]}" in found.err
