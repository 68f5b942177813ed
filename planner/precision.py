"""Precision recipes of training, as data: which GEMMs run in which format, and what that costs around them.

A recipe says what a linear layer of a decoder block does in forward, input gradient and weight
gradient; how its operands are scaled, and so which kernels read and write them; and what is kept
of them. Embedding, output head, router, norms and the attention core stay in the compute dtype in
every recipe (Transformer Engine user guide, "Using FP8"; DeepSeek-V3, arXiv 2412.19437, section
3.3.1; NVIDIA, arXiv 2509.25149, section 3). Which copies stay resident and what travels between
ranks in the narrow format are switches of the framework (`planner.frameworks`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Literal

from hwmodels.device import Device
from hwmodels.errors import Fault, InputError
from hwmodels.kernels.formats import format_of
from hwmodels.records import dataclass
from planner.frameworks import FrameworkPreset
from planner.model.spec import ModelSpec
from planner.training import Workload

Scaling = Literal["none", "delayed", "current", "block", "mx", "nv"]
SCALINGS: tuple[str, ...] = ("none", "delayed", "current", "block", "mx", "nv")

BYTES: dict[str, float] = {
    **{name: format_of(name).activation_bytes for name in (
        "fp32", "tf32", "bf16", "fp16", "fp8", "fp8_block", "mxfp8", "nvfp4", "int8",
    )},
    "nf4": 0.5 + (1.0 + 4.0 / 256.0) / 64.0,
}  # fmt: skip
"""Bytes of one element with its share of the scales (`hwmodels.kernels.formats`): one fp32 for 1x128 elements
(DeepSeek-V3, section 3.3.2), one E8M0 byte for 32 (OCP Microscaling Formats v1.0), one E4M3 byte for 16 (NVFP4);
nf4 with doubly quantised constants, an 8-bit one for 64 elements and an fp32 one for 256 of those (QLoRA, arXiv
2305.14314, section 3)."""

@dataclass(frozen=True, slots=True)
class Recipe:
    """How training computes. Checked when built.

    Attributes
    ----------
    name : str
    compute : str
        Dtype of everything outside quantised GEMMs: activations, norms, attention, collectives.
    forward, input_gradient, weight_gradient : str
        Operand format of the three GEMMs of a linear layer of a decoder block.
    scaling : {'none', 'delayed', 'current', 'block', 'mx', 'nv'}
        none: no quantised operand. delayed: one scale a tensor from the history of its maxima.
        current: one scale a tensor from its own maximum. block: 1x128 activations, 128x128 weights.
        mx: 32 elements share a power of two. nv: 16 elements share an E4M3 scale, under one a tensor.
    block : int
        What a shard's features must be a multiple of, for blocks (or the tensor cores' alignment) to be whole.
    activation_reads, activation_kernels : float
        Passes over an activation or gradient in the compute dtype, and launches, to quantise it.
    weight_reads, weight_kernels : float
        The same for a weight.
    copies : float
        Quantised copies of an operand: one along its rows, one along its columns for the GEMM that
        contracts the other dimension.
    first_share, last_share : float
        Share of the layers at either end whose linear layers stay in the compute dtype.
    needs : tuple of str
        Formats whose peaks the device's datasheet must list.
    hardware : str
        What of a device these formats stand for, where it is not themselves.
    fallback : tuple of str
        Recipes to try where the device has not got them, the nearest first.
    source : str
    """

    name: str
    compute: str
    forward: str
    input_gradient: str
    weight_gradient: str
    scaling: Scaling = "none"
    block: int = 1
    activation_reads: float = 0.0
    activation_kernels: float = 0.0
    weight_reads: float = 0.0
    weight_kernels: float = 0.0
    copies: float = 2.0
    first_share: float = 0.0
    last_share: float = 0.0
    needs: tuple[str, ...] = ()
    hardware: str = ""
    fallback: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        where, faults = f"recipe {self.name}", []
        formats = {key: getattr(self, key) for key in ("compute", "forward", "input_gradient", "weight_gradient")}
        faults += [
            Fault(f"{key} is {form!r}", where, "", "one of " + ", ".join(BYTES))
            for key, form in formats.items()
            if form not in BYTES
        ]
        if self.scaling not in SCALINGS:
            faults.append(Fault(f"scaling is {self.scaling!r}", where, "", "one of " + ", ".join(SCALINGS)))
        if self.block < 1:
            faults.append(Fault(f"block is {self.block}", where, "a block holds an element", "1 or more"))
        if not (self.first_share >= 0 and self.last_share >= 0 and self.first_share + self.last_share <= 1):
            faults.append(Fault("the shares of the layers at the ends exceed the whole", where, "", "0.03 and 0.13"))
        if faults:
            raise InputError(faults)

    @property
    def quantised(self) -> bool:
        """Whether linear layers compute in a scaled format."""
        return self.scaling != "none"

    @property
    def tensor_wide(self) -> bool:
        """Whether one scale covers a tensor, so that its transpose holds the same quantised values."""
        return self.scaling in ("delayed", "current")

    @property
    def width(self) -> float:
        """Bytes of an element of the compute dtype."""
        return BYTES[self.compute]

    @property
    def element_bytes(self) -> float:
        """Bytes of an element of one quantised copy, scales included (the compute width where there is none)."""
        return BYTES[self.forward] if self.quantised else self.width

    @property
    def saved_bytes(self) -> float:
        """Bytes of an element of a linear layer's input as the weight gradient finds it again."""
        return BYTES[self.weight_gradient] if self.quantised else self.width

    def plain(self) -> Recipe:
        """The same without quantised GEMMs: what embedding, head and router compute in."""
        return recipe(self.compute)

    def keeping_ends(self, ends: bool) -> Recipe:
        """Without the layers at the ends in the compute dtype, unless `ends`."""
        return self if ends else replace(self, first_share=0.0, last_share=0.0)


def _plain(name: str, source: str, fallback: tuple[str, ...] = ()) -> Recipe:
    return Recipe(name, name, name, name, name, needs=(name,), fallback=fallback, source=source)


def _scaled(name: str, form: str, scaling: Scaling, reads: tuple[float, float], kernels: tuple[float, float],
            block: int, fallback: tuple[str, ...], source: str, needs: tuple[str, ...]) -> Recipe:  # fmt: skip
    return Recipe(
        name, "bf16", form, form, form, scaling, block, reads[0], kernels[0], reads[1], kernels[1],
        needs=("bf16", *needs), fallback=fallback, source=source,
    )  # fmt: skip


_MICIKEVICIUS = "Micikevicius et al. 2018, Mixed Precision Training (arXiv 1710.03740): fp32 main weights"
_RECIPES: dict[str, Recipe] = {
    r.name: r
    for r in (
        _plain("fp32", "IEEE single precision everywhere"),
        _plain("tf32", "PyTorch documentation, CUDA semantics: fp32 tensors, products in TF32", ("fp32",)),
        _plain("bf16", _MICIKEVICIUS + ", with bf16 in the place of fp16 and no loss scaling", ("fp16", "fp32")),
        _plain("fp16", _MICIKEVICIUS + ", loss scaling", ("fp32",)),
        _scaled(
            "fp8-delayed", "fp8", "delayed", (1.0, 1.0), (1.0, 1.0), 16, ("bf16", "fp16", "fp32"),
            "Transformer Engine user guide, DelayedScaling: scale from the maxima of earlier steps, so that one kernel "
            "casts, transposes and records the maximum; shapes are multiples of 16",
            ("fp8",),
        ),
        _scaled(
            "fp8-current", "fp8", "current", (2.0, 2.0), (2.0, 2.0), 16, ("bf16", "fp16", "fp32"),
            "Transformer Engine user guide, Float8CurrentScaling, and torchao float8 README (dynamic tensorwise): a "
            "pass for the maximum comes before the cast; shapes are multiples of 16",
            ("fp8",),
        ),
        _scaled(
            "fp8-block", "fp8_block", "block", (1.0, 1.0), (1.0, 1.0), 128, ("fp8-current", "bf16", "fp16", "fp32"),
            "DeepSeek-V3 (arXiv 2412.19437) section 3.3.2: 1x128 tiles of activations, 128x128 blocks of weights, all "
            "three GEMMs in E4M3; Transformer Engine Float8BlockScaling",
            ("fp8_block",),
        ),
        replace(_scaled(
            "mxfp8", "mxfp8", "mx", (1.0, 1.0), (1.0, 1.0), 32, ("fp8-block", "fp8-current", "bf16", "fp16", "fp32"),
            "Mishra et al. 2025, Recipes for Pre-training LLMs with MXFP8 (arXiv 2506.08027): weights, activations and "
            "gradients in E4M3 along rows and along columns; Transformer Engine MXFP8BlockScaling",
            ("mxfp8", "mxfp4"),
        ), hardware="tensor cores that scale blocks of 32, which came with the 4-bit formats"),
        replace(
            _scaled(
                "nvfp4", "nvfp4", "nv", (3.0, 2.0), (3.0, 2.0), 16,
                ("mxfp8", "fp8-block", "fp8-current", "bf16", "fp16", "fp32"),
                "NVIDIA 2025, Pretraining Large Language Models with NVFP4 (arXiv 2509.25149): 16x16 blocks of "
                "weights, 1x16 of the rest; the first two and last eight of 62 blocks in bf16; gradients rounded "
                "stochastically (in the casting kernel); a 16-point random Hadamard transform on both operands of the "
                "weight gradient. A tensor-wide scale asks for the maximum first, of the plain and of the transformed "
                "tensor in one pass; rows and transformed columns are cast by a kernel each (Transformer Engine, "
                "common/hadamard_transform)",
                ("nvfp4",),
            ),
            first_share=2.0 / 62.0,
            last_share=8.0 / 62.0,
        ),
    )
}  # fmt: skip

FRAMEWORKS_OWN = "fp8"
"""Spelling of "8 bits, in the framework's own recipe" (`FrameworkPreset.fp8_recipe`)."""


def names() -> tuple[str, ...]:
    """Every spelling of `precision`."""
    return (*_RECIPES, FRAMEWORKS_OWN)


def recipe(name: str, framework_fp8: str = "fp8-delayed", *, ends: bool = True) -> Recipe:
    """The recipe called `name`.

    Parameters
    ----------
    framework_fp8 : str
        What ``"fp8"`` means in the framework.
    ends : bool
        Whether a recipe's layers at either end keep the compute dtype.

    Raises
    ------
    hwmodels.errors.InputError
        For an unknown name, with the known ones.
    """
    found = _RECIPES.get(framework_fp8 if name == FRAMEWORKS_OWN else name)
    if found is None:
        raise InputError(Fault(f"unknown precision {name!r}", "precision", "", "one of " + ", ".join(names())))
    return found.keeping_ends(ends)


def recipe_of(workload: Workload, preset: FrameworkPreset) -> Recipe:
    """The recipe of a workload in a framework; raises as `recipe`."""
    return recipe(workload.precision, preset.fp8_recipe, ends=preset.bf16_ends)


def gradient_dtype(workload: Workload, preset: FrameworkPreset) -> str:
    """Dtype in which gradients accumulate and are reduced: what the workload asks for, else the framework's."""
    return workload.grad_dtype or preset.gradient_dtype(recipe_of(workload, preset).compute)


def missing_formats(wanted: Recipe, device: Device) -> tuple[str, ...]:
    """Formats that a recipe computes in and the device does not."""
    return tuple(form for form in wanted.needs if format_of(form).peak not in device.peak_flops)


RULES: dict[str, str] = {
    "precision-device": "The device computes in every format of the precision.",
    "framework-precision": "The framework has the quantised recipe.",
    "main-copy": "A 16-bit main copy completes or replaces one beside 16-bit weights, which the framework keeps.",
    "thd-unfused": "Documents without padding need a fused attention kernel.",
    "lora-base": "A 4-bit base of adapters is unpacked to 16 bits: no quantised precision.",
}
"""Identifier that a fault of `workload_faults` or `device_faults` carries -> its sentence."""


def device_faults(wanted: Recipe, device: Device) -> list[Fault]:
    """Whether the device computes in every format of a recipe; names the nearest recipe that it runs."""
    missing = missing_formats(wanted, device)
    if not missing:
        return []
    fits = [name for name in wanted.fallback if not missing_formats(_RECIPES[name], device)]
    why = f"{device.name} computes in {', '.join(device.peak_flops)}"
    fix = f"precision {fits[0]}" if fits else "another device"
    what = f"precision {wanted.name} needs {wanted.hardware or ' and '.join(missing)}"
    return [Fault(what, "precision", why, fix, "precision-device")]


def workload_faults(workload: Workload, preset: FrameworkPreset, where: str = "workload") -> list[Fault]:
    """What of a workload contradicts itself or its framework, whatever the layout and the device.

    Raises
    ------
    hwmodels.errors.InputError
        For an unknown precision.
    """
    wanted, found = recipe_of(workload, preset), []
    if wanted.quantised and wanted.scaling not in preset.scalings:
        what, why = f"precision {wanted.name}", f"{preset.name} has no such recipe"
        fix = f"precision {wanted.compute}, or framework megatron"
        found.append(Fault(what, f"{where}.precision", why, fix, "framework-precision"))
    if workload.main_dtype != "fp32":
        what, spot = f"main_dtype {workload.main_dtype}", f"{where}.main_dtype"
        if wanted.width == BYTES["fp32"]:
            why = f"precision {wanted.name} has one copy of the weights, in fp32"
            found.append(Fault(what, spot, why, "main_dtype fp32", "main-copy"))
        elif workload.main_dtype == "remainder" and not preset.compute_copy:
            why = f"{preset.name} keeps no 16-bit copy of the weights that a remainder could complete"
            found.append(Fault(what, spot, why, "main_dtype fp32 or bf16", "main-copy"))
    thd = workload.documents is not None and workload.documents.batching == "thd"
    if thd and preset.attention.startswith("unfused"):
        why = f"{preset.name} runs unfused attention, which masks whole sequences of one length"
        fix = "batching padded, or a framework with fused attention"
        found.append(Fault("documents without padding", f"{where}.documents.batching", why, fix, "thd-unfused"))
    if workload.lora is not None and workload.lora.base and wanted.quantised:
        what, why = f"base {workload.lora.base} with precision {wanted.name}", "a 4-bit base is unpacked to 16 bits"
        fix = f"precision {wanted.compute}, or no base"
        found.append(Fault(what, f"{where}.lora.base", why, fix, "lora-base"))
    return found


def require(workload: Workload, preset: FrameworkPreset, device: Device) -> None:
    """Raise `InputError` with everything that keeps a workload from a framework or a device."""
    found = [*workload_faults(workload, preset), *device_faults(recipe_of(workload, preset), device)]
    if found:
        raise InputError(found)


@lru_cache(maxsize=256)
def with_plain_ends(model: ModelSpec, wanted: Recipe) -> ModelSpec:
    """The model with the layers marked that a recipe leaves in the compute dtype.

    Shares of the layers are rounded to the nearest whole layer at either end.
    """
    n = model.n_layers
    first, last = round(wanted.first_share * n), round(wanted.last_share * n)
    if not wanted.quantised or first + last == 0:
        return model
    layers = [
        replace(layer, high_precision=True) if i < first or i >= n - last else layer
        for i, layer in enumerate(model.layers)
    ]
    return replace(model, layers=tuple(layers))
