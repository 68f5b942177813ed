"""Options that several commands share, and how their words become models, clusters and layouts.

Faults of the command line are collected and raised together, each with its option's name.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwmodels.errors import Fault, InputError

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster
    from planner.layout import Layout
    from planner.model.spec import ModelSpec
    from planner.plan import Workload

JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, for machines.")]
ModelName = Annotated[
    str | None, typer.Option("--model", metavar="NAME|PATH", help="A known model, or a Hugging Face config.json.")
]
ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME:NODES|PATH", help="A preset such as dgx-h100:16, or a cluster YAML."),
]
SeqLen = Annotated[int | None, typer.Option("--seq-len", metavar="TOKENS", help="Tokens in a sequence.")]
Gbs = Annotated[int | None, typer.Option("--gbs", metavar="SEQUENCES", help="Sequences in a step, all ranks together.")]

# A scenario or a plan may state these as well, so "not given" must be told from the default.
MaybePrecision = Annotated[str | None, typer.Option("--precision", help="bf16 (default); see: list precisions.")]
MaybeOptimizer = Annotated[str | None, typer.Option("--optimizer", help="adamw (default); see: list optimizers.")]
MaybeFramework = Annotated[str | None, typer.Option("--framework", help="Whose switches to assume (default generic).")]

MOST_VALUES = 4096
MOST_VALUE = 2**30
"""Largest number of a range."""
DEFAULTS = {"precision": "bf16", "optimizer": "adamw", "framework": "generic"}


def out_folder(out: Path | None, name: str) -> Path:
    """The folder that a command writes to: what the user said, or a folder of its own under ``out/``."""
    return out if out is not None else Path("out") / name


def required(**values: Any) -> None:
    """Raise `InputError` naming every option of `values` that was not given (None)."""
    examples = {
        "model": "--model llama-3-70b (see: list models)",
        "cluster": "--cluster dgx-h100:16 (see: list clusters)",
        "seq_len": "--seq-len 8192",
        "gbs": "--gbs 1024",
    }
    missing = [name for name, value in values.items() if value is None]
    if missing:
        raise InputError([Fault(f"missing option {option(name)}", "", "", examples.get(name, "")) for name in missing])


def option(name: str) -> str:
    """The option's spelling of a field: ``seq_len`` -> ``--seq-len``."""
    return "--" + name.replace("_", "-")


def parse_values(text: str, where: str) -> tuple[int, ...]:
    """Whole numbers from ``"4"``, ``"1,2,4"`` or ``"1..8"`` (ends included), sorted, each once.

    Raises
    ------
    InputError
        Naming `where` and every part that is no such thing.
    """
    found: set[int] = set()
    faults = []
    fix = f"{where} 4, {where} 1,2,4 or {where} 1..8"
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        try:
            low = int(first)
            high = int(last) if dots else low
        except ValueError:
            faults.append(Fault(f"{part.strip()!r} is not a whole number or a range", where, "", fix))
            continue
        if high > MOST_VALUE:
            most = f"no field is more than {MOST_VALUE:,}"
            faults.append(Fault(f"{part.strip()!r} is out of range", where, most, fix))
        elif low > high or high - low >= MOST_VALUES:
            faults.append(Fault(f"{part.strip()!r} is an empty or endless range", where, "", fix))
        else:
            found.update(range(low, high + 1))
    if faults:
        raise InputError(faults)
    return tuple(sorted(found))


def with_defaults(stated: dict[str, Any]) -> dict[str, Any]:
    """The words of a workload, with a default where an option was not given (None)."""
    return {**DEFAULTS, **{name: value for name, value in stated.items() if value is not None}}


def workload(
    seq_len: int | None, gbs: int | None, precision: str, optimizer: str, framework: str, **training: Any
) -> Workload:
    """The workload of the command line, all its faults reported together.

    Parameters
    ----------
    **training : object
        Other fields of `Workload` (`planner.cli.inputs_training`).
    """
    from planner import frameworks
    from planner.optimizers import GRAD_DTYPES, MAIN_DTYPES
    from planner.plan import OPTIMIZERS, PRECISIONS, Workload
    from planner.training import KINDS

    required(seq_len=seq_len, gbs=gbs)
    faults = [
        Fault(f"{value} is not a positive number", option(name), "", f"{option(name)} 1024")
        for name, value in (("seq_len", seq_len), ("gbs", gbs))
        if value is not None and value < 1
    ]
    for name, text, known in (
        ("precision", precision, PRECISIONS),
        ("optimizer", optimizer, OPTIMIZERS),
        ("framework", framework, frameworks.names()),
        ("kind", training.get("kind", KINDS[0]), KINDS),
        ("grad_dtype", training.get("grad_dtype", ""), ("", *GRAD_DTYPES)),
        ("main_dtype", training.get("main_dtype", "fp32"), tuple(MAIN_DTYPES)),
    ):
        if text not in known:
            from planner.scenario_file import near  # heavy, and needed for a fault only

            faults.append(Fault(f"unknown {name} {text!r}", option(name), "", near(text, tuple(filter(None, known)))))
    if faults:
        raise InputError(faults)
    return Workload(int(seq_len or 0), int(gbs or 0), precision, optimizer, framework, **training)


def model_and_cluster(model: str, cluster: str) -> tuple[ModelSpec, dict[str, Any], Cluster]:
    """Load both; where both are faulty, both are reported."""
    from planner import model as models

    faults: list[Fault] = []
    loaded: dict[str, Any] = {}
    for what, load, name in (("model", models.load, model), ("cluster", load_cluster, cluster)):
        try:
            loaded[what] = load(name)
        except InputError as error:
            faults.extend(error.faults)
    if faults:
        raise InputError(faults)
    spec, config = loaded["model"]
    return spec, config, loaded["cluster"]


def load_cluster(name_or_path: str) -> Cluster:
    """A preset or a cluster YAML; `InputError` as `hwmodels.cluster.load`, and for a file with a node count."""
    from hwmodels import cluster as clusters

    path, colon, count = name_or_path.rpartition(":")
    if colon and path.endswith((".yaml", ".yml")):
        what, why = f"{name_or_path!r} puts a node count after a file", "a file states its own nodes"
        raise InputError(Fault(what, "--cluster", why, f"--cluster {path}, with nodes: {count or 2} in it"))
    return clusters.load(name_or_path)


def layout(world: int, values: dict[str, Any], n_layers: int) -> Layout:
    """A layout from options that were given (None: not given), dp and schedule filled in where they follow."""
    from dataclasses import replace

    from planner.layout import Layout, parse_split, with_defaults
    from planner.layout.recompute import parse_layers, parse_modules

    given = {name: value for name, value in values.items() if value is not None}
    split = given.pop("stage_layers", None)
    for name, parse in (("recompute_modules", parse_modules), ("recompute_layers", parse_layers)):
        if name in given:
            given[name] = parse(given[name], option(name))
    made = Layout(**given)
    filled = with_defaults(made, world)
    if split is not None:
        layers = parse_split(split, "--stage-layers", n_layers, filled.pp, filled.vpp)
        filled = replace(filled, stage_layers=layers)
    return replace(filled, dp=given["dp"]) if "dp" in given else filled


def duration(text: str, where: str) -> float:
    """Seconds of a duration with its unit; `InputError` naming the option otherwise."""
    from hwmodels.units import parse_duration

    try:
        seconds = float(parse_duration(text))
    except InputError as error:
        bare = text.strip().replace(".", "", 1).isdecimal()
        fix = f"{where} {text.strip()}s" if bare else ""
        raise InputError([Fault(f.what, where, f.why, fix or f.fix, f.rule) for f in error.faults]) from None
    if seconds <= 0:
        raise InputError(Fault(f"{text!r} is not a positive duration", where, "", f"{where} 300s"))
    return seconds
