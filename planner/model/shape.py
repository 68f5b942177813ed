"""`from_shape`: a model from bare figures, as tables of published measurements give them."""

from __future__ import annotations

from typing import Any

from hwmodels.errors import Fault, InputError
from planner.model.spec import (
    AnyAttention,
    Attention,
    DecoderLayer,
    LatentAttention,
    Mlp,
    ModelSpec,
    Moe,
    NormKind,
)


def _latent(heads: int, bias: bool, head_dim: int = 128) -> LatentAttention:
    """Latent attention in the proportions of DeepSeek-V2 and V3: a bare shape names only the kind.

    Heads of 128, half of that rotary beside it, latents of 12 (queries) and 4 heads: other heads scale them all.
    Sources: arXiv 2405.04434, section 3.1.2; arXiv 2412.19437, section 4.2.
    """
    return LatentAttention(
        heads, q_lora_rank=12 * head_dim, kv_lora_rank=4 * head_dim, nope_dim=head_dim, rope_dim=max(head_dim // 2, 1),
        v_head_dim=head_dim, qkv_bias=bias,
    )  # fmt: skip


def from_shape(
    *,
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    vocab: int,
    seq_len: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    ffn_hidden: int | None = None,
    gated: bool = False,
    n_experts: int = 0,
    topk: int = 0,
    moe_ffn_hidden: int = 0,
    shared_experts: int = 0,
    shared_ffn_hidden: int = 0,
    n_dense_layers: int = 0,
    attention: str = "",
    learned_positions: bool = True,
    norm: NormKind = "layer",
    bias: bool = True,
    tied: bool = True,
) -> ModelSpec:
    """A decoder from its figures, with the defaults of a Megatron GPT.

    Parameters
    ----------
    seq_len : int
        Also the number of learned positions, where there are any.
    kv_heads, head_dim, ffn_hidden : int, optional
        `heads`, hidden / heads (which must then be whole) and 4 * hidden where left out.
    n_experts, topk, moe_ffn_hidden, shared_experts, n_dense_layers : int
        Mixture of experts after `n_dense_layers` dense layers, with `shared_experts` of the same
        width beside them; `moe_ffn_hidden` 0 means `ffn_hidden`.
    shared_ffn_hidden : int
        Width of the shared experts together, where they are of another width than the routed ones.
    attention : str
        ``"mla"`` is latent attention with the ranks of DeepSeek-V2/V3; anything else (``"mha"``,
        ``"gqa"``, blank) is what `kv_heads` says.
    gated, learned_positions, norm, bias, tied
        Megatron GPT has one matrix in (GELU), learned positions, layer norms, biases, a tied head.

    Raises
    ------
    hwmodels.errors.InputError
        With every figure that is not positive or contradicts another.
    """
    given = dict(locals())
    found = _faults(name, given)
    if found:
        raise InputError(found)
    return ModelSpec(
        name=name,
        family="shape",
        hidden=hidden,
        vocab=vocab,
        layers=_stack(given),
        norm=norm,
        norm_bias=norm == "layer",
        tied_embeddings=tied,
        learned_positions=seq_len if learned_positions else 0,
        max_positions=seq_len,
        source="shape",
        notes=("latent attention in the proportions of DeepSeek-V2/V3",) if _is_latent(attention) else (),
    )


def _is_latent(attention: str) -> bool:
    return attention.strip().lower() == "mla"


def _stack(given: dict[str, Any]) -> tuple[DecoderLayer, ...]:
    """The layers of a sound set of figures: `n_dense_layers` dense ones, then the routed ones."""
    heads, hidden, bias, norm, gated = (given[key] for key in ("heads", "hidden", "bias", "norm", "gated"))
    part: AnyAttention
    if _is_latent(given["attention"]):
        part = _latent(heads, bias, given["head_dim"] or 128)
    else:
        head_dim = hidden // heads if given["head_dim"] is None else given["head_dim"]
        kv = heads if given["kv_heads"] is None else given["kv_heads"]
        part = Attention(heads, kv, head_dim, qkv_bias=bias, out_bias=bias)
    ffn = 4 * hidden if given["ffn_hidden"] is None else given["ffn_hidden"]
    activation = "silu" if gated else "gelu"
    mlp = Mlp(ffn, gated=gated, bias=bias, activation=activation)
    dense = DecoderLayer(part, mlp, norm=norm, norm_bias=norm == "layer")
    if not given["n_experts"]:
        return (dense,) * given["layers"]
    expert = given["moe_ffn_hidden"] or ffn
    moe = Moe(
        given["n_experts"],
        given["topk"],
        expert,
        gated=gated,
        bias=bias,
        activation=activation,
        shared_ffn_hidden=given["shared_ffn_hidden"] or given["shared_experts"] * expert,
    )
    sparse = DecoderLayer(part, moe, norm=norm, norm_bias=norm == "layer")
    leading = given["n_dense_layers"]
    return (dense,) * leading + (sparse,) * (given["layers"] - leading)


def _faults(name: str, given: dict[str, Any]) -> list[Fault]:
    """Figures that cannot be: not positive, or in contradiction with another."""
    found: list[Fault] = []

    def figure(key: str, least: int) -> int:
        value = given[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            found.append(
                Fault(
                    f"is {value!r}",
                    f"{name}: {key}",
                    f"a whole number of at least {least} is expected",
                    f"{key}={max(least, 1)}",
                )
            )
            return max(least, 1)
        return value

    layers, hidden, heads, _, _ = (figure(key, 1) for key in ("layers", "hidden", "heads", "vocab", "seq_len"))
    counts = ("n_experts", "topk", "moe_ffn_hidden", "shared_experts", "shared_ffn_hidden", "n_dense_layers")
    experts, topk, _, _, _, dense = (figure(key, 0) for key in counts)
    optional = {key: figure(key, 1) for key in ("kv_heads", "head_dim", "ffn_hidden") if given[key] is not None}
    if "head_dim" not in optional and hidden % heads:
        found.append(
            Fault(f"{heads} heads do not divide hidden={hidden}", name, "a head is hidden/heads wide", "head_dim=128")
        )
    if heads % optional.get("kv_heads", heads):
        found.append(
            Fault(
                f"{optional['kv_heads']} key-value heads do not divide {heads} heads",
                name,
                "each serves the same number of query heads",
                f"kv_heads={heads}",
            )
        )
    if experts and not 1 <= topk <= experts:
        found.append(
            Fault(
                f"topk={topk} of {experts} experts", name, "a token goes to at least one expert", f"topk=1 to {experts}"
            )
        )
    if dense > layers:
        found.append(
            Fault(f"n_dense_layers={dense} of {layers} layers", name, "they lead the stack", f"at most {layers}")
        )
    return found
