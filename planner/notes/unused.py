"""Stated switches and modules that change nothing here, and names of kernels that nobody measured: said, not silent."""

from __future__ import annotations

from hwmodels.kernels.attention.coefficients import known, nearest
from hwmodels.kernels.formats import format_of
from planner.layout import Layout
from planner.model.spec import Moe
from planner.precision import recipe_of
from planner.priced import PricedModel
from planner.workload.recompute import own_norms


def unused_notes(priced: PricedModel, layout: Layout) -> list[str]:
    """What a run states without effect on this model and layout, with why, and what an unmeasured kernel is priced as.

    A switch to what the framework does anyway is no matter of the model, and is not named.
    """
    return [*_expert_switches(priced), *_fused_norms(priced, layout), *_implementations(priced)]


def _expert_switches(priced: PricedModel) -> list[str]:
    """Switches of expert layers where there are none, or of shared experts where there are none."""
    model, stated = priced.model, [name for name, _ in priced.workload.switches]
    experts = [layer.ffn for layer in model.layers if isinstance(layer.ffn, Moe)]
    if not experts:
        named = [name for name in stated if name.startswith("moe_") or name == "etp_follows_tp"]
        return [f"no effect: {', '.join(named)}; {model.name} has no experts"] if named else []
    if "moe_shared_overlap" in stated and not any(ffn.shared_ffn_hidden for ffn in experts):
        return [f"no effect: moe_shared_overlap; {model.name} has no shared experts"]
    return []


def _fused_norms(priced: PricedModel, layout: Layout) -> list[str]:
    """``layernorm`` among the recomputed modules where no norm is a module of its own."""
    if layout.recompute != "selective" or "layernorm" not in layout.recompute_modules:
        return []
    preset = priced.preset
    if any(own_norms(layer, preset.norm_in_linear) for layer in priced.model.layers):
        return []
    why = f"{preset.name} fuses every norm into the projection behind it" if preset.norm_in_linear else (
        f"{priced.model.name} has no norm before attention or a feed-forward"
    )  # fmt: skip
    other = "; --switch norm_in_linear=false makes them modules of their own" if preset.norm_in_linear else ""
    return [f"no effect: recompute module layernorm; {why}{other}"]


def _implementations(priced: PricedModel) -> list[str]:
    """Stated implementations without a measurement on the generation of the device, and what stands in."""
    device, preset, stated = priced.cluster.device, priced.preset, dict(priced.workload.switches)
    if device.kind != "gpu":
        return []
    found = []
    if "attention_impl" in stated and preset.attention != "flash":
        found.append(f"no effect: attention_impl; attention is {preset.attention}, without a fused kernel")
    elif "attention_impl" in stated and preset.attention_impl != "flash":
        measured = known(device, "forward")
        if preset.attention_impl not in measured:
            near = nearest(preset.attention_impl, measured)
            stands = f"as {near}" if near else f"as the reference kernel of {device.generation}"
            others = ", ".join(["flash", *sorted(filter(None, measured))])
            found.append(
                f"attention_impl {preset.attention_impl}: not measured on {device.generation}, priced {stands} with a "
                f"wider interval (measured: {others})"
            )
    if "gemm_impl" in stated:
        form = format_of(recipe_of(priced.workload, preset).forward)
        names = {preset.gemm_impl, preset.gemm_impl.partition("-")[0]}
        measured_gemms = {
            key.split(".")[3]
            for key in device.coefficients
            for name in (form.name, *form.like)
            if key.startswith(f"gemm.{name}.impl.") and key.endswith(".efficiency")
        }
        if not names & measured_gemms:
            others = ", ".join(sorted(measured_gemms)) or "none by name"
            found.append(
                f"gemm_impl {preset.gemm_impl}: not measured on {device.generation}, priced as the sustained "
                f"serving kernels (TensorRT-LLM, SGLang), with a wider interval (measured: {others})"
            )
    return found
