"""Coefficients of the attention laws: their names, assumed values, and which of them a kernel takes.

A full name is ``attention.[<impl>.][<mode>.]<part>.<name>``:

- `impl` is the key of an implementation (``vllm-fa3``; `hwmodels.implementations`); without one the
  coefficient belongs to the reference kernels of the generation, which ``impl="flash"`` stands for;
- `mode` is empty for 16-bit arithmetic on a 16-bit cache, ``kv8`` for 16-bit arithmetic on an fp8 cache,
  ``fp8`` for fp8 arithmetic;
- `part` is ``forward``, ``backward`` or ``decode``.

A block holds only what its rows moved away from the block that it rests on, so a kernel reads the chain from
the assumed values over the reference of the generation and the kernel's 16-bit block to its own. A kernel
that was not measured on the generation takes the nearest one (`nearest`), with a wider spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from hwmodels.device import Coefficient, Device
from hwmodels.records import dataclass

REFERENCE_IMPL = "flash"
"""``impl`` of the reference kernels of a generation: FlashAttention-2 or -3, or what serves in its place."""
UNSTATED = "unstated"
"""``impl=""``: priced as the reference, as unsure as a kernel that nobody measured."""
MODES = ("", "kv8", "fp8")
PARTS = ("forward", "backward", "decode")
STEPS_APART = ("vllm-flashinfer", "vllm-trtllm")
"""Implementations that hand a sequence of one query to their decode kernel whatever the batch is (vLLM's FlashInfer
backend splits a batch into decodes and prefills); the others run their prefill kernel on a prompt of one token."""
SAME_ALGORITHM_SPREAD, OTHER_KERNEL_SPREAD = 0.15, 0.35
"""Added to the spread of a kernel that was not measured and is priced as another.

Leaving out every row of a framework on H100 and L40S: a kernel of the same library in another framework is 12-15%
off at the median, the reference of the generation 14-46%."""


def _assumed(value: float, why: str) -> Coefficient:
    return Coefficient(value, f"assumed: {why}", 0, 0.25)


ATTENTION_DEFAULTS: Mapping[str, Coefficient] = MappingProxyType(
    {
        # One kernel of the forward pass (prefill, training): see `prefill`.
        "forward.efficiency": _assumed(0.62, "FlashAttention-2 on A100, FlashAttention-3 on H100: 60-70% of peak"),
        "forward.half_dim": _assumed(30.0, "exponentials take as long as 30 of the 128 dimensions of a head"),
        "forward.dim_256": _assumed(1.0, "rate at head dim 256 over what half_dim says"),
        "forward.dim_512": _assumed(0.85, "rate at head dim 512 over that at 256: accumulators leave the registers"),
        "forward.odd_dim": _assumed(0.85, "rate at a head dim that is no power of two: tiles are padded"),
        "forward.block": _assumed(1e-6, "prologue and epilogue of a block at head dim 128, seconds of an SM"),
        "forward.tail": _assumed(0.4, "share of the longest block that the other SMs wait for"),
        "forward.q_traffic": _assumed(0.7, "passes over Q and O beside the compute"),
        "forward.kv_traffic": _assumed(2.0, "passes over K and V: the append to the cache, misses of later blocks"),
        "forward.cache_speed": _assumed(2.0, "L2 over memory bandwidth"),
        "forward.packed": _assumed(0.0, "1: query heads of a KV head share the rows of a tile"),
        "forward.launch": _assumed(1e-5, "shortest kernels take 6-15 us"),
        "forward.rate": _assumed(1.0, "clock under load of this device over that of its generation"),
        "forward.sustained": _assumed(1.0, "rate in kernels longer than 10 ms over that of short ones (power limit)"),
        # The backward alone.
        "backward.ratio": _assumed(0.85, "rate over that of the forward at head dim 128 (A100 1.04, H100 0.85)"),
        "backward.half_dim": _assumed(30.0, "as forward"),
        "backward.tail": _assumed(0.4, "as forward"),
        # A decode step: see `decode`.
        "decode.efficiency": _assumed(0.85, "streams reach 80-92% of the datasheet bandwidth"),
        "decode.launch": _assumed(9e-6, "split-KV kernel and its reduction"),
        "decode.block": _assumed(2e-6, "start and end of one block at head dim 128, seconds of an SM"),
        "decode.block_dim": _assumed(1.4, "cost of a block at twice the head dim"),
        "decode.key": _assumed(6e-9, "one key of head dim 128, seconds of an SM"),
        "decode.splits": _assumed(8.0, "parts of a sequence that run at once at most"),
        "decode.group": _assumed(0.3, "growth of the cost of a key with each 16 query heads that share it"),
        "decode.rows": _assumed(0.1, "growth of the cost of a block with each 16 query heads that share it"),
        "decode.waves": _assumed(0.2, "share of an unfilled last wave that is lost"),
        "decode.cache_speed": _assumed(1.5, "L2 over memory bandwidth"),
        "decode.grouped_to": _assumed(1e9, "query heads that may share one read of a KV head"),
        "decode.single.block": _assumed(1.0, "the kernel for one query head a KV head over the grouped one"),
        "decode.single.key": _assumed(1.0, "as above, cost of a key"),
        "decode.single.splits": _assumed(1.0, "as above, parts of a sequence"),
        "decode.apart.block": _assumed(1.0, "the kernel for groups above grouped_to over the grouped one"),
        "decode.apart.key": _assumed(1.0, "as above, cost of a key"),
        "decode.apart.splits": _assumed(1.0, "as above, parts of a sequence"),
        # Caches and units of devices whose datasheet gives none.
        "l2_per_sm": _assumed(0.4e6, "40-50 MiB over 108-132 SMs"),
    }
)  # fmt: skip
"""Used where neither the kernel nor its generation was fitted: FlashAttention-2 on Ampere, rounded."""


def attention_coefficient(device: Device, name: str, impl: str = "") -> Coefficient:
    """``attention.<impl>.<name>``, else ``attention.<name>``, else the assumed value."""
    names = [f"attention.{impl}.{name}"] if impl else []
    return device.find(*names, f"attention.{name}", default=ATTENTION_DEFAULTS[name])


def mode_of(dtype: str, kv_dtype: str) -> str:
    """Mode of a kernel that computes in `dtype` on a cache in `kv_dtype`; 8-bit formats are priced as fp8."""
    if dtype in ("fp8", "int8", "fp4"):
        return "fp8"
    return "kv8" if kv_dtype in ("fp8", "int8", "fp4") else ""


def known(device: Device, part: str) -> Mapping[str, frozenset[str]]:
    """Implementations that have a block of `part` on this device -> their modes."""
    return _known(tuple(device.coefficients), part)


@lru_cache(maxsize=128)
def _known(names: tuple[str, ...], part: str) -> Mapping[str, frozenset[str]]:
    # A search prices the same few devices over and over; their hundreds of names are read once.
    found: dict[str, set[str]] = {}
    ending = ".decode.launch" if part == "decode" else ".forward.launch"
    for name in names:
        if name.startswith("attention.") and name.endswith(ending):
            middle = name.removeprefix("attention").removesuffix(ending).strip(".")
            head, _, tail = middle.rpartition(".")
            impl, mode = (head, tail) if tail in MODES[1:] else (middle, "")
            found.setdefault(impl, set()).add(mode)
    return MappingProxyType({impl: frozenset(modes) for impl, modes in found.items()})


def nearest(impl: str, candidates: Iterable[str]) -> str:
    """The measured kernel that an unmeasured one is priced as; empty for the reference of the generation.

    The key without its last parts (``vllm-fa-0.20`` -> ``vllm-fa``), else the same algorithm in
    another framework (``sglang-fa3`` -> ``vllm-fa3``), the first by name.
    """
    names = sorted(name for name in candidates if name)
    parts = impl.split("-")
    for size in range(len(parts), 0, -1):
        if (short := "-".join(parts[:size])) in names and size > 1:
            return short
    algorithm = parts[1] if len(parts) > 1 else parts[0]
    return next((name for name in names if name.split("-")[1:2] == [algorithm]), "")


@dataclass(frozen=True, slots=True)
class Chosen:
    """Coefficients of one part of the law for one kernel and mode.

    Attributes
    ----------
    values : Mapping[str, float]
        By the name after ``<part>.``.
    spread : float
        Relative, of rows that the law is for (prefill of 1,024 queries and more; decode; backward).
    short_spread : float
        Relative, of shorter prefills.
    """

    values: Mapping[str, float]
    spread: float
    short_spread: float


_NAMES = {
    part: tuple(n for n in ATTENTION_DEFAULTS if n.startswith((f"{part}.", "forward." if part != "decode" else part)))
    for part in PARTS
}


def _chain(device: Device, impl: str, mode: str, part: str) -> tuple[list[str], float]:
    """Prefixes after ``attention.``, from what is common to what is special; what the spread gains on the way."""
    blocks = known(device, part)
    wanted = "" if impl == REFERENCE_IMPL else impl or UNSTATED
    own = wanted if wanted in blocks else nearest(wanted, blocks)
    modes = blocks.get(own, frozenset())
    chain = [""]
    if mode == "fp8":
        # Shares of the fp8 peak: those of another kernel in fp8 are nearer than the same kernel's in 16 bits.
        if "fp8" in modes and own:
            chain += [own, f"{own}.fp8"]
        else:
            chain += ["fp8"]
    elif own:
        chain += [own]
        other = f"{own}.kv8"
        if (mode == "kv8" and "kv8" in modes) or (not mode and "" not in modes):
            chain += [other]
    elif mode == "kv8":
        chain += ["kv8"]
    if own != wanted:
        return chain, SAME_ALGORITHM_SPREAD if own else OTHER_KERNEL_SPREAD
    # A kernel whose other formats were measured is as near as the same library elsewhere.
    return chain, 0.0 if mode in modes or not modes else SAME_ALGORITHM_SPREAD


def choose(device: Device, impl: str, mode: str, part: str) -> Chosen:
    """What the law of `part` takes for the kernel `impl` in `mode` on `device`."""
    chain, more = _chain(device, impl, mode, part)
    lead = "decode" if part == "decode" else "forward"
    names = _NAMES[part]
    found = {name: ATTENTION_DEFAULTS[name] for name in names}
    for prefix in chain:
        for name in names:
            full = f"attention.{prefix}.{name}" if prefix else f"attention.{name}"
            if full in device.coefficients:
                found[name] = device.coefficients[full]
    long = found["backward.ratio" if part == "backward" else f"{part}.efficiency"].residual + more
    short = found[f"{lead}.launch"].residual + more
    values = {name: c.value for name, c in found.items()}
    plain = {name.removeprefix(f"{lead}."): v for name, v in values.items() if name.startswith(f"{lead}.")}
    plain |= {name.removeprefix(f"{part}."): v for name, v in values.items() if name.startswith(f"{part}.")}
    if part == "backward":
        plain["efficiency"] *= plain["ratio"]
    return Chosen(MappingProxyType(plain), long, max(short, long))
