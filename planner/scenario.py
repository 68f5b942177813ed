"""`Scenario`: one question from the model to the outputs, read from a YAML file.

::

    model: llama-3-70b            # a known name, a path to a config.json, or the config itself
    cluster: dgx-h100:16          # a preset, a path to a cluster YAML, or its content
    workload: {seq_len: 8192, gbs: 512, precision: bf16, optimizer: adamw, framework: megatron}
    # also: kind: sft, lora: {rank: 16, modules: [qkv, o]}, documents: {mean_tokens: …, mean_square_tokens2: …}
    search:                       # optional; each field: a list, one value, a..b, {min, max} or max
      tp: [1, 2, 4, 8]            # max: every value that a layout could have
      top: 10
    constraints: {tp: "<=8", memory_headroom: 0.05, where: ["microbatches >= 4*pp", "peak_memory <= 70GiB"]}
    objective: step_time          # or another of planner.search.objectives
    pareto: [step_time, peak_memory]                     # optional: their front in the place of a ranking
    target: {tokens: 15T, grid: 0.2kg/kWh, pue: 1.1}     # optional: the run and the site of train_time, train_usd ...
    run: {execute: true, ranks: 2, plans: 3, repeats: 5, warmup: 2}
    outputs: {folder: out/llama}

Paths are relative to the file. All faults come at once, each with file, line and key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import scenarios
from hwmodels import cluster as clusters
from hwmodels import yamlfile
from hwmodels.cluster import Cluster
from hwmodels.declared import Strict
from hwmodels.errors import Fault, InfeasibleError, InputError
from hwmodels.records import dataclass
from planner import model as models
from planner.frameworks import of as preset_of
from planner.model.spec import ModelSpec
from planner.plan import Workload
from planner.plan_checks import sequence_faults
from planner.scenario_file import MAX, Limit, RunFile, ScenarioFile, Span, near
from planner.search.question import Target
from planner.search.ranges import ANY_ORDER, OF_WORKLOAD
from planner.search.space import Space, default_ranges
from planner.search.widest import widest as widest_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from planner.search.constraints import Constraint

FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Space))
LIMITED: tuple[str, ...] = tuple(name for name in FIELDS if name not in OF_WORKLOAD)
"""Fields of a layout, which the mapping of constraints is about."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How plans run for real.

    Attributes
    ----------
    execute : bool
        Whether they run at all.
    ranks : int
        Processes; the ranks of the cluster.
    plans : int
        How many of the ranked plans run, the best first.
    repeats, warmup : int
        Timed and untimed steps of a run.
    """

    execute: bool = False
    ranks: int = 1
    plans: int = 3
    repeats: int = 5
    warmup: int = 2


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question, with its model and cluster loaded.

    Attributes
    ----------
    name : str
        The file's own, or its stem.
    path : str
        The file.
    model : ModelSpec
    config : dict
        Raw Hugging Face config of the model.
    cluster : Cluster
    cluster_name : str
        Preset or path; the cluster's own name where it is inline.
    workload : Workload
    ranges : mapping
        Field of a layout -> tuple of values, `Span`, or ``"max"``; fields left out are open.
    constraints : mapping
        Field of a layout -> tuple of values, `Span` or `Limit`.
    memory_headroom : float or None
        Share of the device memory that must stay free; None is the default of the search.
    where : tuple of Constraint
        Conditions on layouts and their figures.
    objective : str
    pareto : tuple of str
        Objectives whose front is asked for; empty for a ranking by `objective`.
    target : Target
        The run and the site that figures beyond one step are about.
    deadline_s : float or None
        Seconds that the run may take.
    top : int
        Rows of the answer.
    run : RunSettings
    outputs : str
        Folder for results.
    notes : str
    """

    name: str
    path: str
    model: ModelSpec
    config: dict[str, Any]
    cluster: Cluster
    cluster_name: str
    workload: Workload
    ranges: Mapping[str, Any] = field(default_factory=dict)
    constraints: Mapping[str, Any] = field(default_factory=dict)
    memory_headroom: float | None = None
    where: tuple[Constraint, ...] = ()
    objective: str = "step_time"
    pareto: tuple[str, ...] = ()
    target: Target = field(default_factory=Target)
    deadline_s: float | None = None
    top: int = 10
    run: RunSettings = RunSettings()
    outputs: str = ""
    notes: str = ""

    @property
    def limits(self) -> dict[str, Any]:
        """What `planner.search.search` takes as keywords besides the space and the objective."""
        found: dict[str, Any] = {} if self.memory_headroom is None else {"memory_headroom": self.memory_headroom}
        if self.where:
            found["where"] = self.where
        if self.target != Target():
            found["target"] = self.target
        return found

    def space(self, cluster: Cluster | None = None) -> Space:
        """The values to search, constraints applied.

        Parameters
        ----------
        cluster : Cluster, optional
            In the place of the scenario's own (a calibrated one).

        Raises
        ------
        hwmodels.errors.InfeasibleError
            Where a constraint leaves no value of a field.
        """
        where = cluster or self.cluster
        widest = widest_of(self.model, where, self.workload)
        explicit = {
            name: value if name in OF_WORKLOAD else _values(value, widest[name]) for name, value in self.ranges.items()
        }
        if ANY_ORDER in explicit.get("order", ()):
            explicit["order"] = preset_of(self.workload).orders
        usual = default_ranges(Space.of(explicit), self.model, where, self.workload)
        found: dict[str, tuple[Any, ...]] = dict(explicit)
        for name, allowed in self.constraints.items():
            # a field whose default range is one neutral value (cp, etp, fsdp) opens up when it is constrained
            start = explicit.get(name) or (widest[name] if len(usual.get(name, ())) < 2 else usual[name])
            if name == "recompute_modules":  # sets of modules have no widest range: the constraint names them
                start = explicit.get(name) or allowed
            kept = tuple(value for value in start if _holds(allowed, value))
            if not kept:
                raise InfeasibleError(
                    f"No value of {name} satisfies the constraint {show(allowed)} of {self.path}.",
                    f"constraints.{name}", f"{name} in {', '.join(map(str, start))}")  # fmt: skip
            found[name] = kept
        return Space.of(found)


def show(allowed: Any) -> str:
    """A limit as the file writes it."""
    if isinstance(allowed, Limit):
        return f"{allowed[0]}{allowed[1]}"
    if isinstance(allowed, Span):
        return f"{allowed[0]}..{allowed[1]}" if allowed[1] is not None else f">={allowed[0]}"
    return ", ".join(map(str, allowed))


def _values(value: Any, widest: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values that a range of the file stands for."""
    if value == MAX:
        return widest
    if isinstance(value, Span):
        return tuple(v for v in widest if value.holds(v))
    return tuple(value)


def _holds(allowed: Any, value: Any) -> bool:
    return allowed.holds(value) if isinstance(allowed, Limit | Span) else value in allowed


def find(name_or_path: str | Path) -> Path:
    """The file of a scenario: a path, or the bare name of one that ships with the package.

    Raises
    ------
    hwmodels.errors.InputError
        Where there is neither.
    """
    path = Path(name_or_path)
    shipped = len(path.parts) == 1 or path.parts[:-1] == ("scenarios",)
    if not path.exists() and shipped and path.name.removesuffix(".yaml") in scenarios.names():
        return scenarios.path(path.name)
    if not path.exists() and len(path.parts) == 1 and path.suffix not in (".yaml", ".yml"):
        fix = f"{near(str(name_or_path), scenarios.names())}, or the path of a YAML file"
        raise InputError(
            Fault(f"no scenario named {str(name_or_path)!r}", "scenario", "it is neither shipped nor a file", fix)
        )
    return path


def load_scenario(name_or_path: str | Path) -> Scenario:
    """Read a scenario and load its model and cluster.

    Parameters
    ----------
    name_or_path : str or Path
        A YAML file, or the bare name of a shipped scenario (``"tiny-llama-cpu"``).

    Raises
    ------
    hwmodels.errors.InputError
        With every fault of the file, its model and its cluster, each with file, line and key.
    """
    path = find(name_or_path)
    file = str(path)
    data, marks = yamlfile.parse(yamlfile.read(path), file)
    if not isinstance(data, dict):
        raise InputError(
            Fault("is not a mapping of keys", f"{file}:1", "a scenario has the keys model, cluster …", "model: …")
        )
    reader = _Reader(file, path.parent, data, marks)
    parsed = reader.attempt(lambda: yamlfile.validate(ScenarioFile, data, file, marks), ())
    model = reader.attempt(reader.model, ("model",)) if isinstance(data.get("model"), str | dict) else None
    cluster = reader.attempt(reader.cluster, ("cluster",)) if isinstance(data.get("cluster"), str | dict) else None
    if parsed is not None and model is not None:
        reader.faults += sequence_faults(model[0], parsed.workload.seq_len, reader.where("workload", "seq_len"))
    workload = reader.attempt(parsed.workload.workload, ("workload",)) if parsed is not None else None
    run = reader.run(parsed.run, cluster[0]) if parsed is not None and cluster is not None else RunSettings()
    if reader.faults or parsed is None or model is None or cluster is None or workload is None:
        raise InputError(sorted(reader.faults, key=reader.line))
    name = parsed.name or path.stem
    limits = parsed.constraints
    return Scenario(
        name=name, path=file, model=model[0], config=model[1], cluster=cluster[0], cluster_name=cluster[1],
        workload=workload,
        ranges={f: getattr(parsed.search, f) for f in FIELDS if getattr(parsed.search, f) is not None},
        constraints={f: getattr(limits, f) for f in LIMITED if getattr(limits, f, None) is not None},
        memory_headroom=limits.memory_headroom, where=reader.named(limits.where), objective=parsed.objective,
        pareto=tuple(parsed.pareto), target=parsed.target.target(), deadline_s=parsed.target.deadline,
        top=parsed.search.top, run=run,
        outputs=parsed.outputs.folder or f"out/{name}", notes=parsed.notes,
    )  # fmt: skip


def json_schema() -> dict[str, Any]:
    """JSON schema of a scenario file, for editors."""
    return ScenarioFile.pydantic_model().model_json_schema()


class _Reader:
    """Collects the faults of one file and puts its lines to those that come without."""

    def __init__(self, file: str, folder: Path, data: dict[str, Any], marks: yamlfile.Marks) -> None:
        self.file, self.folder, self.data, self.marks = file, folder, data, marks
        self.faults: list[Fault] = []

    def where(self, *location: str | int) -> str:
        return yamlfile.where(self.file, location, self.marks)

    def line(self, fault: Fault) -> float:
        """Line of a fault in this file; those of other files come last."""
        found = re.match(rf"{re.escape(self.file)}:(\d+)", fault.where)
        return int(found[1]) if found else math.inf

    def attempt(self, build: Callable[[], Any], location: tuple[str | int, ...]) -> Any:
        """What `build` gives; None, its faults noted, where it raises `InputError`."""
        try:
            return build()
        except InputError as error:
            for fault in error.faults:
                if location and fault.where in ("", *location):
                    fault = replace(fault, where=self.where(*location))
                self.faults.append(_meant(fault))
            return None

    def _local(self, text: str) -> str:
        """A path of the file as a path from here; a name as it is."""
        beside = self.folder / text
        return str(beside) if ("/" in text or "." in Path(text).suffix) and beside.exists() else text

    def model(self) -> tuple[ModelSpec, dict[str, Any]]:
        given = self.data["model"]
        if isinstance(given, str):
            return models.load(self._local(given))
        name = str(given.get("_name_or_path") or Path(self.file).stem)
        try:
            return models.read_config(given, name), given
        except InputError as error:
            raise InputError([self._inside(fault, "model", fault.where) for fault in error.faults]) from None

    def cluster(self) -> tuple[Cluster, str]:
        given = self.data["cluster"]
        if isinstance(given, str):
            local = self._local(given)
            return clusters.load(local), local
        try:
            built = clusters.parse(yamlfile.dump(given), self.file)
        except InputError as error:
            stripped = [re.sub(rf"^{re.escape(self.file)}:\d+(:\d+)?(: )?", "", fault.where) for fault in error.faults]
            raise InputError([
                self._inside(fault, "cluster", key) for fault, key in zip(error.faults, stripped, strict=True)
            ]) from None  # fmt: skip
        return built, built.name

    def _inside(self, fault: Fault, key: str, path: str) -> Fault:
        """A fault of an inline document, with this file's line."""
        parts = tuple(int(p) if p.isdigit() else p for p in re.split(r"[.\[\]]+", path) if p)
        return replace(fault, where=self.where(key, *parts))

    def named(self, given: tuple[Constraint, ...]) -> tuple[Constraint, ...]:
        """Constraints with the place of each in this file."""
        listed = isinstance(self.data.get("constraints"), list)
        place: tuple[str, ...] = ("constraints",) if listed else ("constraints", "where")
        return tuple(replace(one, where=self.where(*place, i)) for i, one in enumerate(given))

    def run(self, given: RunFile, cluster: Cluster) -> RunSettings:
        """Run settings; a run needs as many ranks as the plans are for."""
        ranks = given.ranks if given.ranks is not None else cluster.n_ranks
        if ranks != cluster.n_ranks:
            why = f"the cluster has {cluster.n_ranks}, and plans are made for it"
            fix = f"ranks: {cluster.n_ranks}, or a cluster of {ranks} ranks"
            self.faults.append(Fault(f"{ranks} ranks", self.where("run", "ranks"), why, fix))
        return RunSettings(given.execute, ranks, given.plans, given.repeats, given.warmup)


_PLACES: dict[str, str] = {
    **{
        key: f"{section}.{key}"
        for section, hint in ScenarioFile.declared_fields().items()
        if isinstance(hint, type) and issubclass(hint, Strict)
        for key in hint.declared_fields()
    },
    **{key: key for key in ScenarioFile.declared_fields()},
}
"""Key -> where it belongs in the file."""


def _meant(fault: Fault) -> Fault:
    """An unknown key with the known one that it resembles."""
    found = re.fullmatch(r"unknown key '(.*)'", fault.what)
    if found is None:
        return fault
    if found[1] in _PLACES:
        return replace(fault, fix=f"{found[1]} belongs at {_PLACES[found[1]]}")
    close = near(found[1], tuple(_PLACES))
    return replace(fault, fix=f"did you mean {close}?") if close.count(" or ") < 2 else fault
