"""What the importers make of a config beyond its size, and how they refuse a bad one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels.errors import InputError
from planner import model as models
from planner.model import families, load, names, read_config
from planner.model.spec import Attention, LatentAttention, Mlp, Moe
from tests.conftest import ROOT

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def refused(config: Any, *expected: str) -> InputError:
    with pytest.raises(InputError) as error:
        read_config(config, "m", "config.json")
    for text in expected:
        assert text in str(error.value)
    return error.value


def test_llama_without_kv_heads_has_one_for_each_head() -> None:
    attention = read_config(LLAMA).layers[0].attention
    assert attention == Attention(4, 4, 16)


def test_llama_biases_tying_and_rope_are_read() -> None:
    spec = read_config(
        {
            **LLAMA,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
            "max_position_embeddings": 77,
        }
    )
    # per layer: q, k, v, o 4*(64*64+64), MLP 3*64*128 + 2*128 + 64, norms 128; table 6400 once; final norm 64
    assert spec.parameters == 2 * (4 * (4096 + 64) + 3 * 8192 + 2 * 128 + 64 + 128) + 6400 + 64
    assert spec.rope_theta == 5e5
    assert spec.max_positions == 77


def test_all_faults_of_a_config_come_at_once_with_their_keys() -> None:
    bad = {**LLAMA, "hidden_size": "64", "num_hidden_layers": -2, "num_key_value_heads": 3, "tie_word_embeddings": "no"}
    del bad["vocab_size"]
    error = refused(
        bad,
        "config.json: hidden_size: is '64' (text)",
        "config.json: num_hidden_layers: is -2",
        "num_key_value_heads: 3 key-value heads do not divide",
        "vocab_size: is missing",
        "tie_word_embeddings: is 'no' (text)",
    )
    assert len(error.faults) == 5


def test_heads_that_do_not_divide_hidden_need_a_head_dim() -> None:
    refused({**LLAMA, "num_attention_heads": 5}, "5 heads do not divide hidden_size=64", "head_dim")
    assert read_config({**LLAMA, "num_attention_heads": 5, "head_dim": 8}).layers[0].attention.head_dim == 8


def test_booleans_floats_and_null_are_no_whole_numbers() -> None:
    refused({**LLAMA, "hidden_size": True}, "is true")
    refused({**LLAMA, "hidden_size": 64.0}, "is 64.0")
    refused({**LLAMA, "hidden_size": None}, "hidden_size: is null")


def test_a_layer_count_beyond_reason_is_refused_before_anything_is_built() -> None:
    refused({**LLAMA, "num_hidden_layers": 10**12}, "no known model has more than")


def test_a_misspelt_key_is_pointed_at() -> None:
    bad = dict(LLAMA)
    bad["hiden_size"] = bad.pop("hidden_size")
    refused(bad, "hidden_size: is missing (did you mean that by 'hiden_size'?)")


def test_unknown_family_names_the_near_and_the_supported() -> None:
    refused({"model_type": "lama"}, "'lama' is not a supported model family", "did you mean llama", "qwen3_moe")
    refused({}, "model_type: is missing")
    refused({"model_type": 3}, "model_type: is 3")
    refused([1], "is a list", "JSON object")


def test_load_by_path_folder_and_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "other.json").write_text(json.dumps(LLAMA))
    spec, raw = load(tmp_path)
    assert (spec.name, raw) == (tmp_path.name, LLAMA)
    assert load(tmp_path / "other.json")[0].name == "other"
    assert load("gpt2")[0].family == "gpt2"


def test_load_refuses_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Try: llama-3-70b or"):
        load("llama3-70b")
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "missing.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        load(tmp_path / "broken.json")
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path)


def test_windows_follow_the_layer_rules() -> None:
    gemma2 = load("gemma2-27b")[0]
    assert [layer.attention.window for layer in gemma2.layers[:4]] == [4096, None, 4096, None]
    assert gemma2.layers[0].attention.softcap
    gemma3 = load("gemma3-27b")[0]
    full = [i for i, layer in enumerate(gemma3.layers) if layer.attention.window is None]
    assert full == list(range(5, 62, 6))  # every sixth layer
    assert not gemma3.layers[0].attention.softcap
    assert {layer.attention.window for layer in load("qwen2.5-7b")[0].layers} == {None}
    assert load("mistral-7b")[0].layers[0].attention.window == 4096


def test_layer_types_overrule_and_are_checked() -> None:
    base = load("gemma2-2b")[1]
    spec = read_config({**base, "layer_types": ["full_attention"] * 26})
    assert all(layer.attention.window is None for layer in spec.layers)
    refused({**base, "layer_types": ["full_attention"]}, "for each of the 26 layers")


def test_deepseek_layers() -> None:
    spec = load("deepseek-v3")[0]
    assert [layer.is_moe for layer in spec.layers[:4]] == [False, False, False, True]
    assert spec.layers[0].attention == LatentAttention(128, 1536, 512, 128, 64, 128)
    moe = spec.layers[3].ffn
    assert isinstance(moe, Moe)
    assert (moe.n_experts, moe.top_k, moe.ffn_hidden, moe.shared_ffn_hidden) == (256, 8, 2048, 2048)
    assert len(spec.mtp_layers) == 1
    # one MoE layer (11_507_286_528 by the pieces below), a projection 2h*h and three norms
    attention = 7168 * 1536 + 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 + 512 * 128 * 256 + 128 * 128 * 7168
    layer = attention + 7168 * 256 + 257 * 3 * 7168 * 2048 + 2 * 7168
    assert spec.mtp_parameters == layer + 2 * 7168**2 + 3 * 7168
    # the model card says 37 B active of 671 B
    assert round(spec.active_parameters / 1e9) in (37, 38)


def test_v2_lite_query_compression_null_and_absent() -> None:
    config = load("deepseek-v2-lite")[1]
    assert read_config(config).layers[0].attention.q_lora_rank is None
    absent = {k: v for k, v in config.items() if k != "q_lora_rank"}
    spec = read_config(absent)
    assert spec.layers[0].attention.q_lora_rank == 1536  # DeepseekV2Config's default
    assert spec.parameters == 15_748_993_024  # counted from the class with the key absent
    assert any("q_lora_rank" in note for note in spec.notes)


def test_qwen_moe_layers_step_and_skip() -> None:
    base = load("qwen3-30b-a3b")[1]
    spec = read_config({**base, "decoder_sparse_step": 2, "mlp_only_layers": [1]})
    assert [layer.is_moe for layer in spec.layers[:6]] == [False, False, False, True, False, True]
    assert isinstance(spec.layers[0].ffn, Mlp)
    refused({**base, "num_experts_per_tok": 129}, "there are 128 experts")


def test_frozen_towers_stand_apart() -> None:
    spec = load("llava-1.5-7b")[0]
    # CLIP ViT-L/14 at 336: class 1024, patches 3*14*14*1024, positions 577*1024, two norms 4096,
    # 24 layers of 4*(1024²+1024) + 2*1024*4096 + 4096 + 1024 + 4*1024
    tower = 1024 + 602_112 + 590_848 + 4096 + 24 * (4 * (1024**2 + 1024) + 2 * 1024 * 4096 + 5120 + 4096)
    projector = 1024 * 4096 + 4096 + 4096**2 + 4096
    assert [block.parameters for block in spec.frozen_blocks] == [tower, projector]
    assert spec.parameters - spec.frozen_parameters == 6_738_415_616 + 64 * 2 * 4096  # Llama-2-7B, 64 more tokens
    refused(
        {**load("llava-1.5-7b")[1], "vision_config": {"model_type": "dinov2"}},
        "vision_config.model_type: is 'dinov2'",
        "clip_vision_model",
    )


def test_nested_faults_carry_the_whole_path() -> None:
    config = json.loads(json.dumps(load("gemma3-27b")[1]))
    config["text_config"]["hidden_size"] = "5376"
    del config["vision_config"]
    refused(config, "config.json: text_config.hidden_size: is '5376'", "config.json: vision_config: is missing")


def test_phi_both_key_sets_agree() -> None:
    legacy = load("phi-2")[0]
    modern = read_config(
        {
            "model_type": "phi",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "vocab_size": 51200,
            "partial_rotary_factor": 0.4,
            "max_position_embeddings": 2048,
        }
    )
    assert modern.layers == legacy.layers
    assert modern.parameters == legacy.parameters
    assert modern.rotary_fraction == legacy.rotary_fraction == pytest.approx(0.4)
    refused({"model_type": "phi"}, "hidden_size: is missing")


def test_a_window_longer_than_the_context_is_none() -> None:
    assert load("phi-4-mini")[0].layers[0].attention.window is None
    assert load("phi-4-mini")[0].rotary_fraction == 0.75


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(allow_nan=True),
    st.text(max_size=3),
    st.lists(st.integers(-1, 2), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(names()), st.data())
def test_any_spoilt_config_is_read_or_refused_but_never_crashes(name: str, data: st.DataObject) -> None:
    config = json.loads(json.dumps(load(name)[1]))
    target = config
    nested = [k for k, v in config.items() if isinstance(v, dict)]
    if nested and data.draw(st.booleans()):
        target = config[data.draw(st.sampled_from(nested))]
    key = data.draw(st.sampled_from(sorted(target)))
    if data.draw(st.booleans()):
        del target[key]
    else:
        target[key] = data.draw(JUNK)
    try:
        assert read_config(config).parameters > 0
    except InputError as error:
        assert error.faults


def test_families_cover_the_promised_ones() -> None:
    assert set(families()) >= {
        "gpt2",
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen2_moe",
        "qwen3_moe",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "phi",
        "phi-msft",
        "phi3",
        "deepseek_v2",
        "deepseek_v3",
        "llava",
    }


def test_a_family_is_found_by_its_file_alone() -> None:
    """The quick way to an importer and the registry of all of them agree on every type."""
    for kind, importer in models._registry().items():
        models._importer.cache_clear()
        found = models._importer(kind)
        assert type(found) is type(importer), kind
    assert models._importer("no-such-family") is None


def test_one_model_imports_one_family() -> None:
    code = (
        "import sys; from planner import model; model.load('llama-3-70b')\n"
        "print([m for m in ('mamba', 'gemma', 'deepseek') if f'planner.model.{m}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
