"""Formats of linear layers, optimizer bytes and adapters, as the papers and manuals state them: plain numbers.

Transformer Engine user guide (delayed, current, block and MX scaling), torchao float8 README, DeepSeek-V3
(arXiv 2412.19437, section 3.3), MXFP8 (arXiv 2506.08027), NVFP4 (arXiv 2509.25149), QLoRA (arXiv 2305.14314).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from hwmodels.device import Device
from planner.frameworks import FrameworkPreset
from planner.layout import Layout
from planner.model.spec import DecoderLayer, ModelSpec, Parameter, Weight
from planner.plan import Workload

WIDTH = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0}
NF4 = 0.5 + (1 + 4 / 256) / 64  # 4 bits, a byte for 64 elements, an fp32 number for 256 of those bytes


@dataclass(frozen=True)
class Scaled:
    """A narrow format: its GEMM law, bytes of an element with scales, passes and launches to cast."""

    law: str
    scaling: str
    size: float
    passes: tuple[int, int]  # over an activation, over a weight
    launches: tuple[int, int]


SCALED = {
    "fp8-delayed": Scaled("fp8", "delayed", 1.0, (1, 1), (1, 1)),
    "fp8-current": Scaled("fp8", "current", 1.0, (2, 2), (2, 2)),  # the maximum first
    "fp8-block": Scaled("fp8_block", "block", 1.0 + 4 / 128, (1, 1), (1, 1)),
    "mxfp8": Scaled("mxfp8", "mx", 1.0 + 1 / 32, (1, 1), (1, 1)),
    # both maxima in one pass, rows cast, transformed columns cast
    "nvfp4": Scaled("nvfp4", "nv", 0.5 + 1 / 16, (3, 2), (3, 2)),
}


def compute_of(workload: Workload) -> str:
    """Dtype outside quantised GEMMs."""
    return workload.precision if workload.precision in WIDTH else "bf16"


def scaled_of(workload: Workload, preset: FrameworkPreset) -> Scaled | None:
    """The narrow format of linear layers, or None."""
    name = preset.fp8_recipe if workload.precision == "fp8" else workload.precision
    return SCALED.get(name)


def plain_layers(model: ModelSpec, workload: Workload, preset: FrameworkPreset) -> list[bool]:
    """Which layers stay in the compute dtype: of NVFP4's 62 blocks the first two and the last eight."""
    n = len(model.layers)
    if workload.precision != "nvfp4" or not preset.bf16_ends:
        return [False] * n
    first, last = round(n * 2 / 62), round(n * 8 / 62)
    return [i < first or i >= n - last for i in range(n)]


MOMENTS = {
    "adamw": 8.0, "adamw-bf16": 4.0, "adamw-8bit": 2 * (1 + 4 / 256), "sgd": 0.0, "sgd-momentum": 4.0, "muon": 4.0,
}  # fmt: skip
EAGER = {"sgd": (12, 2), "sgd-momentum": (4 * (2 + 3 + 3), 3), "muon": (4 * (2 + 3 + 3), 3)}
ADAM_EAGER = (4 * (2 + 3 + 2 + 4 + 2 + 2 + 2 + 4), 8)


@dataclass
class Held:
    """Parameters of a stage or layer on one rank, dense or expert: all, untrained, in narrow matrices, Adam's own."""

    all: float = 0.0
    frozen: float = 0.0
    packed: float = 0.0
    other: float = 0.0

    def __add__(self, more: Held) -> Held:
        return Held(*(getattr(self, n) + getattr(more, n) for n in ("all", "frozen", "packed", "other")))

    @property
    def trained(self) -> float:
        return self.all - self.frozen


def elements(p: Parameter, lay: Layout) -> float:
    """Elements of one parameter on one rank before data-parallel sharding."""
    if not isinstance(p, Weight):
        return p.size / lay.tp if p.shard == "column" else float(p.size)
    degree = lay.etp if p.expert else lay.tp
    n_in, n_out = float(p.n_in), float(p.n_out)
    if p.shard == "column":
        n_out = max(n_out / degree, float(min(p.min_out, p.n_out)))
    elif p.shard == "row":
        n_in = n_in / degree
    one = n_in * n_out + (n_out if p.bias else 0.0)
    return one * p.copies / (lay.ep if p.expert else 1)


def _covered(p: Parameter) -> bool:
    """Whether a quantised recipe covers a parameter of a layer."""
    return isinstance(p, Weight) and p.name not in ("router", "shared_expert_gate")


def _bias(p: Parameter, lay: Layout) -> float:
    if not isinstance(p, Weight) or not p.bias:
        return 0.0
    n_out = float(p.n_out)
    if p.shard == "column":
        n_out = max(n_out / (lay.etp if p.expert else lay.tp), float(min(p.min_out, p.n_out)))
    return n_out * p.copies / (lay.ep if p.expert else 1)


def adapter_elements(layer: DecoderLayer, hidden: int, workload: Workload, lay: Layout | None) -> float:
    """Elements of a layer's adapters on one rank, or of the whole (None): r (n_in + n_out) of each GEMM."""
    lora, total = workload.lora, 0.0
    if lora is None:
        return 0.0
    mixer, tp = layer.attention, lay.tp if lay else 1
    groups: dict[str, list[Weight]] = {}
    for p in layer.parameters(hidden):
        if isinstance(p, Weight) and _covered(p) and not p.expert:
            groups.setdefault(p.fused_with or p.name, []).append(p)
    for name, members in groups.items():
        attention = mixer is not None and members[0] in mixer.parameters(hidden)
        if attention:
            module = "o" if name == "o" else "qkv"
        else:
            module = "down" if name.endswith("down") else "up"
        if module not in lora.modules:
            continue
        first = members[0]
        total += lora.rank * (first.n_in / tp if first.shard == "row" else first.n_in)
        for p in members:
            cut = max(p.n_out / tp, float(min(p.min_out, p.n_out))) if p.shard == "column" else float(p.n_out)
            total += lora.rank * cut
    return total


def held_by_layer(layer: DecoderLayer, hidden: int, workload: Workload, lay: Layout, plain: bool) -> tuple[Held, Held]:
    """(dense, expert) parameters of one layer."""
    dense, expert = Held(), Held()
    for p in layer.parameters(hidden):
        n = elements(p, lay)
        matrix = n - _bias(p, lay) if _covered(p) else 0.0
        packed = 0.0 if plain else matrix
        if isinstance(p, Weight) and p.expert:
            expert += Held(n, 0.0, packed, 0.0)
        else:
            dense += Held(n, 0.0, packed, n - matrix)
    if workload.lora is not None:
        frozen, frozen_expert = dense.all, expert.all
        dense = Held(frozen + adapter_elements(layer, hidden, workload, lay), frozen, dense.packed, 0.0)
        expert = Held(frozen_expert, frozen_expert, expert.packed, 0.0)
    return dense, expert




_PEAKS = {"nvfp4": "fp4", "fp8_block": "fp8", "mxfp8": "fp8", "fp16": "bf16"}


def hot_flop_s(device: Device, law: str) -> float:
    """FLOP/s that the board power feeds, at what the generation gets out of a joule; else nine tenths of the peak."""
    if device.kind == "cpu":
        return float("inf")
    name = _PEAKS.get(law, law)
    known = device.coefficients.get(f"power.{name}.flop_per_j")
    return known.value * device.tdp_w if known else device.peak(name) / 1.1


def summed(tokens: float, law: str) -> float:
    """Tokens that a weight gradient sums over, as a GEMM law takes them: whole rows of 16 bytes.

    Its operands lie token by token, so their number aligns nothing; the law, which reads A along the sum, must not
    take an odd number for an unaligned row.
    """
    bits = 4 if "fp4" in law else 8 if "8" in law else 16 if law.endswith("16") else 32
    return ceil(tokens * bits / 128) * 128 / bits
