"""Parameter counts of the catalog and of every config in the data folder.

The expected counts are those of the transformers 5.24.0 classes, instantiated without weights
(each shared tensor once), as `hf_configs/README.md` in the data folder lists them. They stand
here as numbers so that this test cannot be skipped.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hwmodels.errors import InputError
from planner.model import load, names, read_config

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
    "bloom-176b": 176_247_271_424,
    "command-r-v01": 34_980_831_232,
    "dbrx-132b": 131_596_523_520,
    "falcon-40b": 41_303_293_952,
    "falcon-7b": 6_921_720_704,
    "glm-4.5": 352_797_814_784,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-120b": 116_829_156_672,
    "gpt_bigcode-1b": 1_124_886_528,
    "jamba": 51_570_323_328,
    "llama-4-scout-17b-16e": 107_769_861_120,
    "mamba-2.8b": 2_768_345_600,
    "nemotron-h-56b": 56_324_350_464,
    "olmo2-13b": 13_716_198_400,
    "olmo2-7b": 7_298_617_344,
    "opt-66b": 65_719_701_504,
    "qwen3-vl-30b-a3b": 31_070_754_032,
    "starcoder2-7b": 7_173_923_840,
    "vit-base": 85_800_194,
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
    # Text as the library counts it (34_660_610_688), and the tower: a layer of 1152 with q, k, v, o and two MLP
    # matrices of 4304, biases, two norms; patches 2*16*16*3; 2304 positions; a merger of 4608 to 4608 and 2048.
    "qwen3.5-35b-a3b": 34_660_610_688
    + 27 * (4 * (1152 * 1152 + 1152) + 2 * 1152 * 4304 + 4304 + 1152 + 4 * 1152)
    + (1536 * 1152 + 1152 + 2304 * 1152)
    + (2 * 1152 + 4608 * 4608 + 4608 + 4608 * 2048 + 2048),
    # Experts of three 6144 x 32768 matrices, a router of 8, q and o 6144², k and v 1024 wide, four norms; tied.
    "grok-1-314b": 64 * (8 * 3 * 6144 * 32768 + 6144 * 8 + 2 * 6144**2 + 2 * 6144 * 1024 + 4 * 6144)
    + 131072 * 6144
    + 6144,
    # BertForMaskedLM: tables of 30522, 512 and 2 rows and their norm; a layer of 4 h² + 4 h, two matrices of 3072,
    # two norms; the head's dense layer and norm, and its bias.
    "bert-base": (30522 + 512 + 2) * 768
    + 2 * 768
    + 12 * (4 * 768**2 + 4 * 768 + 2 * 768 * 3072 + 3072 + 768 + 4 * 768)
    + (768**2 + 768 + 2 * 768 + 30522),
    # NeMo's Nemotron configs with 256,000 tokens: q and o, k and v, two matrices, two layer norms with biases; untied.
    # Reports: 3.2 + 12.5 and 9.4 + 331.6 billion (arXiv 2402.16819, 2406.11704, table 1).
    "nemotron3-8b": 32 * (4 * 4096**2 + 2 * 4096 * 16384 + 4 * 4096) + 2 * 256000 * 4096 + 2 * 4096,
    "nemotron3-22b": 40 * (4 * 6144**2 + 2 * 6144 * 24576 + 4 * 6144) + 2 * 256000 * 6144 + 2 * 6144,
    "nemotron4-15b": 32 * (2 * 6144**2 + 2 * 6144 * 1024 + 2 * 6144 * 24576 + 4 * 6144) + 2 * 256000 * 6144 + 2 * 6144,
    "nemotron4-340b": 96 * (2 * 18432**2 + 2 * 18432 * 1536 + 2 * 18432 * 73728 + 4 * 18432)
    + 2 * 256000 * 18432
    + 2 * 18432,
    # q and o 512², k and v 512*256, MLP 3*512*1376, two norms; untied tables of 4096 rows; final norm.
    "tiny-llama": 4 * (2 * 512**2 + 2 * 512 * 256 + 3 * 512 * 1376 + 2 * 512) + 2 * 4096 * 512 + 512,
}


def test_unequal_blocks_count_by_hand() -> None:
    # Nemotron-Super: q and o 8192², k and v 1024 wide behind a norm; three matrices of 2/3 ffn_mult x 8192, rounded up
    # to 256, behind another; what is no_op is absent with its norm. Untied tables of 128256 rows, final norm.
    total = 2 * 128256 * 8192 + 8192
    for block in load("nemotron-super-49b")[1]["block_configs"]:
        if not block["attention"].get("no_op"):
            total += 2 * 8192**2 + 2 * 8192 * 1024 + 8192
        if not block["ffn"].get("no_op"):
            width = int(2 * block["ffn"]["ffn_mult"] * 8192 / 3)
            total += 3 * 8192 * (width + -width % 256) + 8192
    assert load("nemotron-super-49b")[0].parameters == total


def test_every_catalog_entry_has_an_expected_count() -> None:
    assert set(names()) == set(COUNTS) | set(BY_HAND) | {"nemotron-super-49b"}


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_catalog_counts_equal_the_library(name: str) -> None:
    spec, config = load(name)
    assert spec.parameters == COUNTS[name]
    assert spec.name == name
    assert config["_source"]


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_catalog_counts_equal_hand_arithmetic(name: str) -> None:
    assert load(name)[0].parameters == BY_HAND[name]


@pytest.mark.parametrize("kind", ["rwkv", "t5", "whisper", "qwen3_omni_moe"])
def test_unread_families_end_in_the_named_error(kind: str) -> None:
    with pytest.raises(InputError, match=f"'{kind}' is not a supported model family.*supported: RefinedWeb"):
        read_config({"model_type": kind, "hidden_size": 64}, "m", "config.json")


def test_every_config_of_the_data_folder_counts_exactly(shared_data: Path) -> None:
    folder = shared_data / "hf_configs"
    rows = re.findall(r"^\| (\S+\.json) \| \S+ \| ([\d,]+|-) \|", (folder / "README.md").read_text(), re.M)
    assert len(rows) == 64
    wrong = []
    for file, text in rows:
        spec = load(folder / file)[0]
        if text == "-":  # no class of the library: Grok-1 and Nemotron-Super by their names
            near = {"grok-1-314b.json": 314e9, "llama-3_3-nemotron-super-49b.json": 49e9}[file]
            assert spec.parameters == pytest.approx(near, rel=0.02)
            continue
        # the class that counted Qwen3.5 is that of its text model
        found = spec.parameters - (spec.frozen_parameters if spec.family == "qwen3_5_moe" else 0)
        if found != int(text.replace(",", "")):
            wrong.append((file, found, text))
    assert not wrong
