"""Readers of measured kernel rows: implementations named by any cell, and rows that no kernel can have run."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwmodels import catalog, measured
from hwmodels.errors import InputError
from hwmodels.implementations import implementation
from hwmodels.kernels import attention_seconds, gemm_seconds
from hwmodels.validation import attention

COLUMNS = ("gpu", "phase", "direction", "kernel", "dtype", "kv_dtype", "causal", "batch", "q_len", "kv_len", "n_heads",
           "n_kv_heads", "head_dim", "time_us", "source")  # fmt: skip
ROW = {"gpu": "H100 SXM", "phase": "prefill", "direction": "fwd", "kernel": "fa3", "dtype": "bfloat16",
       "kv_dtype": "bfloat16", "causal": "1", "batch": "1", "q_len": "1024", "kv_len": "1024", "n_heads": "32",
       "n_kv_heads": "8", "head_dim": "128", "time_us": "50", "source": "my lab"}  # fmt: skip


def written(folder: Path, *rows: dict[str, str]) -> Path:
    """A file of attention rows, each `ROW` with its own cells over it."""
    path = folder / "attention_measured.csv"
    lines = [",".join(COLUMNS), *(",".join((ROW | row)[c] for c in COLUMNS) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("kernel", "key"),
    [
        ("torch_flow", "trtllm-fmha"), ("torch_flow_flashinfer", "trtllm-flashinfer"), ("trtllm_mha", "sglang-trtllm"),
        ("flash_attention", "sglang-fa2"), ("fa3", "sglang-fa3"), ("triton", "sglang-triton"),
        ("flashinfer", "sglang-flashinfer"), ("vllm_flash_attn", "vllm-fa"), ("vllm_flash_attn_fa2", "vllm-fa2"),
        ("vllm_flash_attn_fa3", "vllm-fa3"), ("vllm_flashinfer_trtllmdecode", "vllm-trtllm"),
        ("vllm_flashinfer_fiprefill", "vllm-flashinfer"), ("vllm_triton_attn", "vllm-triton"),
        ("FlashAttention-2", "flashattn-fa2"), ("FlashAttention-3", "flashattn-fa3"), ("flash-attn 3", "flashattn-fa3"),
        ("cuDNN", "cudnn-sdpa"),
    ],
)  # fmt: skip
def test_the_kernel_cell_names_the_implementation(kernel: str, key: str) -> None:
    assert implementation("my lab", "", kernel).key == key
    assert implementation("", "", kernel).key == key


@pytest.mark.parametrize(
    ("notes", "key"),
    [
        ("torch_flow; set=common", "trtllm"), ("trt_flow_/weight_only_quant_matmul_L257/PLUGIN; set=common", "trtllm"),
        ("deepgemm; set=common", "trtllm"), ("sglang; set=common", "sglang"), ("sglang_torch_linear", "sglang"),
        ("vllm_default; set=common", "vllm"), ("CutlassFP8ScaledMMLinearKernel; set=common", "vllm"),
        ("FlashInferCuteDslNvFp4LinearKernel", "vllm"), ("torch.nn.functional.linear", "vllm"),
        ("DeepGemmFp8BlockScaledMMKernel; set=common", "vllm-eager"), ("Qwen/Qwen-72B mlp_up_proj tp2", "vidur"),
        ("best of shape search; torch 2.6", "mamf"), ("DeepGEMM dense, 1509 GB/s", "deepgemm"), ("", ""),
    ],
)  # fmt: skip
def test_notes_of_a_product_name_the_implementation(notes: str, key: str) -> None:
    assert implementation("my lab", notes).key == key


def test_a_source_may_name_the_framework_in_words() -> None:
    assert implementation("our runs of vLLM 0.30").key == "vllm"
    assert implementation("TensorRT-LLM 1.3, my lab").key == "trtllm"
    # The kernel says more than the framework.
    assert implementation("our runs of vLLM 0.30", "", "vllm_flash_attn_fa3").key == "vllm-fa3"


def test_a_row_of_another_laboratory_is_read_as_that_kernel(tmp_path: Path) -> None:
    rows = measured.attention(written(tmp_path, {}, {"kernel": "torch_flow"}, {"kernel": "home-made"}))
    assert rows.words["impl"].tolist() == ["sglang-fa3", "trtllm-fmha", ""]


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        ({"direction": "sideways"}, "direction"), ({"direction": ""}, "direction"), ({"phase": "warmup"}, "phase"),
        ({"causal": "2"}, "causal"), ({"causal": "0.5"}, "causal"), ({"n_kv_heads": "64"}, "n_kv_heads"),
        ({"n_kv_heads": "5"}, "n_kv_heads"), ({"q_len": "2048"}, "q_len"),
        ({"phase": "decode", "causal": "0", "q_len": "2048"}, "q_len"),
        ({"phase": "decode", "direction": "fwd+bwd"}, "direction"),
    ],
)  # fmt: skip
def test_a_row_that_no_kernel_can_have_run_is_refused(tmp_path: Path, cells: dict[str, str], column: str) -> None:
    with pytest.raises(InputError, match=rf"attention_measured.csv:3: column {column}") as caught:
        measured.attention(written(tmp_path, {}, cells))
    assert len(caught.value.faults) == 1


def test_every_impossible_cell_is_named_in_the_order_of_the_rows(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        measured.attention(written(tmp_path, {"n_kv_heads": "64"}, {"phase": "x", "causal": "0", "q_len": "4096"}))
    assert [fault.where.rsplit(":", 2)[1] for fault in caught.value.faults] == ["2", "3"]


def test_what_is_no_size_is_refused() -> None:
    card = catalog.device("h100-sxm-80gb")
    with pytest.raises(InputError, match="n is 'wide'"):
        gemm_seconds(card, 1, "wide", 1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"m is .*shapes|shapes do not go together: m \(2,\), n \(3,\)"):
        gemm_seconds(card, [1, 2], [1, 2, 3], 1)
    for wrong in ({"batch": "many"}, {"window": "narrow"}, {"window": -1}):
        call = {"batch": 1, "q_len": 8, "kv_len": 8, "n_heads": 1, "n_kv_heads": 1, "qk_dim": 64, "v_dim": 64} | wrong
        with pytest.raises(InputError, match=next(iter(wrong))):
            attention_seconds(card, **call, causal=True, direction="forward")  # type: ignore[arg-type]


def test_a_backward_alone_is_priced_as_one(tmp_path: Path) -> None:
    card = catalog.device("h100-sxm-80gb")
    path = written(tmp_path, *({"direction": way, "phase": "training"} for way in ("fwd", "bwd", "fwd+bwd")))
    ahead, back, both = attention.score(path).predicted_s
    price = attention_seconds(
        card, batch=1, q_len=1024, kv_len=1024, n_heads=32, n_kv_heads=8, qk_dim=128, v_dim=128, causal=True,
        direction="backward", impl="sglang-fa3",
    )  # fmt: skip
    assert back == pytest.approx(float(price.mid))
    assert both == pytest.approx(ahead + back)
