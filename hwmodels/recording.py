"""Fitted coefficients into the YAML files of the catalog."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from hwmodels import catalog, measured, refit, refit_collectives, yamlfile
from hwmodels.device import Coefficient
from hwmodels.errors import RunError
from hwmodels.kernels.gemm import gemm_coefficient, gemm_seconds
from hwmodels.measured import Rows
from hwmodels.writing import coefficient_content, number

Found = dict[str, Mapping[str, Coefficient]]


def write_beside(path: Path, text: str) -> None:
    """Write a temporary file in the same folder and rename it.

    Raises
    ------
    RunError
        When the folder cannot be written to.
    """
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror}). Try: a catalog folder of your own") from None


def rounded(coefficient: Coefficient) -> Coefficient:
    """Four digits of the value and two of the residual: what a fit can know."""
    return replace(coefficient, value=number(coefficient.value, 4), residual=number(coefficient.residual, 2))


def with_coefficients(text: str, file: str, found: Mapping[str, Coefficient]) -> str:
    """YAML `text` with its ``coefficients`` replaced by `found` (left out when there are none)."""
    data, _ = yamlfile.parse(text, file)
    data.pop("coefficients", None)
    if found:
        data["coefficients"] = {name: coefficient_content(rounded(c)) for name, c in sorted(found.items())}
    return yamlfile.dump(data)


def anchors(rows: Rows, fitted: Mapping[str, Mapping[str, Coefficient]]) -> Found:
    """bf16 GEMM efficiency of devices that have one row only (the best of a search over shapes).

    The law keeps its inherited shape and is scaled to pass through that row; without it a part of
    another vendor would be taken to reach NVIDIA's share of its peak.
    """
    found: Found = {}
    best = (rows.words["impl"] == "mamf") & (rows.words["law_dtype"] == "bf16")
    for i in np.flatnonzero(best):
        device = catalog.device(str(rows.words["device"][i])) if rows.words["device"][i] else None
        if device is None or not device.transferred or device.fitted_on not in fitted:
            continue
        device = replace(device, coefficients={k: rounded(c) for k, c in fitted[device.fitted_on].items()})
        m, n, k, time_us = (float(rows.numbers[c][i]) for c in ("m", "n", "k", "time_us"))
        lead = gemm_coefficient(device, "bf16", "efficiency")
        ratio = float(gemm_seconds(device, m, n, k).mid) * 1e6 / time_us
        text = "one row of gemm_measured.csv, best of a search over shapes (MAMF); shape of the law as transferred"
        value = min(lead.value * ratio, 1.0)
        found[device.name] = {"gemm.bf16.efficiency": Coefficient(value, text, 1, lead.residual + 0.05)}
    return found


def fit(data: Path, out: Path) -> dict[str, int]:
    """Fit everything on the CSV files of `data` and write the catalog files below `out`.

    Returns
    -------
    dict
        Name of each file written -> number of coefficients.

    Raises
    ------
    InputError
        For missing or broken CSV files.
    RunError
        When a file cannot be written.
    """
    gemm = measured.gemm(data / "gemm_measured.csv")
    attention = measured.attention(data / "attention_measured.csv")
    collectives = measured.collectives(data / "collectives_measured.csv")
    devices: dict[str, dict[str, Coefficient]] = {}
    for part in (refit.gemm_catalog(gemm), refit.attention_catalog(attention)):
        for name, coefficients in part.items():
            devices.setdefault(name, {}).update(coefficients)
    links = {name: dict(link.coefficients) for name, link in refit_collectives.link_catalog(collectives).items()}
    devices |= {name: dict(coefficients) for name, coefficients in anchors(gemm, devices).items()}
    written = _record("devices", devices, out) | _record("networks", links, out)
    # What was read before is no longer what the files say.
    catalog.device.cache_clear()
    catalog.link.cache_clear()
    return written


def catalog_folder() -> Path:
    """Folder of the catalog that this package reads."""
    return Path(catalog.__file__).parent


def _record(folder: str, found: Mapping[str, Mapping[str, Coefficient]], out: Path) -> dict[str, int]:
    written = {}
    for name, coefficients in found.items():
        target = out / folder / f"{name}.yaml"
        target.parent.mkdir(parents=True, exist_ok=True)
        text = with_coefficients(catalog.text(folder, name), f"catalog/{folder}/{name}.yaml", coefficients)
        write_beside(target, text)
        written[f"{folder}/{name}.yaml"] = len(coefficients)
    return written
