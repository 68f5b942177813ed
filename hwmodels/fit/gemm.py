"""The GEMM law of each device generation from ``gemm_measured.csv``.

One fit a generation and number format, over all of its devices and implementations at once: they share the tile menu,
the waves and the memory hierarchy; each implementation has the coefficients of `IMPLEMENTATION_FREE` for itself. What
``impl=""`` stands for is the mean of the sustained serving kernels (`measured.REFERENCE`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwmodels import catalog, measured, yamlfile
from hwmodels.device import Device
from hwmodels.estimate import FloatArray
from hwmodels.fit.solve import Free, bare, rms, solve, with_coefficients
from hwmodels.kernels.formats import Format, format_of
from hwmodels.kernels.gemm import CACHE_PER_SM, gemm_coefficient, gemm_seconds, grouped_gemm_seconds, is_large
from hwmodels.kernels.units import datasheet_block
from hwmodels.laws import Block, Section
from hwmodels.measured import Rows
from hwmodels.validation.scored import HeldOut

GENERATIONS: Mapping[str, tuple[str, ...]] = {
    "ampere": ("a100-sxm-80gb", "a40-48gb"), "hopper": ("h100-sxm-80gb", "h800-sxm-80gb"),
    "blackwell": ("b200-sxm-180gb", "gb200-186gb"), "ada": ("l40s-48gb",), "arc-pro-b60": ("arc-pro-b60",),
}  # fmt: skip
"""Section -> devices whose rows its fit sees; the first is the one that throttling is relative to."""

FORMATS = ("bf16", "fp8", "fp8_block", "fp4", "int8", "int8_dynamic", "int8_wo", "int4_wo")
"""In the order of fitting: a format with few rows takes the rest from those before it."""

SHAPE_FREE = (
    Free("tile_128x128", 0.92, 0.6, 1.0), Free("tile_256x64", 0.92, 0.4, 1.0), Free("tile_128x64", 0.78, 0.3, 1.0),
    Free("tile_64x64", 0.6, 0.2, 0.95), Free("k_ramp", 140.0, 1.0, 1500.0), Free("tail", 0.5, 0.01, 1.0),
    Free("split_k", 800.0, 64.0, 9000.0), Free("split_traffic", 2.0, 0.05, 20.0),
)  # fmt: skip
MEMORY_FREE = (
    Free("memory_efficiency", 0.82, 0.5, 1.0), Free("memory_ramp", 1.5e-6, 1e-8, 2e-5),
    Free("cache_per_sm", 2e10, 8e9, 1.2e11), Free("activation_share", 0.6, 0.02, 3.0),
    Free("weight_share", 0.1, 1e-3, 1.5),
)  # fmt: skip
"""Shared by all formats of a generation."""

IMPLEMENTATION_FREE = (Free("efficiency", 0.8, 0.25, 1.0), Free("floor", 3e-6, 5e-7, 1e-4))
POWER_FREE = (Free("throttle", 0.12, 0.001, 0.5),)
"""Of each implementation where a format has `ENOUGH` rows: how hot a kernel runs depends on how well it feeds the
cores, and vLLM's rows ran in short bursts at boost clock (data/README, trap 6)."""
QUANTISE_FREE = (Free("quantise_row", 1e-7, 1e-9, 3e-6), Free("quantise_pass", 1.0, 0.01, 60.0))
"""Of each implementation as well, for formats that activations must be turned into."""

IMPLEMENTATION_EXTRA: Mapping[str, tuple[str, ...]] = {
    "vidur": ("tail", "k_ramp", "tile_128x128", "tile_256x64"), "deepgemm": ("k_ramp",),
}  # fmt: skip
"""Vidur's rows ran the kernels of an older cuBLAS; DeepGEMM's are persistent, so that tiles overlap their prologues."""

FEW_FREE = ("k_ramp", "split_k")
"""What a format with fewer rows than `ENOUGH` has for itself, beside the coefficients of its implementation."""

ENOUGH, FEWEST = 40, 20
PRODUCT_ONLY = ("deepgemm", "mamf")
"""Implementations whose rows time the product alone, activations given in its format."""

SEARCHED = "mamf"
"""Best of a search over shapes: one row a device."""

STARTS = 3
"""Random starts of a fit: the least squares of a minimum over tiles has several local minima."""

GEMM_FREE = (IMPLEMENTATION_FREE[0], *SHAPE_FREE, *POWER_FREE, MEMORY_FREE[0], IMPLEMENTATION_FREE[1])
"""What a calibration on a GPU of one's own may move."""

Numbers = dict[str, float]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one device and implementation within a fit."""

    device: Device
    impl: str
    index: NDArray[np.int64]
    m: FloatArray
    n: FloatArray
    k: FloatArray


def large(rows: Rows, device: Device, dtype: str) -> NDArray[np.bool_]:
    """Rows that leave the cache of `device` (`hwmodels.kernels.gemm.is_large`)."""
    m, n, k = (rows.numbers[name] for name in ("m", "n", "k"))
    return is_large(m, n, k, format_of(dtype), device)


def usable(rows: Rows) -> NDArray[np.bool_]:
    """Rows that a fit of the dense law may see: no eager timings, no searched shapes, no grouped products."""
    impl = rows.words["impl"]
    return np.asarray((impl != SEARCHED) & ~np.char.endswith(impl, "-eager") & (rows.words["op"] != "grouped"))


def _parts(rows: Rows, fixed: Mapping[str, float]) -> list[_Part]:
    w, n = rows.words, rows.numbers
    found = []
    for name, impl in sorted(set(zip(w["device"].tolist(), w["impl"].tolist(), strict=True))):
        index = np.flatnonzero((w["device"] == name) & (w["impl"] == impl))
        device = with_coefficients(bare(name), dict(fixed))
        found.append(_Part(device, impl, index, n["m"][index], n["n"][index], n["k"][index]))
    return found


def _predict(parts: Sequence[_Part], size: int, dtype: str, numbers: Numbers) -> FloatArray:
    seconds = np.empty(size)
    for part in parts:
        device = with_coefficients(part.device, numbers)
        seconds[part.index] = gemm_seconds(device, part.m, part.n, part.k, dtype=dtype, impl=part.impl).mid
    return seconds


def _free_of(rows: Rows, form: Format, leading: bool) -> list[Free]:
    """Coefficients of a fit by full name without ``gemm.``."""
    lead = f"{form.name}."
    shape = SHAPE_FREE if len(rows) >= ENOUGH else tuple(f for f in SHAPE_FREE if f.name in FEW_FREE)
    found = [replace(f, name=lead + f.name) for f in shape]
    if leading:
        found += MEMORY_FREE
    by_name = {f.name: f for f in (*SHAPE_FREE, *IMPLEMENTATION_FREE, *POWER_FREE, *QUANTISE_FREE)}
    for impl in sorted(set(rows.words["impl"].tolist())):
        names = [f.name for f in IMPLEMENTATION_FREE]
        if form.quantised and impl not in PRODUCT_ONLY:
            names += [f.name for f in QUANTISE_FREE]
        if len(rows) >= ENOUGH:
            names += [f.name for f in POWER_FREE]
            names += IMPLEMENTATION_EXTRA.get(impl, ())
        found += [replace(by_name[name], name=f"{lead}impl.{impl}.{name}") for name in names]
    return found


def _best(
    predict: Callable[[FloatArray], FloatArray],
    free: Sequence[Free],
    actual: FloatArray,
    weight: FloatArray,
    starts: int,
) -> tuple[FloatArray, FloatArray]:
    """The best of several random starts, the first from where the coefficients are expected."""
    draw = np.random.default_rng(0)
    found: list[tuple[float, FloatArray, FloatArray]] = []
    for attempt in range(starts):
        moved = free
        if attempt:
            factors = np.exp(draw.normal(0.0, 0.3, len(free)))
            moved = [
                replace(f, start=float(np.clip(f.start * x, f.low * 1.01, f.high * 0.99)))
                for f, x in zip(free, factors, strict=True)
            ]
        values, errors = solve(predict, moved, actual, weight, scale=SCALE, prior=PRIOR, tolerance=1e-4)
        cost = float(np.sum(weight * (np.sqrt(1.0 + (errors / SCALE) ** 2) - 1.0)))
        found.append((cost, values, errors))
    _, values, errors = min(found, key=lambda item: item[0])
    return values, errors


SCALE, PRIOR = 0.05, 0.02
SMALL_WEIGHT = 0.15
"""Weight of a row that stays in the cache (decode shapes) beside one that does not."""


def fit_format(
    rows: Rows, generation: str, form: Format, fixed: Mapping[str, float], starts: int = STARTS
) -> tuple[Numbers, FloatArray]:
    """Coefficients of one format on one generation (without ``gemm.``), and the log errors of its rows.

    `fixed` holds those of the formats before it. The first format fits the memory hierarchy as well.
    """
    devices = GENERATIONS.get(generation, (generation,))
    lead = f"{form.name}."
    first = bare(devices[0])
    held = dict(fixed)
    if first.tdp_w > 0:
        held[f"gemm.{lead}power_density"] = first.peak(form.peak) / first.tdp_w
    for impl in sorted(set(PRODUCT_ONLY) & set(rows.words["impl"].tolist())) if form.quantised else ():
        held |= {f"gemm.{lead}impl.{impl}.{f.name}": 0.0 for f in QUANTISE_FREE}
    parts = _parts(rows, held)
    free = _free_of(rows, form, leading=not fixed)
    big = np.zeros(len(rows), np.bool_)
    for part in parts:
        big[part.index] = is_large(part.m, part.n, part.k, form, part.device)

    def predict(values: FloatArray) -> FloatArray:
        numbers = {f"gemm.{f.name}": float(v) for f, v in zip(free, values, strict=True)}
        return _predict(parts, len(rows), form.name, numbers)

    weight = np.where(big, 1.0, SMALL_WEIGHT)
    values, errors = _best(predict, free, rows.numbers["time_us"] * 1e-6, weight, starts)
    found = {f.name: float(v) for f, v in zip(free, values, strict=True)}
    found |= {name.removeprefix("gemm."): v for name, v in held.items() if name not in fixed}
    return found | _reference(found, lead, set(rows.words["impl"].tolist())), errors


def _reference(found: Numbers, lead: str, impls: set[str]) -> Numbers:
    """What ``impl=""`` stands for: the mean of the reference implementations (or of all, where none was measured)."""
    chosen = sorted(impls & set(measured.REFERENCE)) or sorted(impls - set(PRODUCT_ONLY)) or sorted(impls)
    mean = {}
    for name in (f.name for f in (*IMPLEMENTATION_FREE, *POWER_FREE, *QUANTISE_FREE)):
        values = [found[key] for impl in chosen if (key := f"{lead}impl.{impl}.{name}") in found]
        if values:
            mean[lead + name] = float(np.mean(values))
    return mean


def _blocks(found: Numbers, form: Format, big: NDArray[np.bool_], errors: FloatArray, source: str) -> list[Block]:
    """A block for the format, one for its spread, and one for the memory hierarchy where it was fitted."""
    lead = f"{form.name}."
    own = {name.removeprefix(lead): v for name, v in found.items() if name.startswith(lead)}
    shared = {name: v for name, v in found.items() if not name.startswith(lead)}
    residual = rms(errors[big]) if big.any() else rms(errors)
    blocks = [Block("", source, int(errors.size), rms(errors), shared)] if shared else []
    blocks.append(Block(lead, source, int(errors.size), residual, own))
    spread = {"large": residual, "small": rms(errors[~big]) if (~big).any() else residual}
    return [*blocks, Block(f"{lead}spread.", source, int(errors.size), 0.0, spread)]


def fit_generation(
    rows: Rows, generation: str, formats: Sequence[str] = FORMATS, starts: int = STARTS
) -> Section | None:
    """The section of a generation; None where too few rows belong to it.

    Parameters
    ----------
    rows : Rows
        Of the whole file.
    generation : str
        A key of `GENERATIONS`.
    formats : sequence of str
        Formats to fit, 16-bit first.
    starts : int
        Random starts of the first format; the others, which have fewer coefficients, take two.
    """
    mine = rows.take(usable(rows) & np.isin(rows.words["device"], GENERATIONS[generation]))
    fixed: Numbers = {}
    blocks: list[Block] = []
    for name in formats:
        form = format_of(name)
        part = mine.take(np.isin(mine.words["law_dtype"], ("bf16", "fp16") if name == "bf16" else (name,)))
        if len(part) < FEWEST or (not fixed and name != "bf16"):
            continue
        found, errors = fit_format(part, generation, form, fixed, starts if not fixed else min(starts, 2))
        big = np.zeros(len(part), np.bool_)
        for device in set(part.words["device"].tolist()):
            its = part.words["device"] == device
            big[its] = large(part.take(its), bare(device), name)
        names = ", ".join(d for d in GENERATIONS[generation] if d in set(part.words["device"].tolist()))
        source = (
            f"least squares on gemm_measured.csv, {names}, {' and '.join(sorted(set(part.words['dtype'].tolist())))}"
        )
        seen = tuple(d for d in GENERATIONS[generation] if d in set(part.words["device"].tolist()))
        blocks += [replace(b, measured=seen) for b in _blocks(found, form, big, errors, source)]
        fixed |= {f"gemm.{key}": v for key, v in found.items()}
    if not blocks:
        return None
    present = tuple(d for d in GENERATIONS[generation] if d in set(mine.words["device"].tolist()))
    blocks = [replace(b, measured=() if b.measured == present else b.measured) for b in blocks]
    sizes = datasheet_block(bare(present[0]), CACHE_PER_SM)
    return Section(present, (*blocks, sizes, *_grouped(rows, generation, fixed)))


def _grouped(rows: Rows, generation: str, fixed: Numbers) -> list[Block]:
    """What grouped products lose against batched ones, where a generation has such rows."""
    its = (rows.words["op"] == "grouped") & np.isin(rows.words["device"], GENERATIONS[generation])
    if its.sum() < 5:
        return []
    part, ratios = rows.take(its), []
    n = part.numbers
    for i, (name, dtype, impl) in enumerate(
        zip(part.words["device"], part.words["law_dtype"], part.words["impl"], strict=True)
    ):
        device = with_coefficients(bare(str(name)), {**fixed, "gemm.grouped_factor": 1.0})
        price = grouped_gemm_seconds(
            device, n["m"][i], n["n"][i], n["k"][i], n["groups"][i], dtype=str(dtype), impl=str(impl)
        ).mid
        ratios.append(n["time_us"][i] * 1e-6 / float(price))
    factor = float(np.median(ratios))
    errors = np.log(np.asarray(ratios) / factor)
    return [
        Block(
            "",
            "median ratio on the grouped rows of gemm_measured.csv",
            len(ratios),
            rms(errors),
            {"grouped_factor": factor},
        )
    ]


def fit(data: Path) -> dict[str, Section]:
    """Sections of the GEMM law from ``gemm_measured.csv`` in the folder `data`.

    Raises
    ------
    InputError
        For a missing or broken file.
    """
    rows = measured.gemm(data / "gemm_measured.csv")
    found = {name: section for name in GENERATIONS if (section := fit_generation(rows, name)) is not None}
    found = _searched(rows, found)
    return found | anchors(rows, found)


def numbers_of(section: Section) -> Numbers:
    """Values of a section by full name."""
    return {f"gemm.{b.prefix}{name}": value for b in section.blocks for name, value in b.values.items()}


def _searched(rows: Rows, sections: dict[str, Section]) -> dict[str, Section]:
    """`sections` with the efficiency of searched shapes: one factor on that of the reference, from all generations."""
    ratios = []
    for i in np.flatnonzero(rows.words["impl"] == SEARCHED):
        name, dtype = str(rows.words["device"][i]), str(rows.words["law_dtype"][i])
        home = next((s for s in sections.values() if name in s.measured), None)
        if home is not None:
            product = {f"gemm.{dtype}.impl.{SEARCHED}.{f.name}": 0.0 for f in QUANTISE_FREE}
            device = with_coefficients(bare(name), {**numbers_of(home), **product})
            ratios.append(_price(device, rows, int(i), dtype) * 1e6 / rows.numbers["time_us"][i])
    if not ratios:
        return sections
    factor, found = float(np.exp(np.mean(np.log(ratios)))), {}
    source = (
        f"geometric mean of {len(ratios)} rows of gemm_measured.csv that are the best of a search over shapes (MAMF)"
    )
    residual = rms(np.log(np.asarray(ratios) / factor))
    for name, section in sections.items():
        blocks = list(section.blocks)
        for b in section.blocks:
            if "efficiency" in b.values:
                extra = {f"impl.{SEARCHED}.efficiency": min(b.values["efficiency"] * factor, 1.0)}
                extra |= {f"impl.{SEARCHED}.{f.name}": 0.0 for f in QUANTISE_FREE if f.name in b.values}
                # The source begins with that of the coefficients that it scales (`hwmodels.kernels.gemm`).
                blocks.append(Block(b.prefix, f"{b.source}; {source}", len(ratios), residual, extra, b.measured))
        found[name] = replace(section, blocks=tuple(blocks))
    return found


def _price(device: Device, rows: Rows, i: int, dtype: str) -> float:
    m, n, k = (float(rows.numbers[c][i]) for c in ("m", "n", "k"))
    return float(gemm_seconds(device, m, n, k, dtype=dtype, impl=SEARCHED).mid)


def home_of(name: str) -> str:
    """Section whose laws a device of the catalog takes."""
    data, _ = yamlfile.parse(catalog.text("devices", name), f"catalog/devices/{name}.yaml")
    return str(data.get("laws_of") or data["generation"]) if isinstance(data, dict) else ""


def anchors(rows: Rows, sections: Mapping[str, Section]) -> dict[str, Section]:
    """GEMM efficiency of devices that have one row of a format only (the best of a search over shapes).

    The law keeps the shape that it inherits and is scaled to pass through that row; without it a part of
    another vendor would be taken to reach NVIDIA's share of its peak.
    """
    taken = {name for s in sections.values() for name in s.measured}
    found: dict[str, list[Block]] = {}
    for i in np.flatnonzero(rows.words["impl"] == SEARCHED):
        name, dtype = str(rows.words["device"][i]), str(rows.words["law_dtype"][i])
        if not name or name in taken or dtype not in catalog.device(name).peak_flops:
            continue
        home = sections.get(home_of(name))
        device = with_coefficients(bare(name), numbers_of(home) if home else {})
        lead, top = (gemm_coefficient(device, dtype, "efficiency", impl) for impl in ("", SEARCHED))
        value = top.value
        for _ in range(6):
            moved = with_coefficients(device, {f"gemm.{dtype}.impl.{SEARCHED}.efficiency": value})
            value = min(value * _price(moved, rows, int(i), dtype) * 1e6 / float(rows.numbers["time_us"][i]), 1.0)
        values = {"efficiency": min(lead.value * value / top.value, 1.0), f"impl.{SEARCHED}.efficiency": value}
        source = "one row of gemm_measured.csv, best of a search over shapes (MAMF); shape of the law as transferred"
        residual = ANCHOR_SPREAD
        found.setdefault(name, []).append(Block(f"{dtype}.", source, 1, residual, values))
    return {name: Section((name,), tuple(blocks)) for name, blocks in found.items()}


ANCHOR_SPREAD = 0.15
"""Residual of a law that passes through one row: that of the generations that were measured, and as much for the
transfer."""


def held_out(data: Path) -> list[HeldOut]:
    """Large 16-bit products of each generation, predicted by fits that saw no row of it, then with one row of it.

    Raises
    ------
    InputError
        For a missing or broken file.
    """
    from hwmodels.fit import gemm_held_out

    return gemm_held_out.held_out(measured.gemm(data / "gemm_measured.csv"))
