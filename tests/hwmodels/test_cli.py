"""``python -m hwmodels``: exit codes, messages, what goes where, and what a bad file is answered."""

from __future__ import annotations

import csv
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hwmodels import catalog
from hwmodels.cli import validate as command
from hwmodels.cli.app import main
from hwmodels.kernels import gemm_seconds
from tests.conftest import ROOT

GEMM_HEAD = "gpu,dtype,m,n,k,time_us,tflops,notes,source\n"
GEMM_ROW = "a100_sxm,bfloat16,4096,4096,4096,600,,,a/sglang/b\n"


@dataclass(frozen=True)
class Done:
    """What a command said."""

    code: int
    out: str
    err: str


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Done]:
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Done:
        code = main([str(word) for word in words])
        seen = capsys.readouterr()
        return Done(code, seen.out, seen.err)

    return run


def gemm_file(path: Path, body: str = GEMM_ROW) -> Path:
    path.write_text(GEMM_HEAD + body, encoding="utf-8")
    return path


# --- the program


def test_help_names_the_commands_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom hwmodels.cli.app import main\nmain(['--help'])\n"
        "print([m for m in ('numpy', 'scipy', 'pandas', 'matplotlib', 'networkx', 'yaml') if m in sys.modules],"
        " file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stderr.strip() == "[]"
    for name in ("fit", "validate", "check", "show"):
        assert f"  {name}  " in done.stdout


def test_help_starts_in_half_a_second() -> None:
    """Of processor time, so that a busy machine does not count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(3):
        subprocess.run([sys.executable, "-m", "hwmodels", "--help"], capture_output=True, cwd=ROOT, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3 * 0.5


@pytest.mark.parametrize("name", ["fit", "validate", "check", "show"])
def test_help_of_each_command(call: Callable[..., Done], name: str) -> None:
    done = call(name, "--help")
    assert done.code == 0 and "--json" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["validat"], "validate"),
        (["validate", "--jsn"], "--json"),
        ([], "no command given"),
        (["show"], "Try"),
    ],
)
def test_mistyped_commands_get_a_hint(call: Callable[..., Done], words: list[str], said: str) -> None:
    done = call(*words)
    assert done.code == 2 and done.err.startswith("error: ") and said in done.err
    assert "Traceback" not in done.err


# --- validate


def test_validate_by_hand(call: Callable[..., Done], tmp_path: Path) -> None:
    # A file whose times are the law's own, one 10% slower and one 10% faster than it: errors -9.09%, +11.1%. The three
    # rows are equal in all inputs: their floor is that of times 1, 1.1, 0.9, with 1/t = 1, 0.90909, 1.11111:
    # c = 3.0202 / 3.06101 = 0.98667; residuals 1.33%, 10.30%, 9.63%, their median 9.63%.
    device = catalog.device("a100-sxm-80gb")
    law = float(gemm_seconds(device, 4096, 4096, 4096, impl="sglang").mid) * 1e6
    body = "".join(f"a100_sxm,bfloat16,4096,4096,4096,{law * f!r},,,a/sglang/b\n" for f in (1.0, 1.1, 0.9))
    path = gemm_file(tmp_path / "g.csv", body + "abacus,bfloat16,1,1,1,1,,,s\n")
    done = call("validate", path, "--json")
    assert done.code == 0
    result = json.loads(done.out)
    assert (result["schema"], result["rows"], result["predicted"]) == (1, 4, 3)
    assert result["skipped"] == [{"id": "g.csv:5", "reason": "device not in the catalog"}]
    (group,) = result["groups"]
    assert "a100-sxm-80gb bf16 sglang" in group["group"] and group["metric"] == "kernel_time"
    assert group["max_abs_pct"] == pytest.approx(11.11) and group["median_abs_pct"] == pytest.approx(9.09)
    assert group["bias_pct"] == pytest.approx((0 - 9.0909 + 11.1111) / 3, abs=0.01)
    assert group["twins"] == 3 and group["floor_median_pct"] == pytest.approx(9.63, abs=0.01)
    assert any(target["target"] == "speed" for target in result["targets"])
    done = call("validate", path)
    assert done.code == 0 and "3 of 4 rows predicted" in done.out and "skipped 1: device not in the catalog" in done.out
    assert "\x1b[" not in done.out and "predict the rows" in done.err


def test_files_of_validate(call: Callable[..., Done], tmp_path: Path) -> None:
    path = gemm_file(tmp_path / "g.csv")
    done = call("validate", path, "--out", "p/rows.csv", "--markdown", "page.md", "--by", "pool", "--json")
    assert done.code == 0
    (row,) = csv.DictReader((tmp_path / "p" / "rows.csv").read_text(encoding="utf-8").splitlines())
    assert row["id"] == "g.csv:2" and float(row["measured_s"]) == pytest.approx(600e-6)
    assert float(row["low_s"]) < float(row["predicted_s"]) < float(row["high_s"])
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.startswith("# How far") and "| group |" in page
    assert "sglang" not in json.loads(done.out)["groups"][0]["group"]


def test_plots_of_validate(call: Callable[..., Done], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plots is not installed")
    body = "".join(f"a100_sxm,bfloat16,{2**i},4096,4096,{20 + 2**i / 5},,,a/sglang/b\n" for i in range(12))
    done = call("validate", gemm_file(tmp_path / "g.csv", body), "--plots", tmp_path / "plots")
    assert done.code == 0
    found = sorted((tmp_path / "plots").glob("*.png"))
    assert [path.name for path in found] == ["roofline-a100-sxm-80gb.png"]
    assert found[0].read_bytes().startswith(b"\x89PNG")


def test_plots_without_matplotlib_say_what_to_install(
    call: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = call("validate", gemm_file(tmp_path / "g.csv"), "--plots", tmp_path / "plots")
    assert done.code == 2 and "matplotlib is not installed" in done.err and "meshwright[plots]" in done.err


@pytest.mark.parametrize("words", [(), ("--check",)])
def test_fit_without_scipy_says_what_to_install(
    call: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    facts = ROOT / "tests" / "validation" / "kernels"
    done = call("fit", "--data", facts, "--only", "expert", "--out", tmp_path / "catalog", *words)
    assert done.code == 1 and "meshwright[fit]" in done.err and "internal error" not in done.err, done.err
    assert not (tmp_path / "catalog").exists()
    assert "meshwright[fit]" in " ".join(call("fit", "--help").out.split())


def test_limits_that_are_exceeded_end_with_1(call: Callable[..., Done], tmp_path: Path) -> None:
    path, limits = gemm_file(tmp_path / "g.csv"), tmp_path / "limits.json"
    assert call("validate", path, "--limits", limits).code == 2
    assert call("validate", path, "--limits", limits, "--tighten").code == 0
    assert call("validate", path, "--limits", limits).code == 0
    kept = json.loads(limits.read_text())
    for entry in kept["files"].values():
        entry["errors"] = dict.fromkeys(entry["errors"], 0.0)
    limits.write_text(json.dumps(kept))
    done = call("validate", path, "--limits", limits, "--json")
    assert done.code == 1 and "error rose from 0.00 %" in done.err and json.loads(done.out)["regressions"]


def test_no_file_means_the_facts_of_the_checkout(
    call: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [path.parent for path in command.choose([], None)] == [ROOT / "tests" / "validation" / "kernels"] * 4
    monkeypatch.setattr(command, "FACTS", tmp_path / "none")
    done = call("validate")
    assert done.code == 2 and "no file is named" in done.err


def test_a_file_of_which_nothing_is_predicted(call: Callable[..., Done], tmp_path: Path) -> None:
    other = "abacus,bfloat16,64,64,64,9,,,s\n"
    path = gemm_file(tmp_path / "g.csv", other * 2 + "a100_sxm,int3,64,64,64,9,,,s\n")
    done = call("validate", path)
    assert done.code == 1 and "0 of 3 rows predicted" in done.err and "2 rows: device not in the catalog" in done.err
    assert "none of the 3 rows can be predicted" in done.err
    assert call("validate", path, "--json").code == 1
    # Beside a file that is predicted it is a warning only.
    good = gemm_file(tmp_path / "good.csv")
    done = call("validate", path, good)
    assert done.code == 0 and "WARNING: " in done.err and "g.csv: 0 of 3 rows" in done.err
    assert "WARNING" not in call("validate", good).err


def test_notes_and_source_may_be_left_out(call: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "bare.csv").write_text("gpu,dtype,m,n,k,time_us\na100_sxm,bfloat16,4096,4096,4096,600\n")
    blank = gemm_file(tmp_path / "blank.csv", "a100_sxm,bfloat16,4096,4096,4096,600,,,\n")
    bare, full = (json.loads(call("validate", p, "--json").out)["groups"] for p in ("bare.csv", blank))
    assert bare == full and bare[0]["n"] == 1
    columns = "system,n_gpus,n_nodes,op,bytes,time_us\n8xA100-SXM4-80GB NVSwitch,8,1,all_gather,1048576,40\n"
    (tmp_path / "c.csv").write_text(columns)
    done = call("validate", "c.csv", "--json")
    assert done.code == 0 and json.loads(done.out)["predicted"] == 1


# --- bad input


def with_cell(old: str, new: str) -> bytes:
    """A GEMM file of one row in which one cell is another."""
    return (GEMM_HEAD + GEMM_ROW.replace(old, new)).encode()


BAD = {
    "columns": (b"gpu,dtype,m,n,k\na,b,1,2,3\n", "bad.csv:1: columns time_us are missing"),
    "negative": (with_cell("600", "-6"), "bad.csv:2: column time_us: value -6"),
    "nan": (with_cell("600", "nan"), "bad.csv:2: column time_us: value nan"),
    "infinite": (with_cell("600", "inf"), "bad.csv:2: column time_us: value inf"),
    "absurd": (with_cell("600", "1e300"), "bad.csv:2: column time_us: value 1e300"),
    "fraction": (with_cell("4096,4096,4096", "4096,0.5,4096"), "bad.csv:2: column n: value 0.5 (it counts something)"),
    "blank": (with_cell("600", ""), "bad.csv:2: column time_us: the cell is blank"),
    "word": (with_cell("600", "fast"), "column time_us: 'fast' is not a number"),
    "unquoted comma": (with_cell("a/sglang", "a,b"), "bad.csv:2: the row has more"),
    "short row": (GEMM_HEAD.encode() + b"a100_sxm,bfloat16,1\n", "bad.csv:2: the row has fewer cells"),
    "twice": (b"gpu,gpu,dtype,m,n,k,time_us,notes,source\na,a,b,1,1,1,1,,\n", "columns gpu are there twice"),
    "unknown": (b"a,b\n1,2\n", "is of no known format"),
    "empty": (b"", "is empty"),
    "no rows": (GEMM_HEAD.encode(), "has no rows"),
    "UTF-16": ((GEMM_HEAD + GEMM_ROW).encode("utf-16"), "is not UTF-8 text"),
    "Latin-1": ((GEMM_HEAD + GEMM_ROW).replace("a/sglang", "\xb5/sglang").encode("latin-1"), "is not UTF-8 text"),
    "nul": (b"gpu,dt\0ype,m,n,k\n1,2,3,4,5\n", "bad.csv"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_get_one_message(call: Callable[..., Done], tmp_path: Path, name: str) -> None:
    content, said = BAD[name]
    (tmp_path / "bad.csv").write_bytes(content)
    done = call("validate", "bad.csv")
    assert done.code == 2, done.err
    assert said in done.err and "Traceback" not in done.err and done.out == ""


def test_every_fault_is_told_at_once(call: Callable[..., Done], tmp_path: Path) -> None:
    body = GEMM_ROW.replace("600", "-6") + GEMM_ROW + GEMM_ROW.replace("4096,4096,4096", "x,0,4096")
    done = call("validate", gemm_file(tmp_path / "bad.csv", body), "--json")
    assert done.code == 2 and "3 faults" in done.err
    for where in ("bad.csv:2: column time_us", "bad.csv:4: column m", "bad.csv:4: column n"):
        assert where in done.err
    assert json.loads(done.out)["error"]["exit_code"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["validate", "none.csv"], "none.csv: no such file"),
        (["validate", "."], "is a folder"),
        (["validate", "--data", "none"], "no such folder"),
        (["validate", "--data", "."], "holds no measured file"),
        (["validate", "g.csv", "./g.csv"], "is named twice"),
        (["validate", "g.csv", "--held-out"], "--held-out without --data"),
        (["validate", "g.csv", "--by", "colour"], "'colour' is no way to group"),
        (["fit", "--data", "none"], "no such folder"),
        (["fit"], "no folder of measured files is named"),
        (["fit", "--data", ".", "--only", "gems"], "law 'gems' is unknown"),
        (["fit", "--data", ".", "--only", "gemm"], "no such file"),
        (["show", "h101"], "Try: one of h100-"),
        (["show", "h101-sxm-80gb"], "Try: one of h100-sxm-80gb"),
        (["show", "nvlnk4"], "Try: one of nvlink4"),
        (["show", "h100-sxm-80gb", "--law", "gems"], "no coefficient that starts with 'gems'"),
        (["check", "none.yaml"], "none.yaml"),
    ],
)
def test_bad_words_get_one_message(call: Callable[..., Done], tmp_path: Path, words: list[str], said: str) -> None:
    gemm_file(tmp_path / "g.csv")
    done = call(*words)
    assert done.code == 2 and said in done.err and "Traceback" not in done.err


def test_a_byte_order_mark_and_other_line_ends_are_read(call: Callable[..., Done], tmp_path: Path) -> None:
    text = (GEMM_HEAD + GEMM_ROW).replace("\n", "\r\n")
    (tmp_path / "g.csv").write_bytes(text.encode("utf-8-sig"))
    done = call("validate", "g.csv", "--json")
    assert done.code == 0 and json.loads(done.out)["predicted"] == 1


# --- show and check


def test_show_gives_value_source_and_rows(call: Callable[..., Done]) -> None:
    done = call("show", "h100-sxm-80gb", "--law", "gemm.bf16", "--json")
    content = json.loads(done.out)
    assert done.code == 0 and content["kind"] == "device" and content["facts"]["peak bf16"] == "989 TFLOP/s dense"
    rows = content["coefficients"]
    assert rows and all(row["source"] and row["name"].startswith("gemm.bf16") for row in rows)
    assert all(row["transferred"] is False for row in rows if row["rows"] >= 20)
    text = call("show", "h100-sxm-80gb").out
    assert "laws in use" in text and "[1] " in text


@pytest.mark.parametrize(
    ("word", "name"), [("h100", "h100-sxm-80gb"), ("A100-SXM4-40GB", "a100-sxm-40gb"), ("h200_sxm", "h200-sxm-141gb")]
)
def test_show_takes_the_names_of_measured_files(call: Callable[..., Done], word: str, name: str) -> None:
    done = call("show", word, "--json")
    assert done.code == 0 and json.loads(done.out)["name"] == name
    assert f"{word} is read as {name}" in done.err
    assert "is read as" not in call("show", name).err


def test_show_says_that_a_law_is_transferred(call: Callable[..., Done]) -> None:
    rows = json.loads(call("show", "h200-sxm-141gb", "--law", "gemm.", "--json").out)["coefficients"]
    assert any(row["transferred"] and "h100-sxm-80gb" in row["source"] for row in rows)


def test_show_of_a_link_and_of_one_without_laws(call: Callable[..., Done]) -> None:
    assert "450 GB/s per direction" in call("show", "nvlink4").out
    for name in ("efa-v4", "xgmi-mi300x", "gloo-loopback"):
        done = call("show", name)
        assert done.code == 0 and name in done.out


def test_check_of_every_preset_says_something(call: Callable[..., Done]) -> None:
    for name in catalog.cluster_names():
        done = call("check", name, "--json")
        findings = json.loads(done.out)["findings"]
        assert done.code == (1 if any(f["severity"] == "problem" for f in findings) else 0)
        assert all(f["what"] and f["why"] and f["fix"] for f in findings)


def test_check_ends_with_1_on_a_problem(call: Callable[..., Done], tmp_path: Path) -> None:
    # Three ports cannot be shared evenly by the eight GPUs of a node.
    text = catalog.text("clusters", "dgx-h100").replace("ports_per_node: 8", "ports_per_node: 3")
    (tmp_path / "mine.yaml").write_text(text.replace("nodes: 1", "nodes: 2"), encoding="utf-8")
    done = call("check", "mine.yaml")
    assert done.code == 1 and "problem: 3 ports for 8 GPUs a node" in done.out and "Try: " in done.out
