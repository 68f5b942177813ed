"""Errors of the collective laws on rows that took no part in their fit.

Each system of several nodes is predicted by networks that were fitted without it (those of its kind, or all networks
where no other has it); each kind of link inside nodes by the coefficients of another; groups of 4 by a
fit on groups of 2 and 8.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hwmodels import catalog
from hwmodels.estimate import FloatArray
from hwmodels.fit import collectives as fits
from hwmodels.fit.collectives_free import INFERRED, NETWORK_KINDS
from hwmodels.fit.systems import is_custom, is_kernel_time, system_of, usable
from hwmodels.laws import Section
from hwmodels.measured import Rows
from hwmodels.validation.scored import HeldOut

SYSTEM_LIMIT_PCT = 25.0
TRANSFERS = (("nvlink4", "nvlink3"), ("nvlink5", "nvlink4"), ("nvlink3", "nvlink4"), ("nvlink5-nvl72", "nvlink5"))
"""Link that was not measured, and the one whose coefficients it takes."""
LEAST_BYTES = 1024.0


def _item(what: str, error: FloatArray, limit_pct: float | None = None, why: str = "") -> HeldOut:
    size = 100.0 * np.abs(error)
    return HeldOut(what, int(size.size), float(np.median(size)), float(np.quantile(size, 0.9)), limit_pct, why)


def _error(rows: Rows, fitted: fits.Fitted) -> FloatArray:
    return np.asarray(fits.predict(rows, fitted) / (rows.numbers["time_us"] * 1e-6) - 1.0)


def _inside_of(sections: dict[str, Section]) -> fits.Fitted:
    """Links inside nodes as the catalog has them: no row of several nodes took part in them."""
    fitted = fits.Fitted()
    for name in sections:
        if name in catalog.network_names() and catalog.link(name).kind not in NETWORK_KINDS:
            fitted.links[name] = catalog.link(name)
    return fitted


def systems(rows: Rows, several: NDArray[np.bool_], sections: dict[str, Section]) -> Iterable[HeldOut]:
    """Every system of several nodes left out in turn, and all of them with stated networks pooled."""
    current = np.asarray([not impl.endswith("-older") for impl in rows.words["impl"]], dtype=np.bool_)
    pooled = []
    for name in sorted(set(rows.words["system"][several].tolist())):
        system = system_of(name)
        if system is None:
            continue
        mine = several & (rows.words["system"] == name)
        rest = rows.take(several & ~mine & current)
        fitted = _inside_of(sections)
        fits.fit_any_network(fitted, rest)
        same = np.asarray([s is not None and s.inter == system.inter for s in map(system_of, rest.words["system"])])
        if same.any():
            fits.fit_between(fitted, system.inter, rest.take(same))
        error = _error(rows.take(mine), fitted)
        stated = system.inter not in INFERRED
        by = f"other systems of {system.inter}" if same.any() else "all other networks"
        of = f"{name[:40].strip()}{'' if stated else ' (network not stated)'}"
        why = "" if stated else f"its network is not stated, {system.inter} is inferred"
        yield _item(f"{of}, by {by}", error, SYSTEM_LIMIT_PCT if stated else None, why)
        if stated:
            pooled.append(error)
    if pooled:
        yield _item("all systems of several nodes whose network is stated", np.concatenate(pooled), SYSTEM_LIMIT_PCT)


def transfers(rows: Rows, several: NDArray[np.bool_], sections: dict[str, Section]) -> Iterable[HeldOut]:
    """Links inside nodes by the coefficients of another link."""
    intra = np.asarray([s.intra if s else "" for s in map(system_of, rows.words["system"])])
    plain = ~several & ~is_custom(rows) & ~is_kernel_time(rows) & (rows.numbers["bytes"] >= LEAST_BYTES)
    for name, like in TRANSFERS:
        its = plain & (intra == name)
        if its.any() and like in sections:
            fitted = fits.Fitted()
            fitted.links[like] = catalog.link(like)
            numbers = {key: c.value for key, c in catalog.link(like).coefficients.items()}
            fitted.links[name] = fits.with_numbers(fitted.bare(name), numbers)
            yield _item(f"{name} inside a node, by {like}", _error(rows.take(its), fitted))


def groups_of_four(rows: Rows, several: NDArray[np.bool_]) -> Iterable[HeldOut]:
    """Groups of 4 on NVLink 3 by a fit on groups of 2 and 8."""
    intra = np.asarray([s.intra if s else "" for s in map(system_of, rows.words["system"])])
    plain = ~several & ~is_custom(rows) & ~is_kernel_time(rows) & (intra == "nvlink3")
    four = plain & (rows.numbers["n_gpus"] == 4)
    if four.any() and (plain & ~four).any():
        fitted = fits.Fitted()
        fits.fit_inside(fitted, "nvlink3", rows.take(plain & ~four))
        yield _item("nvlink3, groups of 4 by groups of 2 and 8", _error(rows.take(four), fitted))


def held_out(rows: Rows, sections: dict[str, Section]) -> list[HeldOut]:
    """All of the above; `sections` are those of the catalog's laws."""
    rows = usable(rows)
    stated = zip(map(system_of, rows.words["system"]), rows.numbers["n_nodes"], rows.numbers["n_gpus"], strict=True)
    several = np.asarray([s is not None and s.nodes(nodes, gpus) > 1 for s, nodes, gpus in stated], dtype=np.bool_)
    return [
        *systems(rows, several, sections), *transfers(rows, several, sections), *groups_of_four(rows, several)
    ]  # fmt: skip
