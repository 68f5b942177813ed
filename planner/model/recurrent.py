"""Sequence mixers with a recurrent state instead of keys and values: Mamba, Mamba-2 and the gated delta rule."""

from __future__ import annotations

from hwmodels.records import dataclass
from planner.model.weights import Parameter, Vector, Weight


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Selective state space of Mamba (arXiv 2312.00752): one state of `d_state` for each of `d_inner` channels.

    Parameters as in ``MambaMixer`` of transformers 5.24.0. Tensor parallelism splits the channels: in and dt
    projections by columns, x and out projections by rows (vLLM ``mamba_mixer.py``; Megatron-Core has Mamba-2 alone).

    Attributes
    ----------
    d_conv : int
        Taps of the causal depthwise convolution.
    dt_rank : int
        Rank of the step-size projection.
    conv_bias, bias : bool
        Of the convolution; of the in and out projections.
    inner_norms : bool
        RMS norms of step size, B and C (Jamba).
    """

    d_inner: int
    d_state: int
    d_conv: int
    dt_rank: int
    conv_bias: bool = True
    bias: bool = False
    inner_norms: bool = False

    @property
    def split(self) -> tuple[int, ...]:
        """Counts that a tensor-parallel degree has to divide."""
        return (self.d_inner,)

    @property
    def state_elements(self) -> int:
        """Elements of the state and of the convolution's window of one sequence."""
        return self.d_inner * (self.d_state + self.d_conv)

    def parameters(self, hidden: int) -> tuple[Parameter, ...]:
        """Weights and vectors for a residual width of `hidden`."""
        inner, state = self.d_inner, self.d_state
        norms: tuple[Parameter, ...] = (Vector("inner_norms", self.dt_rank + 2 * state),) if self.inner_norms else ()
        return (
            Weight("in", hidden, 2 * inner, "column", self.bias),
            Vector("conv", inner * (self.d_conv + self.conv_bias), "column"),
            Weight("x", inner, self.dt_rank + 2 * state, "row"),
            Weight("dt", self.dt_rank, inner, "column", True),
            Vector("a_log", inner * state, "column"),
            Vector("d", inner, "column"),
            *norms,
            Weight("o", inner, hidden, "row", self.bias),
        )


@dataclass(frozen=True, slots=True)
class Mamba2:
    """State-space duality of Mamba-2 (arXiv 2405.21060): a state of head_dim x `d_state` for each head.

    Parameters as in ``NemotronHMamba2Mixer`` and Megatron-Core ``MambaMixer``: one input projection to gate z, x,
    B and C of each group, and a step size a head. Tensor parallelism splits heads and groups.

    Attributes
    ----------
    n_groups : int
        Groups of heads that share B and C.
    chunk : int
        Tokens of a block of the scan.
    """

    n_heads: int
    head_dim: int
    n_groups: int
    d_state: int
    d_conv: int
    chunk: int = 256
    conv_bias: bool = True
    bias: bool = False

    @property
    def d_inner(self) -> int:
        """Features of all heads."""
        return self.n_heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.d_inner + 2 * self.n_groups * self.d_state

    @property
    def split(self) -> tuple[int, ...]:
        """Counts that a tensor-parallel degree has to divide (Megatron-Core ``MambaMixer.__init__``)."""
        return (self.n_heads, self.n_groups)

    @property
    def state_elements(self) -> int:
        """Elements of the state and of the convolution's window of one sequence."""
        return self.d_inner * self.d_state + self.conv_dim * self.d_conv

    def parameters(self, hidden: int) -> tuple[Parameter, ...]:
        """Weights and vectors for a residual width of `hidden`."""
        return (
            Weight("in", hidden, self.d_inner + self.conv_dim + self.n_heads, "column", self.bias),
            Vector("conv", self.conv_dim * (self.d_conv + self.conv_bias), "column"),
            Vector("dt_bias_a_d", 3 * self.n_heads, "column"),
            Vector("gated_norm", self.d_inner, "column"),
            Weight("o", self.d_inner, hidden, "row", self.bias),
        )


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated delta rule (arXiv 2412.06464): a state of key_dim x value_dim for each value head.

    Parameters as in ``Qwen3NextGatedDeltaNet`` of transformers 5.24.0 and Megatron-Core ``GatedDeltaNet``: one input
    projection to q, k, v, the output gate, and a decay and a step size for each value head.

    Attributes
    ----------
    chunk : int
        Tokens of a block (64 in flash-linear-attention ``chunk_gated_delta_rule``).
    """

    n_key_heads: int
    n_value_heads: int
    key_dim: int
    value_dim: int
    d_conv: int
    chunk: int = 64

    @property
    def d_inner(self) -> int:
        """Features of all value heads."""
        return self.n_value_heads * self.value_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: q, k and v."""
        return 2 * self.n_key_heads * self.key_dim + self.d_inner

    @property
    def split(self) -> tuple[int, ...]:
        """Counts that a tensor-parallel degree has to divide."""
        return (self.n_key_heads, self.n_value_heads)

    @property
    def state_elements(self) -> int:
        """Elements of the state and of the convolution's window of one sequence."""
        return self.n_value_heads * self.key_dim * self.value_dim + self.conv_dim * self.d_conv

    def parameters(self, hidden: int) -> tuple[Parameter, ...]:
        """Weights and vectors for a residual width of `hidden`."""
        return (
            Weight("in", hidden, self.conv_dim + self.d_inner + 2 * self.n_value_heads, "column"),
            Vector("conv", self.conv_dim * self.d_conv, "column"),
            Vector("dt_bias_a", 2 * self.n_value_heads, "column"),
            Vector("gated_norm", self.value_dim),
            Weight("o", self.d_inner, hidden, "row"),
        )


Recurrent = Mamba1 | Mamba2 | DeltaNet
