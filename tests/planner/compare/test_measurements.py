"""Reading rows: faults of the file, reasons of a row, and the cases of the published A100 rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hwmodels.errors import InputError
from planner.compare.clusters import stated_bandwidth
from planner.compare.measurements import UnreadableRowError, enough, known_model, to_case
from planner.compare.rows import Row, read_rows
from planner.compare.validation import validate

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "training_measurements.csv"
HEADER = "id,group,source,model,gpu,n_gpus,precision,tp,pp,seq_len,step_time_s"
GOOD = "a,g,s,m,A100,8,bf16,8,1,2048,1.5"


def write(tmp_path, *lines):
    path = tmp_path / "m.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def gpt(**more):
    """A row like those of the SC21 table, with everything stated."""
    cells = {
        "id": "x",
        "group": "g",
        "source": "Megatron-LM SC21",
        "model": "GPT",
        "gpu": "A100",
        "layers": 24,
        "hidden": 2304,
        "heads": 24,
        "kv_heads": 24,
        "head_dim": 96,
        "ffn_hidden": 9216,
        "gated_mlp": 0,
        "vocab": 51200,
        "seq_len": 2048,
        "gpu_mem_gib": 80.0,
        "n_gpus": 32,
        "gpus_per_node": 8,
        "precision": "fp16",
        "tp": 2,
        "sp": 0,
        "cp": 1,
        "pp": 2,
        "vpp": 1,
        "dp": 8,
        "zero_stage": 0,
        "mbs": 4,
        "gbs": 512,
        "recompute": "full",
        "schedule": "1f1b",
        "step_time_s": 1.0,
    }
    return Row(**(cells | more))


def test_reads_what_is_stated_and_leaves_the_rest_blank(tmp_path):
    row = read_rows(write(tmp_path, HEADER + ",recompute,unknown", GOOD + ",,x"))[0]
    assert (row.n_gpus, row.tp, row.seq_len, row.step_time_s) == (8, 8, 2048, 1.5)
    assert row.gbs is None and row.recompute == "" and row.oom is False
    assert row.measured == ("step_time", 1.5)


def test_published_figure_before_derived_one():
    assert gpt(step_time_s=None, tokens_per_s_per_gpu=7.0, step_time_s_derived=3.0).measured == ("tokens_per_s", 7.0)
    assert gpt(step_time_s=2.0, tokens_per_s_per_gpu=7.0).measured == ("step_time", 2.0)
    assert gpt(step_time_s=None, step_time_s_derived=3.0).measured == ("step_time", 3.0)
    assert gpt(step_time_s=None).measured is None


def test_missing_columns_are_all_named(tmp_path):
    with pytest.raises(InputError) as caught:
        read_rows(write(tmp_path, "id,group,source,model,gpu,n_gpus", "a,g,s,m,A100,8"))
    text = str(caught.value)
    for column in ("precision", "tp", "pp", "seq_len"):
        assert f"column {column} is missing" in text
    assert "nothing was measured" in text


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (GOOD.replace("1.5", "-1.5"), r"m\.csv:3, column step_time_s: '-1.5' is negative"),
        (GOOD.replace("1.5", "0"), r"column step_time_s: '0' is not above zero"),
        (GOOD.replace("1.5", "nan"), r"column step_time_s: 'nan' is not a finite number"),
        (GOOD.replace(",8,1,2048", ",NaN,1,2048"), r"column tp: 'NaN' is not a finite number"),
        (GOOD.replace(",8,1,2048", ",8,1.5,2048"), r"column pp: '1.5' is not a whole number"),
        (GOOD.replace("2048", "long"), r"column seq_len: 'long' is not a number"),
        (GOOD.replace("a,g", "a,"), r"column group: is blank"),
        (GOOD, r"id a appears twice"),
    ],
)
def test_an_unreadable_row_says_why_and_the_others_are_kept(tmp_path, bad, says):
    first, second = read_rows(write(tmp_path, HEADER, GOOD, bad))
    assert first.unreadable == ""
    assert re.search(says, second.unreadable)
    with pytest.raises(UnreadableRowError, match=says):
        to_case(second)


def test_all_faults_of_a_row_at_once(tmp_path):
    bad = GOOD.replace("1.5", "-1").replace("2048", "x")
    (row,) = read_rows(write(tmp_path, HEADER, bad))
    assert "column seq_len" in row.unreadable
    assert "column step_time_s" in row.unreadable


def test_one_bad_cell_costs_one_row_of_a_validation(tmp_path):
    lines = (Path(__file__).resolve().parents[2] / "validation" / "published.csv").read_text().splitlines()
    header, good, bad = lines[0], lines[1], lines[2].replace(",A100,80,", ",A100,much,")
    assert bad != lines[2]
    found = validate(write(tmp_path, header, good, bad, good))
    assert [bool(r.reason) for r in found.results] == [False, True, True]
    assert "column gpu_mem_gib: 'much' is not a number" in found.results[1].reason
    assert "appears twice (row 2 has it too)" in found.results[2].reason
    assert len(found.missed) == 2
    assert all(group.n == 1 for group in found.groups)


@pytest.mark.parametrize("text", ["", 'a,b\n"unclosed'])
def test_not_a_table(tmp_path, text):
    path = tmp_path / "m.csv"
    path.write_text(text)
    with pytest.raises(InputError):
        read_rows(path)
    with pytest.raises(InputError, match="no such file"):
        read_rows(tmp_path / "none.csv")


def test_a_whole_row_becomes_a_case_without_assumptions():
    case = to_case(gpt(inter_net="RDMA 200 Gbit/s per GPU"))
    assert case.assumed == ()
    # 24 layers of 12h^2 + 13h, embedding 51200h, 2048h positions, final norm 2h, with h = 2304
    h = 2304
    assert case.model.parameters == 24 * (12 * h * h + 13 * h) + (51200 + 2048) * h + 2 * h
    assert (case.layout.tp, case.layout.pp, case.layout.dp, case.layout.mbs, case.layout.recompute) == (
        2,
        2,
        8,
        4,
        "full",
    )
    assert (case.workload.gbs, case.workload.precision, case.workload.framework) == (512, "fp16", "megatron-2021")
    assert (case.cluster.n_ranks, case.cluster.gpus_per_node, case.cluster.nodes) == (32, 8, 4)
    # 200 Gb/s = 25 GB/s for each GPU
    assert case.cluster.fabric.inter_bandwidth_per_gpu == pytest.approx(25e9)


def test_blank_cells_take_documented_defaults_and_say_so():
    case = to_case(gpt(sp=None, dp=None, vpp=None, mbs=None, zero_stage=None, recompute="", schedule="", vocab=None))
    assert set(case.assumed) >= {
        "sp=0",
        "dp=8",
        "vpp=1",
        "mbs=1",
        "zero_stage=0",
        "recompute=none (not stated: the mildest that fits)",
        "schedule=1f1b",
        "vocab=50257",
        "network of dgx-a100",
    }
    assert to_case(gpt(framework="nemo", sp=None)).layout.sp == 1
    assert to_case(gpt(framework="nemo", sp=None, tp=1, dp=16)).layout.sp == 0
    assert to_case(gpt(zero_stage=None, fsdp="1")).layout.zero_stage == 3
    alone = to_case(gpt(zero_stage=1, tp=8, pp=4, dp=1))
    assert alone.layout.zero_stage == 0 and alone.assumed[0] == "zero_stage=0 (one replica)"
    assert to_case(gpt(gbs=None)).workload.gbs == 64  # a micro-batch a stage: mbs 4 on dp 8 and pp 2
    assert to_case(gpt(gbs=None, pp=1, dp=16)).workload.gbs == 64


def test_a_dense_model_has_no_expert_grid():
    assert to_case(gpt(ep=1, etp=4)).layout.etp == 1
    experts = {"n_experts": 8, "topk": 2, "moe_ffn_hidden": 512, "gpu_mem_gib": 80.0}
    assert to_case(gpt(**experts, ep=8)).layout.etp == 2  # as tp: 8*2 divides the 16 ranks of a stage
    assert to_case(gpt(**experts, ep=16)).layout.etp == 1


def test_heads_that_are_not_stated():
    # hidden 14400, tp 8: multiples of 16 that divide it are 16, 32, 48, 80, 96, 144 ...; 150 is nearer to 128 than 100
    case = to_case(gpt(hidden=14400, ffn_hidden=57600, heads=None, kv_heads=None, head_dim=None, tp=8, dp=2))
    assert case.model.layers[0].attention.n_heads == 96
    assert "heads=96" in case.assumed


@pytest.mark.parametrize(
    ("flags", "vpp", "expected"),
    [
        # 12 layers on 2 ranks: what the first holds, or stage by stage as in Megatron-Bridge's recipes
        ("decoder-first-pipeline-num-layers=5; other=True", None, (1, (5, 7))),
        ("x=1; pp_layout=Et*3|(t*4|)*2tmL", 2, (2, (3, 4, 4, 1))),
        ("pipeline-model-parallel-layout=Et*3|(tt|)*4tmL; y=2", None, (3, (3, 2, 2, 2, 2, 1))),
        ("pp_layout=Et*3|(tt|)*6tmL", 2, (2, ())),  # eight stages are not 2*2
    ],
)
def test_flags_of_megatron_deal_the_layers(flags: str, vpp: int | None, expected: tuple[int, tuple[int, ...]]) -> None:
    schedule = "1f1b" if vpp is None else "interleaved-1f1b"
    case = to_case(gpt(layers=12, pp=2, dp=None, vpp=vpp, schedule=schedule, other_flags=flags))
    assert (case.layout.vpp, case.layout.stage_layers) == expected
    assert any("default rule" in note for note in case.assumed) == (not expected[1])


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        # 96 layers on 8 ranks, 12 each: as many virtual stages as NeMo's default of 12
        ({"layers": 96, "gbs": 16}, ("interleaved-1f1b", 12)),
        ({"layers": 96, "gbs": 16, "schedule": "1f1b"}, ("interleaved-1f1b", 12)),
        # 80 layers, 10 a rank: the most up to 12 that divide them
        ({"layers": 80, "gbs": 16}, ("interleaved-1f1b", 10)),
        # 6 micro-batches do not fill 8 ranks; 90 layers are no whole ranks
        ({"layers": 96, "gbs": 6}, ("1f1b", 1)),
        ({"layers": 90, "gbs": 16}, ("1f1b", 1)),
        ({"layers": 96, "gbs": 16, "vpp": 1}, ("1f1b", 1)),
        ({"layers": 96, "gbs": 16, "framework": "megatron-bridge"}, ("1f1b", 1)),
        # interleaved without a number: a layer in each virtual stage
        ({"layers": 96, "gbs": 16, "framework": "megatron-bridge", "schedule": "interleaved-1f1b"},
         ("interleaved-1f1b", 12)),
    ],
)  # fmt: skip
def test_blank_virtual_stages_are_those_of_the_framework(cells: dict, expected: tuple[str, int]) -> None:
    nemo = {"framework": "nemo", "pp": 8, "vpp": None, "dp": 1, "tp": 4, "mbs": 1, "schedule": "", "precision": "bf16"}
    case = to_case(gpt(**(nemo | cells)))
    assert (case.layout.schedule, case.layout.vpp) == expected
    assert (f"vpp={expected[1]}" in case.assumed) == ("vpp" not in cells)
    assert any(note.startswith("schedule=") for note in case.assumed) == (not cells.get("schedule"))


def test_a_schedule_in_a_v_has_two_virtual_stages() -> None:
    case = to_case(gpt(vpp=None, schedule="ZB-V (zero bubble)"))
    assert (case.layout.schedule, case.layout.vpp) == ("zb-v", 2)
    assert "vpp=2" in case.assumed


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"kind": "distil"}, "kind 'distil'"),
        ({"optimizer": "lion"}, "optimizer 'lion'"),
        ({"n_gpus": None}, "n_gpus not stated"),
        ({"dp": 4}, r"tp\*pp\*cp\*dp = 16 is not the 32 GPUs"),
        ({"dp": None, "tp": 3}, "does not divide 32 GPUs"),
        ({"gbs": None, "mbs": None}, "neither gbs nor mbs"),
        ({"layers": None, "hidden": None}, "shape is not stated and 'GPT'"),
        ({"gpu": "Z9000"}, "'Z9000' is not in the catalog"),
        ({"precision": "fp5"}, "precision 'fp5'"),
        ({"recompute": "sometimes"}, "recompute 'sometimes'"),
        ({"schedule": "zigzag"}, "schedule 'zigzag'"),
        ({"framework": "nope"}, "unknown framework preset 'nope'"),
        ({"n_experts": 8}, "chosen experts is not stated"),
        ({"n_experts": 8, "topk": 2, "moe_ffn_hidden": 65, "shared_experts": 0.5}, "0.5 shared experts of 65"),
    ],
)
def test_rows_that_cannot_be_read_say_why(cells, reason):
    with pytest.raises(UnreadableRowError, match=reason):
        to_case(gpt(**cells))


@pytest.mark.parametrize(
    ("cells", "precision"),
    [
        ({"precision": "fp8-cs"}, "fp8-current"),
        ({"precision": "fp8-mx"}, "mxfp8"),
        ({"precision": "fp8-blockwise"}, "fp8-block"),
        ({"precision": "NVFP4"}, "nvfp4"),
        ({"precision": "fp8", "other_flags": "fp8-format=hybrid; fp8-recipe=tensorwise"}, "fp8-current"),
        ({"precision": "fp8"}, "fp8"),
    ],
)
def test_precisions_of_measurements(cells, precision):
    assert to_case(gpt(**cells)).workload.precision == precision


def test_adapters_of_a_row_take_the_rank_of_its_name():
    case = to_case(gpt(kind="lora", model="GPT LoRA r32", optimizer="adam"))
    assert (case.workload.kind, case.workload.lora.rank, case.workload.optimizer) == ("lora", 32, "adamw")
    assert "lora modules=qkv o" in case.assumed and "lora rank=16" not in case.assumed
    assert "lora rank=16" in to_case(gpt(kind="lora")).assumed
    assert to_case(gpt(kind="sft")).workload.kind == "sft"


def test_enough_configuration():
    assert enough(gpt())
    assert enough(gpt(gbs=None))  # mbs with dp
    assert not enough(gpt(gbs=None, dp=None))
    assert not enough(gpt(tp=None))
    assert not enough(gpt(heads=None))
    assert enough(gpt(layers=None, model="Llama-3-8B"))
    assert enough(gpt(layers=None, model="llama 3 8b (model not named in table)"))


@pytest.mark.parametrize(
    ("text", "bytes_s"),
    [
        ("RDMA 400 Gbit/s per GPU", 8 * 50e9),
        ("RoCE 1600 Gbit/s per node", 200e9),
        ("800 Gb/s per node (as vTrain states)", 100e9),
        ("Omni-Path, 4 links per node", 4 * 12.5e9),
        ("Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s, Ma", 8 * 50e9),
        ("1x Ethernet 100Gb/Sec, 8x NVIDIA Quantum-2 CX7 InfiniBand (400Gb/s)", 8 * 50e9),
        ("Infiniband, Ethernet", None),
        ("", None),
    ],
)
def test_bandwidth_in_words(text, bytes_s):
    assert stated_bandwidth(text, 8) == (None if bytes_s is None else pytest.approx(bytes_s))


def test_nodes():
    # 4 of the 8 GPUs of a node; a rack of 72 is one scale-up domain, 256 GPUs are four racks of 64
    assert to_case(gpt(n_gpus=4, dp=1)).cluster.gpus_per_node == 4
    rack = to_case(gpt(gpu="GB200", gpu_mem_gib=None, gpus_per_node=4, n_gpus=256, dp=64)).cluster
    assert (rack.gpus_per_node, rack.nodes) == (64, 4)


def test_the_a100_rows_of_the_published_file_become_cases():
    rows = read_rows(Path(__file__).resolve().parents[2] / "validation" / "published.csv")
    wanted = [row for row in rows if row.group in ("megatron_a100_sc21", "korthikanti_a100")]
    assert len(wanted) == 18
    for row in wanted:
        case = to_case(row)
        assert case.layout.world == row.n_gpus == case.cluster.n_ranks
        assert case.assumed in ((), ("network of dgx-a100",))


@pytest.mark.skipif(not SHARED.exists(), reason="no ../shared/data here (a user's checkout)")
def test_nearly_every_trusted_row_is_read():
    rows = [
        r
        for r in read_rows(SHARED)
        if r.trust in "AB" and enough(r)
    ]
    unread = []
    for row in rows:
        try:
            to_case(row)
        except UnreadableRowError as reason:
            unread.append((row.id, str(reason)))
    assert len(unread) <= 0.05 * len(rows), unread


def test_a_shared_expert_of_another_width_is_read():
    cells = {"n_experts": 8, "topk": 2, "moe_ffn_hidden": 64, "shared_experts": 0.5}
    assert to_case(gpt(**cells)).model.layers[-1].ffn.shared_ffn_hidden == 32


def test_a_generation_without_a_name_is_the_gpu_of_its_hosts() -> None:
    cells = {"tp": 1, "pp": 1, "mbs": 1, "gpu_mem_gib": None}
    four = to_case(gpt(gpu="Blackwell-unnamed", n_gpus=4, gpus_per_node=4, dp=4, gbs=4, **cells))
    assert four.cluster.device.name == "gb200-186gb"
    assert "GB200 for 'Blackwell-unnamed'" in four.assumed
    eight = to_case(gpt(gpu="NVIDIA Blackwell", n_gpus=8, gpus_per_node=8, dp=8, gbs=8, **cells))
    assert eight.cluster.device.name == "b200-sxm-180gb"


def test_a_row_that_states_the_figures_of_a_known_model_is_that_model() -> None:
    figures = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn_hidden": 16384, "head_dim": 128}
    case = to_case(gpt(model="Nemotron3-8B", vocab=None, **figures))
    # 256,000 tokens and an untied head, which the row does not say and the architecture has
    assert case.model.vocab == 256000
    assert not case.model.tied_embeddings
    assert "vocab=256000" in case.assumed
    fewer = to_case(gpt(model="Nemotron3-8B", vocab=51200, **{**figures, "layers": 30}))
    assert fewer.model.n_layers == 30
    assert fewer.model.tied_embeddings  # other figures: a GPT of that shape


def test_a_name_without_the_sizes_of_the_only_entry_is_that_entry() -> None:
    known = known_model("Llama-4-Scout")
    assert known is not None
    assert known.name == "llama-4-scout-17b-16e"
    assert known_model("Llama-3") is None  # several
    assert known_model("Llama-3-8B (model not named in table)") is not None
