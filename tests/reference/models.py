"""Small models of each kind of layer, made for these tests."""

from __future__ import annotations

from planner.model.spec import (
    Attention,
    DecoderLayer,
    DeltaNet,
    Mamba1,
    Mamba2,
    Mlp,
    ModelSpec,
    Moe,
    PatchEmbedding,
    VisionTower,
    Weight,
)

H, VOCAB = 512, 4096


def hybrid() -> ModelSpec:
    """Mamba-2 (8 heads of 128 in 4 groups), MLP and attention layers of one part each, as Nemotron-H has them."""
    m = DecoderLayer(Mamba2(8, 128, 4, 64, 4, 128), None, n_norms=1)
    f = DecoderLayer(None, Mlp(2048, gated=False, activation="relu2"), n_norms=1)
    a = DecoderLayer(Attention(8, 4, 64, rotary=False), None, n_norms=1)
    return ModelSpec("hybrid", "nemotron_h", H, VOCAB, (m, f, m, f, a, f, m, f))


def jamba() -> ModelSpec:
    """Mamba layers with MLP or experts behind, and one of attention, as Jamba has them."""
    scan, attention = Mamba1(1024, 16, 4, 32, inner_norms=True), Attention(8, 4, 64, rotary=False)
    mlp, moe = Mlp(1024), Moe(8, 2, 1024)
    layers = tuple(DecoderLayer(attention if i == 2 else scan, moe if i % 2 else mlp) for i in range(4))
    return ModelSpec("jamba-like", "jamba", H, VOCAB, layers)


def delta() -> ModelSpec:
    """Gated delta rule and gated attention, routed with a gated shared expert, as Qwen3-Next has them."""
    rule = DeltaNet(4, 8, 64, 128, 4)
    attention = Attention(8, 2, 64, qk_norm="head", gated=True)
    moe = Moe(8, 2, 256, shared_ffn_hidden=256, shared_gate=True)
    layers = tuple(DecoderLayer(attention if i % 4 == 3 else rule, moe) for i in range(4))
    return ModelSpec("delta", "qwen3_next", H, VOCAB, layers, rotary_fraction=0.25)


def mixed() -> ModelSpec:
    """Chunked layers with a capped window between, attention sinks, two norms beside each other, unit norms."""
    chunked = Attention(8, 2, 64, chunk=256, qk_norm="unit")
    window = Attention(8, 2, 64, window=128, sinks=True, softcap=True)
    layers = (DecoderLayer(chunked, Mlp(1024)), DecoderLayer(window, Mlp(1024), parallel=True))
    return ModelSpec("mixed", "llama4", H, VOCAB, layers * 2)


def vit() -> ModelSpec:
    """An encoder over 255 patches of 16 pixels and a class token."""
    a = Attention(8, 8, 64, qkv_bias=True, out_bias=True, causal=False, rotary=False)
    layer = DecoderLayer(a, Mlp(2048, False, True, "gelu"), norm="layer", norm_bias=True)
    patches = PatchEmbedding(3, 16, 255, 255, class_token=True)
    return ModelSpec(
        "vit-like", "vit", H, 0, (layer,) * 4, norm="layer", norm_bias=True, learned_positions=256,
        patches=patches, n_classes=1000,
    )  # fmt: skip


def bert() -> ModelSpec:
    """A masked language model with the norms of BERT."""
    a = Attention(8, 8, 64, qkv_bias=True, out_bias=True, causal=False, rotary=False)
    layer = DecoderLayer(a, Mlp(2048, False, True, "gelu"), norm="layer", norm_bias=True)
    return ModelSpec(
        "bert-like", "bert", H, VOCAB, (layer,) * 4, norm="layer", norm_bias=True, tied_embeddings=True,
        head_bias=True, learned_positions=1024, embedding_norm=True, final_norm=False, segments=2, head_transform=True,
    )  # fmt: skip


def seeing() -> ModelSpec:
    """A text model behind a tower over 64 patches, whose projector makes 16 tokens of them."""
    a = Attention(4, 4, 64, qkv_bias=True, out_bias=True, causal=False, rotary=False)
    tower = VisionTower(
        256, 3, a, Mlp(1024, False, True, "gelu"), PatchEmbedding(3, 16, 64, 64), 512, 4,
        (Weight("fc1", 1024, 1024, "column", True), Weight("fc2", 1024, H, "row", True)), 2, 512,
    )  # fmt: skip
    layer = DecoderLayer(Attention(8, 4, 64), Mlp(1024))
    return ModelSpec("seeing", "llama", H, VOCAB, (layer,) * 4, vision=tower)


SMALL = {
    "seeing": seeing, "vit-like": vit, "bert-like": bert, "hybrid": hybrid, "jamba-like": jamba, "delta": delta,
    "mixed": mixed,
}  # fmt: skip
