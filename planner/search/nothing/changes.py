"""Changes of a request under which something fits, the smallest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from hwmodels.errors import InputError
from hwmodels.units import format_bytes
from planner.frameworks import of as preset_of
from planner.search.least import Least
from planner.search.nothing.ask import Ask

MOST_TIMES = 256
"""How many times the nodes are doubled at most in the look for a cluster that is large enough."""
PROBES = 3
"""Sizes that are looked at between a cluster that is large enough and half of it."""
MOST = 3
"""Changes that are told."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a request.

    Attributes
    ----------
    text : str
        As an instruction: ``"--recompute full"``.
    ask : Ask
        The request with it.
    """

    text: str
    ask: Ask


def of_memory(ask: Ask, dropped: Callable[[], Iterator[Change]]) -> list[str]:
    """What makes a layout fit the memory: at most `MOST` changes, the smallest first."""
    found: list[str] = []
    for change in (*dropped(), *opened(ask), *_saving(ask), *_precisions(ask)):
        try:
            fits = change.ask.fits()
        except InputError:  # the framework or the device has no such thing
            continue
        if fits is not None:
            found.append(f"{change.text}: {_told(fits)}")
        if len(found) == MOST - 1:
            break
    larger = more_nodes(ask)
    return [*found, larger] if larger else found


def without_each(ask: Ask) -> Iterator[Change]:
    """The request without one of its constraints on layouts, each in turn."""
    for one in ask.where:
        if one.base:
            rest = tuple(other for other in ask.where if other is not one)
            yield Change(f"without {one.text!r}", replace(ask, where=rest))


def opened(ask: Ask) -> Iterator[Change]:
    """The request with one of its given fields open, each in turn, then with all of them."""
    given = [name for name in ask.given if name not in ("precision", "switches", "stages")]
    for name in given:
        yield Change(f"with {name} open", replace(ask, space=replace(ask.space, **{name: ()})))
    if len(given) > 1:
        none: dict[str, Any] = dict.fromkeys(given, ())
        yield Change("without the given fields", replace(ask, space=replace(ask.space, **none)))


def _saving(ask: Ask) -> Iterator[Change]:
    """The request with what saves memory at some cost: recomputation, sharding, host memory."""
    space = ask.space
    saved: list[tuple[str, dict[str, Any]]] = []
    if space.recompute and "full" not in space.recompute:
        saved.append(("--recompute full", {"recompute": ("full",)}))
    if 3 in preset_of(ask.workload).zero_stages and space.zero_stage and 3 not in space.zero_stage:
        sharded: dict[str, Any] = {"zero_stage": (3,)}
        saved.append(("--zero-stage 3", sharded))
        if not space.offload_optimizer:
            saved.append(("--zero-stage 3 --offload-optimizer 100", sharded | {"offload_optimizer": (100,)}))
    if not space.offload_optimizer:
        saved.append(("--offload-optimizer 100", {"offload_optimizer": (100,)}))
    if not space.offload_parameters and not space.offload_optimizer:
        both = {"offload_optimizer": (100,), "offload_parameters": (1,)}
        saved.append(("--offload-optimizer 100 --offload-parameters 1", both))
    for text, values in saved:
        yield Change(f"with {text}", replace(ask, space=replace(space, **values)))


def _precisions(ask: Ask) -> Iterator[Change]:
    """The request in a precision that keeps fewer bytes."""
    for name in ("bf16", "fp8"):
        if name != ask.workload.precision and not ask.space.precision and ask.workload.precision != "fp8":
            yield Change(f"with --precision {name}", replace(ask, workload=replace(ask.workload, precision=name)))


def more_nodes(ask: Ask, enough: Callable[[Ask], str] | None = None) -> str:
    """The smallest of the tried sizes of the cluster on which something fits, or nothing.

    Nodes are doubled until there are enough; then sizes between that and half of it are tried.

    Parameters
    ----------
    enough : callable, optional
        What a request has that fits, in words, or nothing; by default whether a layout fits the memory.
    """
    check = enough or _fits
    times, found = 2, ""
    while times <= MOST_TIMES and not (found := check(ask.with_nodes(times))):
        times *= 2
    if not found:
        return ""
    low, high = times / 2, float(times)
    for _ in range(PROBES):
        middle = (low + high) / 2
        if (ask.cluster.nodes * middle) % 1:
            break
        other = check(ask.with_nodes(middle))
        low, high, found = (low, middle, other) if other else (middle, high, found)
    ranks = ask.with_nodes(high).cluster.n_ranks
    return f"with {ranks:,} ranks instead of {ask.cluster.n_ranks:,}: {found}"


def _fits(ask: Ask) -> str:
    found = ask.fits()
    return "" if found is None else _told(found)


def _told(found: Least) -> str:
    """A layout and what it needs."""
    return f"{found.priced.layouts.layout(0).label()} needs {format_bytes(found.peak_bytes)}"
