"""What the GEMM law says of a generation that was left out of its fit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hwmodels import measured
from hwmodels.device import Coefficient
from hwmodels.fit import gemm as fitting
from hwmodels.fit.solve import bare, with_coefficients
from hwmodels.kernels.gemm import gemm_seconds
from hwmodels.laws import Section
from hwmodels.measured import Rows
from hwmodels.validation.scored import HeldOut

DATA_CENTRE = {"ampere": 13.0, "hopper": 13.0, "blackwell": 13.0}
"""Generations that are judged when left out -> largest median error, per cent; the others are printed only."""

ANCHORED_LIMIT = 10.0
"""The same with one measured row of the generation."""

ANCHOR_WEIGHT = 0.5
"""Share of an anchor row's logarithmic distance from the law that is believed: one row is as unsure as a transferred
law, each some 10%."""


def transferred(sections: Mapping[str, Section]) -> dict[str, Coefficient]:
    """16-bit coefficients for a device of a generation that was not measured, from those that were.

    Each is the mean over `sections`; the efficiency and the floor of an implementation are those of the reference
    times the mean ratio between the two. The power density is a mean as well, so a part with more peak for each watt
    than they have is taken to lose more at its power limit: so it was from Ampere to Hopper to Blackwell.
    """
    tables = [fitting.numbers_of(section) for section in sections.values()]
    names = sorted(
        {name for table in tables for name in table if name.count(".") == 1 or name.startswith("gemm.bf16.")}
    )
    found = {name: float(np.mean([table[name] for table in tables if name in table])) for name in names}
    for name in names:
        base = "gemm.bf16." + name.rpartition(".")[2]
        if ".impl." in name and base.endswith((".efficiency", ".floor")):
            found[name] = found[base] * float(np.mean([table[name] / table[base] for table in tables if name in table]))
    source = f"mean of {', '.join(sections)}"
    return {name: Coefficient(value, source, 1, 0.1) for name, value in found.items()}


def held_out(rows: Rows) -> list[HeldOut]:
    """Large 16-bit products of each generation, predicted by fits that saw no row of it, then with one row of it.

    The law of a generation that was not measured is the mean of the data-centre generations that were
    (`transferred`), with what its own datasheet says. Takes some ten seconds.

    Parameters
    ----------
    rows : Rows
        Of the whole file.
    """
    sections = {
        name: section
        for name in fitting.GENERATIONS
        if (section := fitting.fit_generation(rows, name, ("bf16",), starts=2)) is not None
    }
    found = []
    for name in sections:
        rest = {other: section for other, section in sections.items() if other != name and other in DATA_CENTRE}
        if rest:
            found += _left_out(rows, name, rest)
    return found


def _left_out(rows: Rows, name: str, rest: Mapping[str, Section]) -> list[HeldOut]:
    sixteen = np.isin(rows.words["law_dtype"], ("bf16", "fp16")) & np.isin(
        rows.words["device"], fitting.GENERATIONS[name]
    )
    part = rows.take(sixteen & fitting.usable(rows))
    big = np.zeros(len(part), np.bool_)
    for device in set(part.words["device"].tolist()):
        its = part.words["device"] == device
        big[its] = fitting.large(part.take(its), bare(device), "bf16")
    part = part.take(big)
    devices = ", ".join(sorted(set(part.words["device"].tolist())))
    what = f"{name} ({devices}) from {', '.join(rest)}"
    ratio = _moved(part, rest) / (part.numbers["time_us"] * 1e-6)
    alone = np.abs(ratio - 1.0) * 100.0
    lines = [HeldOut(what, len(part), *_middle(alone), DATA_CENTRE.get(name))]
    anchors = np.flatnonzero(np.isin(part.words["impl"], measured.REFERENCE))
    if anchors.size:
        # Which row is measured must not decide: the median over every row that could have been.
        tried = [_middle(np.abs(np.delete(ratio / ratio[i] ** ANCHOR_WEIGHT, i) - 1.0) * 100.0) for i in anchors]
        middle, top = np.median(np.asarray(tried), axis=0)
        limit = ANCHORED_LIMIT if name in DATA_CENTRE else None
        lines.append(HeldOut(f"{what}, one anchor row", len(part) - 1, float(middle), float(top), limit))
    return lines


def _middle(error: NDArray[np.float64]) -> tuple[float, float]:
    return float(np.median(error)), float(np.quantile(error, 0.9))


def _moved(part: Rows, rest: Mapping[str, Section]) -> NDArray[np.float64]:
    """Seconds of `part` by the mean law of `rest`."""
    seconds = np.zeros(len(part))
    for cell in sorted(set(zip(part.words["device"], part.words["impl"], strict=True))):
        name, impl = (str(word) for word in cell)
        its = (part.words["device"] == name) & (part.words["impl"] == impl)
        device = bare(name)
        numbers = {key: c.value for key, c in transferred(rest).items()}
        n = part.take(its).numbers
        seconds[its] = gemm_seconds(with_coefficients(device, numbers), n["m"], n["n"], n["k"], impl=impl).mid
    return seconds
