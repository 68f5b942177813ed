"""Attention laws of each device generation from ``attention_measured.csv``.

Order of the fits, each resting on the ones before (`hwmodels.kernels.attention.coefficients`): the reference
kernels of a generation in 16 bits, the same on an fp8 cache and in fp8, then each kernel, then the kernel's
other modes. A coefficient that the rows of a block do not move stays what the block below says: the fit has a
prior there, and the file holds what moved by more than `MOVED`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwmodels import measured
from hwmodels.estimate import FloatArray
from hwmodels.fit.log_solve import pays, solve_log
from hwmodels.fit.solve import Free, bare, rms
from hwmodels.kernels.attention import NO_WINDOW, decode, prefill
from hwmodels.kernels.attention.coefficients import ATTENTION_DEFAULTS, MODES, STEPS_APART, mode_of
from hwmodels.kernels.attention.shapes import Hardware, Shapes, element_bytes
from hwmodels.kernels.units import datasheet_block
from hwmodels.laws import Block, Section
from hwmodels.measured import Rows

ATTENTION_FREE = (
    Free("forward.efficiency", 0.65, 0.005, 1.0), Free("forward.half_dim", 30.0, 1.0, 200.0),
    Free("forward.block", 1e-6, 1e-8, 1e-5), Free("forward.tail", 0.4, 0.01, 3.0),
    Free("forward.launch", 1e-5, 1e-6, 8e-5), Free("backward.ratio", 0.85, 0.1, 1.5),
)  # fmt: skip
"""What `calibrate` may move on a GPU: the reference kernel, forward and backward."""

LIMITS: Mapping[str, tuple[float, float]] = {
    "forward.efficiency": (0.005, 1.0), "forward.half_dim": (0.5, 400.0), "forward.dim_256": (0.1, 2.0),
    "forward.dim_512": (0.1, 2.0), "forward.odd_dim": (0.3, 1.7), "forward.block": (1e-8, 1e-5),
    "forward.tail": (0.01, 5.0), "forward.q_traffic": (0.05, 20.0), "forward.kv_traffic": (0.05, 20.0),
    "forward.cache_speed": (1.0, 8.0), "forward.launch": (2e-6, 2e-4),
    "backward.ratio": (0.2, 1.5), "backward.half_dim": (0.5, 400.0), "backward.tail": (0.01, 5.0),
    "decode.efficiency": (0.02, 1.0), "decode.block": (1e-8, 2e-4), "decode.block_dim": (0.7, 8.0),
    "decode.key": (1e-10, 3e-6), "decode.splits": (0.05, 2000.0), "decode.group": (1e-3, 3.0),
    "decode.rows": (1e-3, 5.0),
    "decode.cache_speed": (1.0, 6.0), "decode.waves": (1e-3, 1.0), "decode.launch": (2e-6, 2e-4),
    "decode.single.block": (0.05, 20.0), "decode.single.key": (0.05, 20.0), "decode.single.splits": (0.02, 50.0),
    "decode.apart.block": (0.05, 20.0), "decode.apart.key": (0.05, 20.0), "decode.apart.splits": (0.02, 50.0),
}  # fmt: skip
"""Coefficients that a fit moves, and how far: what is physical."""
FEW = {
    "forward": ("forward.efficiency", "forward.launch"), "decode": ("decode.efficiency", "decode.launch"),
}  # fmt: skip
"""What fewer than `ENOUGH` rows can tell."""
ENOUGH, LEAST = 6, 4
"""Rows for a whole block; rows for the two coefficients of `FEW`."""
PRIOR = 0.1
"""Weight of what a block rests on, per unit of the logarithm, against one row."""
MOVED = 0.05
DECODE_STARTS = ((1.0, 5e-9), (1.0, 5e-8), (16.0, 5e-9), (16.0, 5e-8))
"""Parts of a sequence and seconds a key that a decode fit starts from: its two limits have a minimum each."""
GROUPED_TO = {"fmha": 32.0}
"""Algorithm -> query heads that its decode kernel lets share a KV head: above, TensorRT-LLM runs its plain
multi-head kernel, one query head a block (its rows above 32 cost 10-60 times a shared read)."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Devices fitted together, the section they make, and the kernels that `impl="flash"` stands for."""

    section: str
    devices: tuple[str, ...]
    reference: tuple[str, ...]


GENERATIONS = (
    Generation("ampere", ("a100-sxm-80gb",), ("sglang-fa2", "flashattn-fa2")),
    Generation("hopper", ("h100-sxm-80gb",), ("sglang-fa3", "vllm-fa3", "flashattn-fa3")),
    Generation("blackwell", ("b200-sxm-180gb", "gb200-186gb"), ("sglang-trtllm", "vllm-trtllm")),
    Generation("ada", ("l40s-48gb",), ("vllm-fa2", "sglang-flashinfer")),
    Generation("arc-pro-b60", ("arc-pro-b60",), ("vllm-fa",)),
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Rows of one device that one law prices, ready for it."""

    device: str
    shapes: Shapes
    hardware: Hardware
    seconds: FloatArray


def shapes_of(rows: Rows, dtype: str, kv_dtype: str) -> Shapes:
    """Sizes of rows that share both formats; rows that do not state it are causal."""
    n = rows.numbers
    ones = np.ones(len(rows))
    return Shapes(
        n["batch"], n["q_len"], n["kv_len"], n["n_heads"], n["n_kv_heads"], n["head_dim"], n["head_dim"],
        np.isnan(n["causal"]) | (n["causal"] > 0), ones * NO_WINDOW, np.zeros(len(rows), dtype=np.bool_),
        element_bytes(dtype), element_bytes(kv_dtype),
    )  # fmt: skip


def decode_rows(rows: Rows) -> NDArray[np.bool_]:
    """Rows that a decode kernel timed: decode steps, and prompts of one token where they go there (`STEPS_APART`)."""
    w = rows.words
    prompt = (w["phase"] == "prefill") & (rows.numbers["q_len"] <= 1) & np.isin(w["impl"], STEPS_APART)
    return np.asarray((w["phase"] == "decode") | prompt)


def parts(rows: Rows, keep: NDArray[np.bool_]) -> list[Part]:
    """The rows where `keep` is true, split by device and formats."""
    w = rows.words
    cells = list(zip(w["device"], w["law_dtype"], w["law_kv_dtype"], strict=True))
    found = []
    for device, dtype, kv_dtype in sorted({c for c, k in zip(cells, keep, strict=True) if k}):
        its = keep & (w["device"] == device) & (w["law_dtype"] == dtype) & (w["law_kv_dtype"] == kv_dtype)
        mine = rows.take(its)
        hardware = Hardware.of(bare(str(device)), str(dtype), str(kv_dtype))
        shapes = shapes_of(mine, str(dtype), str(kv_dtype))
        found.append(Part(str(device), shapes, hardware, mine.numbers["time_us"] * 1e-6))
    return found


def law(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Coefficients by the names that the law of `part` uses."""
    lead = "decode." if part == "decode" else "forward."
    found = {name.removeprefix(lead): v for name, v in values.items() if name.startswith(lead)}
    if part == "backward":
        found |= {name.removeprefix("backward."): v for name, v in values.items() if name.startswith("backward.")}
        found["efficiency"] *= found["ratio"]
    return found


def assumed(part: str) -> dict[str, float]:
    """Where the first fit of a part starts."""
    return {name: c.value for name, c in ATTENTION_DEFAULTS.items() if name.startswith(f"{part}.")}


def log_errors(
    which: str, mine: Sequence[Part], values: Mapping[str, Any], factors: Mapping[str, Mapping[str, float]]
) -> FloatArray:
    """Logarithm of predicted over measured; `factors` are coefficients of single devices."""
    found = []
    for part in mine:
        c = law(which, {**values, **factors.get(part.device, {})})
        if which == "decode":
            predicted = decode.seconds(part.shapes, part.hardware, c)
        else:
            predicted = prefill.seconds(part.shapes, part.hardware, c, which == "backward")
        found.append(np.log(predicted / part.seconds))
    return np.concatenate(found, axis=-1)


def fit_part(
    which: str, mine: Sequence[Part], base: Mapping[str, float], factors: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, float], FloatArray]:
    """Values of one block of `which` ('forward' or 'decode') and the log errors of its rows."""
    count = sum(part.seconds.size for part in mine)
    queries = np.concatenate([part.shapes.q_len for part in mine])
    group = np.concatenate([part.shapes.n_heads / part.shapes.n_kv_heads for part in mine])
    free = [name for name in LIMITS if name.startswith(f"{which}.")] if count >= ENOUGH else list(FEW[which])
    absent = {"decode.single.": (group <= 1.0).sum() < LEAST, "decode.apart.": (group > base.get(
        "decode.grouped_to", 0.0)).sum() < LEAST}  # fmt: skip
    free = [name for name in free if not any(gone and name.startswith(lead) for lead, gone in absent.items())]
    weight = np.where((queries >= 1024) | (which == "decode"), 1.0, 0.5)

    def errors(values: dict[str, Any]) -> FloatArray:
        return log_errors(which, mine, values, factors)

    starts: list[dict[str, float]] = [dict(base)]
    if which == "decode" and count >= ENOUGH:
        starts += [{**base, "decode.splits": splits, "decode.key": key} for splits, key in DECODE_STARTS]
    if which == "forward" and count >= ENOUGH:
        starts += [{**base, "forward.packed": 1.0 - base["forward.packed"]}]
    values, _ = min(
        (solve_log(start, free, LIMITS, errors, weight, PRIOR) for start in starts), key=lambda found: found[1]
    )
    paid = [name for name in free if name in FEW[which] or pays(name, values, base, errors, weight)]
    if len(paid) < len(free):
        kept = {**values, **{name: base[name] for name in free if name not in paid}}
        values, _ = solve_log(kept, paid, LIMITS, errors, weight, PRIOR)
    return values, errors(values)


def _blocks(
    prefix: str, which: str, values: Mapping[str, float], base: Mapping[str, float] | None, errors: FloatArray,
    queries: FloatArray, source: str,
) -> list[Block]:  # fmt: skip
    """What moved (all of it without a `base`); the launch stands apart, with the residual of short prefills."""
    kept = {
        name: value
        for name, value in values.items()
        if base is None or name in FEW[which] or abs(np.log(max(value, 1e-30) / max(base[name], 1e-30))) > MOVED
    }
    if which == "decode":
        return [Block(prefix, source, int(errors.size), rms(errors), kept)]
    long = queries >= 1024
    whole = errors[long] if long.sum() >= LEAST else errors
    brief = errors[~long] if (~long).sum() >= LEAST else errors
    launch = {name: kept.pop(name) for name in ("forward.launch",)}
    return [
        Block(prefix, source + "; residual of 1,024 queries and more", int(whole.size), rms(whole), kept),
        Block(prefix, source + "; residual of fewer than 1,024 queries", int(brief.size), rms(brief), launch),
    ]


class Fitter:
    """Fits one generation block by block."""

    def __init__(self, generation: Generation, rows: Rows) -> None:
        w = rows.words
        self.generation = generation
        self.rows = rows.take(np.isin(w["device"], generation.devices) & (w["law_dtype"] != ""))
        w = self.rows.words
        self.modes = np.asarray(
            [mode_of(str(d), str(k)) for d, k in zip(w["law_dtype"], w["law_kv_dtype"], strict=True)]
        )
        self.decodes = decode_rows(self.rows)
        self.forward = w["direction"] == "fwd"
        self.rates: dict[str, dict[str, float]] = {}
        self.limits: dict[tuple[str, str], dict[str, float]] = {}
        self.values: dict[tuple[str, str, str], dict[str, float]] = {}
        self.errors: dict[tuple[str, str, str], tuple[list[Part], FloatArray]] = {}
        self.blocks: list[Block] = []

    def keep(self, which: str, impls: Sequence[str], mode: str) -> NDArray[np.bool_]:
        """Rows of a block; short prefills by a decode kernel (one query) are rows of neither law's fit."""
        w = self.rows.words
        phase = self.decodes if which == "decode" else ~self.decodes & self.forward
        return np.asarray(phase & np.isin(w["impl"], impls) & (self.modes == mode))

    def block(self, which: str, impl: str, mode: str) -> None:
        """Fit one block (``impl=""``: the reference kernels) on what it rests on."""
        impls = (impl,) if impl else self.generation.reference
        mine = parts(self.rows, self.keep(which, impls, mode))
        if sum(part.seconds.size for part in mine) < LEAST:
            return
        base = self._base(which, impl, mode)
        if impl and impl.split("-")[1] in GROUPED_TO and which == "decode":
            base = {**base, "decode.grouped_to": GROUPED_TO[impl.split("-")[1]]}
        factors = self._factors(impl)
        values, errors = fit_part(which, mine, base, factors)
        self.values[impl, mode, which] = values
        self.errors[impl, mode, which] = (mine, errors)
        queries = np.concatenate([part.shapes.q_len for part in mine])
        source = f"least squares on attention_measured.csv, {', '.join(sorted({part.device for part in mine}))}"
        rests = None if not impl else self._rests(which, impl, mode)
        prefix = "".join(f"{word}." for word in (impl, mode) if word)
        self.blocks += _blocks(prefix, which, values, rests, errors, queries, source)

    def _rests(self, which: str, impl: str, mode: str) -> dict[str, float]:
        """Full values of the block below, as `coefficients.choose` will chain them."""
        reference = self.values.get(("", "", which), assumed(which))
        own = self.values.get((impl, "", which)) if impl else None
        return dict(own if mode and own else reference)

    def _base(self, which: str, impl: str, mode: str) -> dict[str, float]:
        """Where the fit of a block starts; the reference in fp8 tells an fp8 efficiency better than 16 bits do."""
        base = self._rests(which, impl, mode)
        if mode == "fp8" and (found := self.values.get(("", "fp8", which))) and impl:
            base |= {name: found[name] for name in FEW[which]}
        return base

    def _factors(self, impl: str) -> dict[str, dict[str, float]]:
        return {
            device: {**self.rates.get(device, {}), **self.limits.get((device, impl), {})}
            for device in self.generation.devices
        }

    def all_blocks(self) -> None:
        """Every block of the generation that has rows, in the order in which they rest on each other."""
        self.blocks, self.values, self.errors = [], {}, {}
        for impl in ("", *sorted(set(self.rows.words["impl"]))):
            for which in ("forward", "decode"):
                for mode in MODES:
                    self.block(which, str(impl), mode)

    def device_factors(self) -> bool:
        """Clock under load of each further device, power limit of kernels that run into it; whether one is news.

        Both are medians of the errors that the common law leaves: of all long prefills of a device, and, kernel by
        kernel, of those beyond the time of the power limit over those within it.
        """
        first, *others = self.generation.devices
        before = (dict(self.rates), dict(self.limits))
        seen: dict[str, list[tuple[str, FloatArray, FloatArray]]] = {name: [] for name in (first, *others)}
        for (impl, _, which), (mine, errors) in self.errors.items():
            if which != "forward" or not impl:
                continue
            ends = np.cumsum([part.seconds.size for part in mine])[:-1]
            for part, its in zip(mine, np.split(errors, ends), strict=True):
                long = part.shapes.q_len >= 1024
                seen[part.device].append((impl, part.seconds[long], its[long]))
        for name, found in seen.items():
            for impl in sorted({i for i, _, _ in found}):
                times = np.concatenate([t for i, t, _ in found if i == impl])
                errors = np.concatenate([e for i, _, e in found if i == impl])
                over, within = times > 1.25 * prefill.POWER_LIMIT_S, times < 0.75 * prefill.POWER_LIMIT_S
                if min(over.sum(), within.sum()) < LEAST:
                    continue
                last = self.limits.get((name, impl), {}).get("forward.sustained", 1.0)
                ratio = last * float(np.exp(np.median(errors[over]) - np.median(errors[within])))
                if ratio < LIMITED:
                    self.limits[name, impl] = {"forward.sustained": ratio}
            if name in others and found:
                short = np.concatenate([e[t < 0.75 * prefill.POWER_LIMIT_S] for _, t, e in found])
                last = self.rates.get(name, {}).get("forward.rate", 1.0)
                self.rates[name] = {"forward.rate": last * float(np.exp(np.median(short)))}
        return before != (self.rates, self.limits)

    def backward(self) -> None:
        """Rate of the backward over that of the forward from rows that timed both; the forward is priced."""
        w = self.rows.words
        both = w["direction"] == "fwd+bwd"
        for impl in sorted(set(w["impl"][both])):
            mine = parts(self.rows, both & (w["impl"] == impl))
            start = {**assumed("backward"), **self.values.get((impl, "", "forward"), self.values["", "", "forward"])}
            free = [name for name in LIMITS if name.startswith("backward.")]
            factors = self._factors(str(impl))
            actual = np.concatenate([part.seconds for part in mine])

            def errors(
                values: dict[str, Any],
                mine: list[Part] = mine,
                actual: FloatArray = actual,
                factors: dict[str, dict[str, float]] = factors,
            ) -> FloatArray:
                ahead = log_errors("forward", mine, values, factors)
                back = log_errors("backward", mine, values, factors)
                # Both were measured in one loop: one launch is hidden behind the other kernel.
                return np.log(np.exp(ahead) + np.exp(back) - values["forward.launch"] / actual)

            values, _ = solve_log(start, free, LIMITS, errors, np.ones(actual.size), PRIOR)
            left = errors(values)
            source = f"least squares on attention_measured.csv, forward and backward of {impl}"
            if (impl, "", "forward") not in self.values:
                # Its forward was timed with the backward only: the reference's, known to be right for the two together.
                self.blocks.append(
                    Block(f"{impl}.", source, int(left.size), rms(left), {n: start[n] for n in FEW["forward"]})
                )
            kept = {name: values[name] for name in free}
            self.blocks.append(Block("", source, int(left.size), rms(left), kept))

    def sections(self) -> dict[str, Section]:
        """The section of the generation, and one of each device that differs from it."""
        sizes = datasheet_block(bare(self.generation.devices[0]), ATTENTION_DEFAULTS["l2_per_sm"].value)
        found = {self.generation.section: Section(self.generation.devices, (*self.blocks, sizes))}
        for name in self.generation.devices:
            own = []
            if name in self.rates:
                source = f"median error of long prefills of {name} under the law of its generation"
                own.append(Block("", source, len(self.rows), 0.05, self.rates[name]))
            for (device, impl), values in self.limits.items():
                if device == name:
                    source = f"median error of kernels over 13 ms against those under 8 ms on {name}"
                    own.append(Block(f"{impl}.", source, len(self.rows), 0.05, values))
            if own and name != self.generation.section:
                found[name] = Section((name,), tuple(own))
        return found


LIMITED = 0.9
"""A rate of long kernels over short ones below which a power limit is taken for the reason."""
PASSES = 3
"""Times that a generation is fitted while the factors of its devices settle."""


def fit_generation(generation: Generation, rows: Rows) -> dict[str, Section]:
    """Sections of one generation."""
    fitter = Fitter(generation, rows)
    for _ in range(PASSES):
        fitter.all_blocks()
        if not fitter.device_factors():
            break
    if (fitter.rows.words["direction"] == "fwd+bwd").any():
        fitter.backward()
    return fitter.sections()


def fit(data: Path) -> dict[str, Section]:
    """Sections of the attention law from ``attention_measured.csv`` in the folder `data`.

    Raises
    ------
    InputError
        For a missing or broken file.
    """
    rows = measured.attention(data / "attention_measured.csv")
    found: dict[str, Section] = {}
    for generation in GENERATIONS:
        found |= fit_generation(generation, rows)
    return found
