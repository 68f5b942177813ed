"""How well the device of a prediction was measured: confidence differs from one generation of GPUs to the next."""

from __future__ import annotations

from hwmodels.device import Coefficient, Device
from hwmodels.kernels.formats import format_of
from planner.precision import recipe_of
from planner.priced import PricedModel


def device_notes(priced: PricedModel) -> list[str]:
    """What the laws of GEMM and attention on this device were fitted on, and how far off the fit is."""
    device = priced.cluster.device
    if device.kind != "gpu":
        return []
    name = format_of(recipe_of(priced.workload, priced.preset).forward).name
    names = (f"gemm.{name}.efficiency", "gemm.bf16.efficiency")
    gemm = next((device.coefficients[n] for n in names if n in device.coefficients), None)
    attention = device.coefficients.get("attention.forward.efficiency")
    parts = [f"{what} {_evidence(found)}" for what, found in (("GEMM", gemm), ("attention", attention))]
    return [f"evidence for {device.name} ({device.generation}): {'; '.join(parts)}{_datasheet(device)}"]


def _evidence(found: Coefficient | None) -> str:
    """Rows and residual of a fit, and whether it was made on the device itself."""
    if found is None or not found.rows:
        return "not measured on any device of its generation"
    other = "transferred from" in found.source
    whose = "taken over from another device by the datasheet" if other else "measured on it"
    return f"{whose} ({found.rows} rows, residual {found.residual:.0%})"


def _datasheet(device: Device) -> str:
    """A word of doubt where the datasheet itself is."""
    return "; its datasheet figures are weak (one uncertain source)" if device.confidence == "C" else ""
