"""Parameter counts of the catalog and of every config in the data folder.

The expected counts are those of the transformers 5.24.0 classes, instantiated without weights
(each shared tensor once), as `hf_configs/README.md` in the data folder lists them. They stand
here as numbers so that this test cannot be skipped.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hwmodels.errors import InputError
from planner.model import families, load, names, read_config

COUNTS = {
    "deepseek-r1": 671_026_404_352,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,
    "gemma-2b": 2_506_172_416,
    "gemma2-27b": 27_227_128_320,
    "gemma2-2b": 2_614_341_888,
    "gemma3-1b": 999_885_952,
    "gemma3-27b": 27_432_062_576,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llava-1.5-7b": 7_063_427_072,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x7b": 46_702_792_704,
    "phi-2": 2_779_683_840,
    "phi-3.5-mini": 3_821_079_552,
    "phi-4-mini": 3_836_021_760,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-0.5b": 494_032_768,
    "qwen2-7b": 7_615_616_512,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-14b": 14_768_307_200,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen3-8b": 8_190_735_360,
    "smollm2-135m": 134_515_008,
    # the weights of 8B did not change between Llama 3 and 3.1
    "llama-3-8b": 8_030_261_248,
}


def gpt(layers: int, hidden: int) -> int:
    """Parameters of a Megatron GPT, sequence 2048, vocabulary 51200, tied.

    A layer: qkv 3h²+3h, projection h²+h, MLP 4h²+4h and 4h²+h, two layer norms 4h = 12h² + 13h;
    plus (51200 + 2048) h of tables and the final norm 2h.
    """
    return layers * (12 * hidden**2 + 13 * hidden) + (51200 + 2048) * hidden + 2 * hidden


BY_HAND = {
    "gpt3-175b": gpt(96, 12288),  # 174_615_846_912
    "megatron-22b": gpt(48, 6144),
    "megatron-530b": gpt(105, 20480),
    "megatron-1t": gpt(128, 25600),
    # V2-Lite without query compression. Attention of a layer: q 2048*16*192 = 6_291_456, kv_a 2048*576 = 1_179_648
    # and its norm 512, kv_b 512*16*256 = 2_097_152, o 16*128*2048 = 4_194_304: 13_763_072; norms 4096.
    # Dense layer MLP 3*2048*10944 = 67_239_936; MoE: router 131_072, 66 experts (64 + 2 shared) of 3*2048*1408.
    # Embedding and head 2*102400*2048, final norm 2048.
    "deepseek-v2-lite": (
        27 * (13_763_072 + 4096) + 67_239_936 + 26 * (131_072 + 66 * 3 * 2048 * 1408) + 2 * 102400 * 2048 + 2048
    ),
    # q and o 512², k and v 512*256, MLP 3*512*1376, two norms; untied tables of 4096 rows; final norm.
    "tiny-llama": 4 * (2 * 512**2 + 2 * 512 * 256 + 3 * 512 * 1376 + 2 * 512) + 2 * 4096 * 512 + 512,
}


def test_every_catalog_entry_has_an_expected_count() -> None:
    assert set(names()) == set(COUNTS) | set(BY_HAND)


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_catalog_counts_equal_the_library(name: str) -> None:
    spec, config = load(name)
    assert spec.parameters == COUNTS[name]
    assert spec.name == name
    assert config["_source"]


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_catalog_counts_equal_hand_arithmetic(name: str) -> None:
    assert load(name)[0].parameters == BY_HAND[name]


@pytest.mark.parametrize("kind", ["bloom", "falcon", "jamba", "mamba", "opt", "RefinedWeb", "nemotron-nas", "vit"])
def test_unread_families_end_in_the_named_error(kind: str) -> None:
    with pytest.raises(InputError, match=f"'{kind}' is not a supported model family.*supported: deepseek_v2"):
        read_config({"model_type": kind, "hidden_size": 64}, "m", "config.json")


def test_every_config_of_the_data_folder_counts_exactly_or_is_refused_by_name(shared_data: Path) -> None:
    folder = shared_data / "hf_configs"
    rows = re.findall(r"^\| (\S+\.json) \| \S+ \| ([\d,]+|-) \|", (folder / "README.md").read_text(), re.M)
    assert len(rows) == 64
    counted, wrong = 0, []
    for file, text in rows:
        kind = json.loads((folder / file).read_text())["model_type"]
        if kind not in families():
            with pytest.raises(InputError, match=re.escape(f"{kind!r} is not a supported model family")) as error:
                load(folder / file)
            assert file in str(error.value)
            continue
        counted += 1
        found = load(folder / file)[0].parameters
        if text == "-" or found != int(text.replace(",", "")):
            wrong.append((file, found, text))
    assert not wrong
    assert counted == 42
