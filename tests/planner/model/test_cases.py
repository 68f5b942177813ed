"""What people ran into with configs of models (`cases.csv` of the data folder), answered.

Configs are small copies of the families; expected values are worked out by hand or stated by the case.
"""

from __future__ import annotations

import pytest

from hwmodels.errors import InputError
from planner.flops import FORMULAS, model_flops
from planner.model import load, read_config
from planner.model.spec import Attention
from planner.plan import Workload

QWEN3_4B = {
    "model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "tie_word_embeddings": True,
}  # fmt: skip
NEOX = {
    "model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
    "intermediate_size": 24576, "vocab_size": 50432,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32000,
}  # fmt: skip


def _attention(config: dict[str, object]) -> Attention:
    found = read_config(config, "m").layers[0].softmax
    assert isinstance(found, Attention)
    return found


def test_c067_windowed_layers_stay_in_the_cache() -> None:
    # 36 layers x 2 (k and v) x 8 heads x 64 x 2 bytes = 73,728 a token while no window is full; half of them beyond
    # 128 tokens keep 128.
    model, _ = load("gpt-oss-120b")
    assert model.kv_bytes_per_token() == 73_728
    assert model.kv_bytes(100) == 73_728 * 100
    assert model.kv_bytes(1000) == 36_864 * (1000 + 128)


def test_c071_head_size_is_read_and_mla_caches_one_latent() -> None:
    # 36 x 2 x 8 x 128 x 2; and 61 layers x (512 + 64) x 2, not two vectors of 128 heads
    assert read_config(QWEN3_4B, "m").kv_bytes_per_token() == 147_456
    assert load("deepseek-v3")[0].kv_bytes_per_token() == 61 * 576 * 2


def test_a_recurrent_layer_caches_a_state_and_nothing_for_a_token() -> None:
    # Nemotron-H: 10 attention layers of 8 heads of 128; 54 states of 16384 x 256 and four taps of 20480 channels
    model, _ = load("nemotron-h-56b")
    assert model.kv_bytes_per_token() == 10 * 2 * 8 * 128 * 2
    assert model.kv_bytes(4096) == 10 * 2 * 8 * 128 * 2 * 4096 + 4 * 54 * (16384 * 256 + 20480 * 4)


def test_c116_llama_at_131072_bytes_a_token() -> None:
    assert load("llama-3.1-8b")[0].kv_bytes_per_token() == 131_072


def test_c087_the_trained_shape_of_bloom() -> None:
    model, _ = load("bloom-176b")
    assert (model.n_layers, model.hidden, model.vocab) == (70, 14336, 250880)
    assert model.parameters == 176_247_271_424


def test_c089_windows_count_their_width_and_grouped_keys_their_heads() -> None:
    # Mistral with a window of 4096 at 32768 tokens: every layer counts 4096 keys, and k and v are 1024 wide.
    model, _ = load("mistral-7b")
    matrices = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 32000
    window = model.layers[0].softmax
    assert window is not None
    width = window.window or 32768
    expected = 6 * matrices + 6 * 32 * min(width, 32768) * 32 * 256
    assert model_flops(model, Workload(32768, 1)) / 32768 == pytest.approx(expected, rel=1e-12)


def test_c091_tied_parameters_once_head_always_lookup_never() -> None:
    tied, untied = read_config({**LLAMA, "tie_word_embeddings": True}, "m"), read_config(LLAMA, "m")
    assert untied.parameters - tied.parameters == 32000 * 4096
    work = Workload(1, 1)
    assert model_flops(tied, work) == model_flops(untied, work)
    without = model_flops(tied, work, FORMULAS["full-no-head"])
    assert model_flops(tied, work) - without == 6 * 4096 * 32000  # one product, no look-up


def test_c109_no_key_value_heads_means_one_for_each_head() -> None:
    assert _attention(NEOX).n_kv_heads == 64
    assert _attention(LLAMA).n_kv_heads == 32


def test_c110_head_dim_comes_first() -> None:
    a = _attention(QWEN3_4B)
    assert (a.head_dim, a.n_heads * a.head_dim) == (128, 4096)  # not 2560 / 32 = 80
    q = next(p for p in a.parameters(2560) if p.name == "q")
    assert q.parameters == 10_485_760
    # Nemotron-H calls it attention_head_dim
    hybrid = next(layer.softmax for layer in load("nemotron-h-56b")[0].layers if layer.softmax)
    assert hybrid.qk_dim == 128


@pytest.mark.parametrize("key", ["head_dim", "num_key_value_heads"])
def test_c112_null_counts_as_absent(key: str) -> None:
    assert _attention({**LLAMA, key: None}) == _attention(LLAMA)
    with_null, without = ({**QWEN3_4B, "model_type": "qwen2", key: None}, {**QWEN3_4B, "model_type": "qwen2"})
    without.pop(key)
    assert _attention(with_null).head_dim in (80, 128)
    if key == "head_dim":
        assert _attention(with_null) == _attention(without)


def test_c114_unknown_keys_do_not_fall_back_to_defaults() -> None:
    # Phi-2 under its first key names is read by name, with its own count; a config whose shape is missing is refused.
    assert load("phi-2")[0].parameters == 2_779_683_840
    for kind in ("llama", "gpt_neox", "opt", "bloom", "falcon", "mamba", "nemotron_h", "vit", "bert", "gpt_oss"):
        with pytest.raises(InputError) as error:
            read_config({"model_type": kind, "d_inner": 2560}, "m", "config.json")
        assert "is missing" in str(error.value)


def test_hybrid_patterns_are_held_against_the_layers() -> None:
    config = {**load("nemotron-h-56b")[1], "hybrid_override_pattern": "M-X"}
    with pytest.raises(InputError, match=r"has 'X'.*M, \*, - and E"):
        read_config(config, "m")
    config["hybrid_override_pattern"] = "M-M*"
    with pytest.raises(InputError, match=r"has 4 layers .*num_hidden_layers is 118"):
        read_config(config, "m")


def test_kinds_of_layers_as_the_configs_state_them() -> None:
    scout = load("llama-4-scout-17b-16e")[0].layers
    assert [layer.softmax.chunk for layer in scout[:4] if layer.softmax] == [8192, 8192, 8192, None]
    qwen = load("qwen3.5-35b-a3b")[0]
    assert [layer.recurrent is not None for layer in qwen.layers[:4]] == [True, True, True, False]
    assert len(qwen.mtp_layers) == 1 and qwen.mtp_layers[0].softmax is not None
    jamba = load("jamba")[0].layers
    assert [i for i, layer in enumerate(jamba) if layer.softmax] == [4, 12, 20, 28]
    assert [i for i, layer in enumerate(jamba[:4]) if layer.is_moe] == [1, 3]
    nas = load("nemotron-super-49b")[0].layers
    assert any(layer.attention is None for layer in nas)
    assert not [a for layer in load("vit-base")[0].layers if (a := layer.softmax) and a.causal]
