"""Plots of ``validate --plots``: measured and predicted over the size of the work, and measured over predicted below.

One file for each device (rooflines, attention), for each system and op (bus bandwidth) and for each expert library.
Drawn by matplotlib (extra ``plots``) without a display. Colours are those of Okabe and Ito, which colour-blind readers
tell apart; measured rows are dots, predicted ones lines or crosses, so that print in grey can be read as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hwmodels import catalog
from hwmodels.errors import Fault, InputError, RunError
from hwmodels.estimate import FloatArray
from hwmodels.validation.cases import Cases, Words

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C00")
MARKERS = ("o", "s", "^", "D")
"""Of measured rows; the next one each time the colours begin again."""

TICKS = (
    # largest over smallest ratio shown, ticks
    (2.5, (0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)),
    (7.0, (0.33, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0)),
    (np.inf, (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)),
)
EDGES = (0.1, 10.0)
"""Ratios that the lower panel shows; a row beyond is a triangle at the edge, and the caption counts them."""

BEYOND = "beyond the edge"
LEAST_ROWS = 5
"""Fewer rows make no plot."""


def draw(cases: Cases, folder: Path) -> list[Path]:
    """Draw every plot that `cases` has rows for; the files written.

    Raises
    ------
    InputError
        Where matplotlib is not installed.
    RunError
        Where the folder cannot be written to.
    """
    plt = _pyplot()
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in chain(rooflines(plt, cases), bandwidths(plt, cases), errors(plt, cases)):
            path = folder / f"{re.sub(r'[^A-Za-z0-9.]+', '-', name).strip('-').lower()}.png"
            figure.savefig(path, dpi=110)
            plt.close(figure)
            written.append(path)
    except OSError as error:
        raise RunError(
            f"{folder}: cannot be written ({error.strerror or error}). Try: another --plots folder"
        ) from None
    return written


def _pyplot() -> Any:
    try:
        import matplotlib as mpl
    except ImportError:
        why, fix = "plots are drawn by it", "pip install 'meshwright[plots]'"
        raise InputError(Fault("matplotlib is not installed", "--plots", why, fix)) from None
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _pair(plt: Any, title: str) -> tuple[Any, Any, Any]:
    """A figure of two panels over one horizontal axis: the figures above, their ratio below."""
    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(9.0, 7.0), height_ratios=(2.2, 1.0), layout="constrained"
    )
    figure.suptitle(title, fontsize=11)
    above.set_xscale("log", base=2 if "bandwidth" in title else 10)
    for axis in (above, below):
        axis.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, above, below


def _dots(axis: Any, x: FloatArray, measured: FloatArray, predicted: FloatArray, i: int, label: str) -> None:
    """Measured dots with a name for the legend, predicted crosses in the same colour: that of series `i`."""
    colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i // len(COLOURS) % len(MARKERS)]
    axis.plot(x, measured, marker, color=colour, markersize=3.5, alpha=0.45, markeredgewidth=0, label=label)
    axis.plot(x, predicted, "x", color=colour, markersize=3.5, alpha=0.55, markeredgewidth=0.7)


def _ratio(axis: Any, x: FloatArray, cases: Cases, colour: str) -> None:
    """Measured over predicted, one dot a row, on an axis that treats twice and half alike; triangles beyond `EDGES`."""
    ratio = cases.measured_s / cases.predicted_s
    low, high = EDGES
    for kept, marker in ((ratio < low, "v"), (ratio > high, "^")):
        if kept.any():
            edge = np.clip(ratio[kept], low, high)
            axis.plot(x[kept], edge, marker, color=colour, markersize=6, alpha=0.9, clip_on=False, gid=BEYOND)
    shown = (ratio >= low) & (ratio <= high)
    axis.plot(x[shown], ratio[shown], ".", color=colour, markersize=4, alpha=0.6)


def _finish_ratio(axis: Any, label: str) -> None:
    axis.axhline(1.0, color="#333333", linewidth=0.9)
    axis.set_yscale("log", base=2)
    low, high = axis.get_ylim()
    axis.set_ylim(max(min(low, 0.66), EDGES[0]), min(max(high, 1.5), EDGES[1]))
    low, high = axis.get_ylim()
    shown = [t for t in next(ticks for most, ticks in TICKS if high / low <= most) if low <= t <= high]
    axis.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axis.minorticks_off()
    axis.set_ylabel("measured time /\npredicted time")
    beyond = sum(len(line.get_xdata()) for line in axis.get_lines() if line.get_gid() == BEYOND)
    rows = f"{beyond} row lies" if beyond == 1 else f"{beyond} rows lie"
    axis.set_xlabel(f"{label}\n{rows} outside of {EDGES[0]:g} to {EDGES[1]:g}: triangles" if beyond else label)


def _named(words: Words) -> Iterator[tuple[str, Any]]:
    """Each distinct word that is not empty, and where it stands."""
    for word in sorted({str(w) for w in words.tolist()} - {""}):
        yield word, np.asarray(words == word, np.bool_)


def rooflines(plt: Any, cases: Cases) -> Iterator[tuple[str, Any]]:
    """GEMM: FLOP/s against FLOP per byte for each device, under its memory and peak lines."""
    gemm = cases.take(np.asarray((cases.kind == "gemm") & (cases.amounts["bytes"] > 0), np.bool_))
    for name, mask in _named(gemm.tags["device"]):
        its = gemm.take(mask)
        if len(its) < LEAST_ROWS:
            continue
        device = catalog.device(name)
        figure, above, below = _pair(plt, f"GEMM on {name}: measured (dots) and predicted (crosses)")
        intensity = its.amounts["flops"] / its.amounts["bytes"]
        above.set_yscale("log")
        roofs: set[float] = set()
        span = np.geomspace(intensity.min(), intensity.max(), 200)
        for i, (dtype, kept) in enumerate(_named(its.tags["dtype"])):
            colour = COLOURS[i % len(COLOURS)]
            x, part = intensity[kept], its.take(kept)
            rate = part.amounts["flops"] / 1e12
            _dots(above, x, rate / part.measured_s, rate / part.predicted_s, i, dtype)
            peak = device.peak_flops.get(dtype.partition("_")[0])
            if peak is not None and peak not in roofs:
                roofs.add(peak)
                roof = np.minimum(span * device.memory_bandwidth, peak) / 1e12
                above.plot(
                    span, roof, "-", color=colour, linewidth=1.0, label=f"datasheet roof, {peak / 1e12:,.0f} TFLOP/s"
                )
            _ratio(below, x, part, colour)
        above.set_ylabel("achieved TFLOP/s")
        above.legend(fontsize=7, ncols=2, loc="lower right", framealpha=0.9)
        _finish_ratio(below, "arithmetic intensity, FLOP per byte of operands and result")
        yield f"roofline {name}", figure


BUS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "all_reduce": lambda n: 2.0 * (n - 1.0) / n,
    "all_gather": lambda n: (n - 1.0) / n,
    "reduce_scatter": lambda n: (n - 1.0) / n,
    "alltoall": lambda n: (n - 1.0) / n,
    "all_to_all": lambda n: (n - 1.0) / n,
}
"""Bus over algorithm bandwidth as nccl-tests defines it (doc/PERFORMANCE.md there); 1 for other ops."""


def bandwidths(plt: Any, cases: Cases) -> Iterator[tuple[str, Any]]:
    """Collectives: bus bandwidth against size for each system and op, one colour a group shape and implementation."""
    its = cases.take(np.asarray(cases.kind == "collective", np.bool_))
    for system, where in _named(its.tags["system"]):
        there = its.take(where)
        for op, mask in _named(there.tags["op"]):
            part = there.take(mask)
            if len(part) < LEAST_ROWS:
                continue
            figure, above, below = _pair(plt, f"{op} on {system}:\nbus bandwidth measured (dots) and predicted (lines)")
            above.set_yscale("log")
            for i, (label, kept) in enumerate(_named(_series(part))):
                row, colour = part.take(kept), COLOURS[i % len(COLOURS)]
                order = np.argsort(row.amounts["bytes"], kind="stable")
                row = row.take(order)
                n, size = row.amounts["n_gpus"], row.amounts["bytes"]
                bus = size * BUS.get(op, np.ones_like)(n) / 1e9
                marker = MARKERS[i // len(COLOURS) % len(MARKERS)]
                above.plot(
                    size, bus / row.measured_s, marker, color=colour, markersize=3.5, alpha=0.7, markeredgewidth=0
                )
                style = ("-", "--", ":", "-.")[i // len(COLOURS) % 4]
                above.plot(size, bus / row.predicted_s, style, color=colour, linewidth=1.2, label=label)
                _ratio(below, size, row, colour)
            above.set_ylabel("bus bandwidth, GB/s")
            above.legend(fontsize=7, loc="lower right", framealpha=0.9)
            _finish_ratio(below, "size, bytes (as nccl-tests counts)")
            yield f"busbw {system} {op}", figure


def _series(part: Cases) -> Words:
    """What a line of the plot is: ranks, nodes and implementation."""
    columns = (part.amounts["n_gpus"], part.amounts["n_nodes"], part.tags["implementation"])
    return np.asarray(
        [
            f"{int(n)} ranks" + (f", {int(k)} nodes" if k > 1 else "") + (f", {word}" if word else "")
            for n, k, word in zip(*columns, strict=True)
        ],
        object,
    )


def errors(plt: Any, cases: Cases) -> Iterator[tuple[str, Any]]:
    """Attention and expert exchange: time against size for each device and phase or op."""
    for kind, tag in (("attention", "phase"), ("expert", "op")):
        rows = cases.take(np.asarray((cases.kind == kind) & (cases.x > 0), np.bool_))
        for device, where in _named(rows.tags["device"]):
            there = rows.take(where)
            for word, mask in _named(there.tags[tag]):
                part = there.take(mask)
                if len(part) >= LEAST_ROWS:
                    yield f"{kind} {device} {word}", _times(plt, part, kind, f"{kind} {word} on {device}", word)


def _times(plt: Any, part: Cases, kind: str, title: str, word: str) -> Any:
    """The figure of `errors` for one device and phase: one colour an implementation."""
    figure, above, below = _pair(plt, f"{title}: measured (dots) and predicted (crosses)")
    above.set_yscale("log")
    names = np.where(part.tags["implementation"] == "", "not stated", part.tags["implementation"]).astype(object)
    for i, (name, kept) in enumerate(_named(names)):
        row, colour = part.take(kept), COLOURS[i % len(COLOURS)]
        _dots(above, row.x, row.measured_s * 1e6, row.predicted_s * 1e6, i, name)
        _ratio(below, row.x, row, colour)
    above.set_ylabel("time, microseconds")
    above.legend(fontsize=7, loc="upper left", framealpha=0.9)
    size = "bytes that a rank exchanges" if kind == "expert" else "FLOP"
    _finish_ratio(below, "bytes of KV cache that are read" if word == "decode" else size)
    return figure
