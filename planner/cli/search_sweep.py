"""``search`` over sizes, models or clusters: the options of ``sweep`` on one search."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from planner.cli import sweep

if TYPE_CHECKING:
    from planner.cli.problem import Problem

OPTIONS: dict[str, tuple[Any, Any]] = {
    "gpus": (sweep.Gpus, None), "models": (sweep.Models, None), "clusters": (sweep.Clusters, None),
    "gbs_per_gpu": (sweep.GbsPerGpu, None), "engine": (sweep.Engine, "local"), "workers": (sweep.Workers, None),
}  # fmt: skip
"""Parameter -> annotation and default."""
AXES = ("gpus", "models", "clusters", "gbs_per_gpu")
"""What makes a sweep of a search; the rest says how it is run."""

_asked: ContextVar[dict[str, Any] | None] = ContextVar("sweep", default=None)


def with_sweeps(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of a sweep; where none is given it is the command alone.

    Parameters
    ----------
    command : callable
        With parameters ``model`` and ``cluster``; what it makes of them reaches `answered`.
    """

    @wraps(command)
    def swept(**given: Any) -> None:
        asked = {name: given.pop(name) for name in OPTIONS}
        if all(asked[name] is None for name in AXES):
            command(**given)
            return
        if given["scenario"] is None:  # the first of several stands for the search that is varied
            for one, several in (("model", "models"), ("cluster", "clusters")):
                given[one] = given[one] or (asked[several].partition(",")[0] if asked[several] else None)
        token = _asked.set(asked)
        try:
            command(**given)
        finally:
            _asked.reset(token)

    signature = inspect.signature(command, eval_str=True)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in OPTIONS.items()
    ]
    swept.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *more])  # type: ignore[attr-defined]
    swept.__annotations__ = {name: one.annotation for name, one in swept.__signature__.parameters.items()}  # type: ignore[attr-defined]
    return swept


def sweeping() -> bool:
    """Whether a sweep was asked for."""
    return _asked.get() is not None


def answered(problem: Problem, out: Path | None, json: bool) -> bool:
    """Run the sweep that was asked for, if one was; the search itself is its first case where nothing varies it.

    Raises
    ------
    typer.Exit
        With the code of `planner.cli.sweep.answer` where it is not 0.
    """
    asked = _asked.get()
    if asked is None:
        return False
    from planner.cli.sweep_cases import axes_of, source_of_problem

    axes = axes_of(*(asked[name] for name in AXES))
    code = sweep.answer([source_of_problem(problem)], axes, asked["engine"], asked["workers"], out, json)
    if code:
        raise typer.Exit(code)
    return True
