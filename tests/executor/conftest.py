"""Plans of small models, and the measurements of all two-rank plans from one launch."""

from __future__ import annotations

from typing import Any

import pytest

from planner.layout import Layout
from planner.model import read_config
from planner.plan import Plan, Workload, build_plan

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 256, "n_positions": 64, "n_ctx": 64,
    "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    **LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2,
    "sliding_window": None,
}  # fmt: skip


def make_plan(name: str, layout: Layout, config: dict[str, Any] = LLAMA, *, gbs: int = 8, seq_len: int = 32,
              precision: str = "fp32") -> Plan:  # fmt: skip
    """A plan of a tiny model."""
    workload = Workload(seq_len, gbs, precision, "adamw", "generic")
    return build_plan(name, config, read_config(config, name), "cpu-local", workload, layout, layout.world)


TWO_RANKS: dict[str, tuple[Layout, dict[str, Any]]] = {
    "ddp": (Layout(dp=2, mbs=2), LLAMA),
    "ddp-gpt2-full": (Layout(dp=2, mbs=2, recompute="full"), GPT2),
    "ddp-moe": (Layout(dp=2, mbs=4), MIXTRAL),
    "zero1": (Layout(dp=2, mbs=4, zero_stage=1), LLAMA),
    "zero2": (Layout(dp=2, mbs=4, zero_stage=2), LLAMA),
    "fsdp": (Layout(dp=2, mbs=4, zero_stage=3), LLAMA),
    "tp": (Layout(tp=2, mbs=8), LLAMA),
    "tp-sp-gpt2": (Layout(tp=2, sp=1, mbs=8, recompute="selective"), GPT2),
    "gpipe": (Layout(pp=2, mbs=2, schedule="gpipe"), LLAMA),
    "1f1b": (Layout(pp=2, mbs=2, schedule="1f1b"), LLAMA),
    "1f1b-gpt2": (Layout(pp=2, mbs=2, schedule="1f1b"), GPT2),
    "interleaved": (Layout(pp=2, vpp=2, mbs=2, schedule="interleaved-1f1b"), LLAMA),
    "zb-h1": (Layout(pp=2, mbs=2, schedule="zb-h1"), LLAMA),
    "interleaved-zb": (Layout(pp=2, vpp=2, mbs=2, schedule="interleaved-zb"), LLAMA),
    "zb-v-gpt2": (Layout(pp=2, vpp=2, mbs=2, schedule="zb-v"), GPT2),
    "dualpipe-v": (Layout(pp=2, vpp=2, mbs=2, schedule="dualpipe-v"), LLAMA),
    "uneven": (Layout(pp=2, mbs=2, stage_layers=(1, 3)), LLAMA),
    "ends-alone": (Layout(pp=2, vpp=2, mbs=2, schedule="interleaved-1f1b", stage_layers=(0, 3, 1, 0)), LLAMA),
}


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Measurements of `TWO_RANKS` by name; one launch, two timed steps each."""
    pytest.importorskip("torch")
    from executor.launch import run_plans

    plans = [make_plan(name, layout, config) for name, (layout, config) in TWO_RANKS.items()]
    out = tmp_path_factory.mktemp("two-ranks")
    measured = run_plans(plans, out, repeats=2, warmup=1, timeout_s=300, device="cpu")
    return {"out": out, "plans": {p.name: p for p in plans}, **{m.plan_name: m for m in measured}}
