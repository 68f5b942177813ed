"""``list``: what ships with the package, by kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hwmodels.errors import Fault, InputError
from planner.cli.inputs import JsonFlag

Table = tuple[Sequence[str], list[dict[str, Any]], Callable[[dict[str, Any]], Sequence[str]]]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("list", help="What ships: models, devices, clusters, schedules, frameworks and their switches.")(list_)


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="models, devices, clusters, schedules, frameworks, switches, precisions, optimizers, scenarios, "
            "rules, objectives or names (of constraints); all of them if not given.",
        ),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE.md", help="Write the tables as a page.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Print one kind, or all of them."""
    from planner.cli.output import note, print_json, print_table

    if kind is not None and kind not in KINDS:
        from difflib import get_close_matches

        near = get_close_matches(kind, KINDS, n=1)
        raise InputError(Fault(f"cannot list {kind!r}", "list", "", near[0] if near else " or ".join(KINDS)))
    chosen = [kind] if kind is not None else list(KINDS)
    found = {name: KINDS[name]() for name in chosen}
    if markdown is not None:
        note(f"page written to {write_page(markdown, found, kind)}")
    elif json:
        print_json({"schema": 1, **{name: rows for name, (_, rows, _) in found.items()}})
    else:
        for name, (header, rows, cells) in found.items():
            print_table(f"{name} ({len(rows)})", header, [cells(row) for row in rows], left=LEFT[name])


def write_page(path: Path, found: dict[str, Table], kind: str | None) -> Path:
    """The tables as Markdown, with the command that makes the page again."""
    import os

    from planner.files import write_text
    from reports.text import markdown_table

    words = ["python -m planner list", *([kind] if kind else []), "--markdown", os.path.relpath(path)]
    lines = ["# What ships", "", f"Made by `{' '.join(words)}`; do not edit.", ""]
    for name, (header, rows, cells) in found.items():
        lines += [f"## {name.capitalize()} ({len(rows)})", ""]
        lines += [*markdown_table(header, [cells(row) for row in rows], left=LEFT[name]), ""]
    return write_text(path, "\n".join(lines))


def _models() -> Table:
    from planner import model as models

    rows = []
    for name in models.names():
        spec, _ = models.load(name)
        rows.append(
            {
                "name": name,
                "family": spec.family,
                "parameters": spec.parameters,
                "active_parameters": spec.active_parameters,
                "layers": spec.n_layers,
                "hidden": spec.hidden,
                "vocab": spec.vocab,
                "source": spec.source,
            }
        )
    return (
        ("name", "family", "parameters", "active", "layers", "hidden", "vocab"),
        rows,
        lambda r: (
            r["name"],
            r["family"],
            f"{r['parameters']:,}",
            f"{r['active_parameters']:,}",
            str(r["layers"]),
            str(r["hidden"]),
            str(r["vocab"]),
        ),
    )


def _devices() -> Table:
    from hwmodels import catalog
    from hwmodels.units import format_bandwidth, format_bytes, format_flops

    rows = []
    for name in catalog.device_names():
        device = catalog.device(name)
        rows.append(
            {
                "name": name,
                "vendor": device.vendor,
                "kind": device.kind,
                "memory_bytes": device.memory_bytes,
                "memory_bandwidth": device.memory_bandwidth,
                "peak_flops": dict(device.peak_flops),
            }
        )

    def cells(row: dict[str, Any]) -> Sequence[str]:
        peaks = row["peak_flops"]
        return (
            row["name"],
            row["vendor"],
            format_bytes(row["memory_bytes"]),
            format_bandwidth(row["memory_bandwidth"]),
            *(format_flops(peaks[t]) if t in peaks else "-" for t in ("bf16", "fp8")),
        )

    return ("name", "vendor", "memory", "bandwidth", "bf16", "fp8"), rows, cells


def _clusters() -> Table:
    from hwmodels import catalog
    from hwmodels import cluster as clusters

    rows = []
    for name in catalog.cluster_names():
        loaded = clusters.load(name)
        price, each = loaded.usd_per_gpu_hour, list(dict.fromkeys(pool.gpus_per_node for pool in loaded.pools))
        rows.append(
            {
                "name": name,
                "device": " + ".join(dict.fromkeys(pool.device.name for pool in loaded.pools)),
                "ranks_per_node": loaded.gpus_per_node if len(each) == 1 else each,
                "nodes": loaded.nodes,
                "usd_per_gpu_hour": price.value if price is not None else None,
            }
        )
    return (
        ("name", "device", "ranks/node", "nodes", "$/GPU-hour"),
        rows,
        lambda r: (
            r["name"],
            r["device"],
            str(r["ranks_per_node"]).strip("[]"),
            str(r["nodes"]),
            f"{r['usd_per_gpu_hour']:.2f}" if r["usd_per_gpu_hour"] is not None else "-",
        ),
    )


def _schedules() -> Table:
    from planner import frameworks
    from planner import schedule as schedules

    rows = []
    for name in schedules.names():
        found = schedules.get(name)
        about = (found.__doc__ or "").strip().splitlines()[0]
        having = [preset for preset in frameworks.names() if name in frameworks.get(preset).schedules]
        rows.append({
            "name": name, "interleaved": found.interleaved, "vpp": found.vpp_only or None,
            "split_backward": found.split_backward, "directions": found.directions,
            "torch_class": found.torch_class, "frameworks": having, "about": about,
        })  # fmt: skip

    def cells(row: dict[str, Any]) -> Sequence[str]:
        vpp = str(row["vpp"]) if row["vpp"] else "> 1" if row["interleaved"] else "1"
        named = "all" if len(row["frameworks"]) == len(frameworks.names()) else ", ".join(row["frameworks"])
        return row["name"], vpp, row["torch_class"] or "-", named, row["about"]

    return ("name", "vpp", "PyTorch class", "frameworks", "about"), rows, cells


def _frameworks() -> Table:
    from planner import frameworks
    from planner.frameworks import switches

    rows = []
    for name in frameworks.names():
        found = frameworks.get(name)
        hosts = {key: getattr(found, key) for key in ("kernel_s", "microbatch_s", "step_s")}
        rows.append({
            "name": name, "attention": found.attention, "grad_dtype": found.grad_dtype, "zero_stage": found.zero_stage,
            "zero_stages": found.zero_stages, "cp_kind": found.cp_kind if found.cp_kinds else None,
            "cp_kinds": found.cp_kinds, "recomputes": found.recomputes, "schedules": found.schedules,
            "switches": dict(switches.departures(found)), "host_s": {k: float(h) for k, h in hosts.items()},
            "host_source": {key: host.source for key, host in hosts.items() if host.rows or float(host)},
            "about": found.notes, "source": found.source,
        })  # fmt: skip

    def cells(row: dict[str, Any]) -> Sequence[str]:
        zero = f"{row['zero_stage']} of {','.join(map(str, row['zero_stages']))}"
        others = [kind for kind in row["cp_kinds"] if kind != row["cp_kind"]]
        kinds = ", ".join([row["cp_kind"], *others]) if row["cp_kind"] else "none"
        sets = ", ".join(f"{name}={word}" for name, word in row["switches"].items())
        return row["name"], zero, kinds, sets or "-", row["about"]

    return ("name", "zero", "context parallel", "switches it sets otherwise", "about"), rows, cells


def _switches() -> Table:
    from planner import frameworks
    from planner.frameworks import switches

    presets = {name: dict(switches.departures(frameworks.get(name))) for name in frameworks.names()}
    about = switches.meanings()
    rows = [
        {"name": name, "default": default, "about": about[name],
         "presets": {preset: sets[name] for preset, sets in presets.items() if name in sets}}
        for name, default in switches.defaults().items()
    ]  # fmt: skip
    return ("name", "default", "meaning"), rows, lambda r: (r["name"], r["default"] or "-", r["about"])


def _precisions() -> Table:
    from planner import precision

    rows = []
    for name in precision.names():
        found = precision.recipe(name)
        about = found.source if name != precision.FRAMEWORKS_OWN else "8 bits in the framework's own recipe"
        rows.append({"name": name, "gemms": found.forward, "elsewhere": found.compute, "about": about})
    header = ("name", "linear layers", "elsewhere", "about")
    return header, rows, lambda r: (r["name"], r["gemms"], r["elsewhere"], r["about"])


def _optimizers() -> Table:
    from planner import optimizers

    rows = []
    for name in optimizers.names():
        found = optimizers.get(name)
        rows.append({"name": name, "state_bytes": found.state_bytes, "about": found.source})
    return ("name", "bytes a parameter", "about"), rows, lambda r: (r["name"], f"{r['state_bytes']:g}", r["about"])


def _scenarios() -> Table:
    import scenarios

    rows = []
    for name in scenarios.names():
        first = scenarios.path(name).read_text(encoding="utf-8").lstrip().splitlines()[0]
        rows.append({"name": name, "about": first.lstrip("# ") if first.startswith("#") else ""})
    return ("name", "about"), rows, lambda r: (r["name"], r["about"])


def _rules() -> Table:
    from planner import precision
    from planner.layout import KNOWN, RULES

    said = {**{rule.id: rule.sentence for rule in RULES}, **KNOWN, **precision.RULES}
    rows = [{"name": name, "about": about} for name, about in said.items()]
    return ("name", "rule"), rows, lambda r: (r["name"], r["about"])


def _objectives() -> Table:
    from planner.search.objectives import OBJECTIVES

    rows = [
        {"name": name, "better": "less" if one.sense == "min" else "more", "unit": one.dimension, "about": one.title}
        for name, one in OBJECTIVES.items()
    ]
    header = ("name", "better", "unit", "about")
    return header, rows, lambda r: (r["name"], r["better"], r["unit"], r["about"])


def _names() -> Table:
    from planner.search.constraints.names import NAMES, known_words

    rows = []
    for name, one in NAMES.items():
        words = known_words(one.dimension[5:]) if one.dimension.startswith("word:") else ()
        unit = "word" if words else one.dimension
        about = one.about + (": " + ", ".join(words) if words else "")
        rows.append({"name": name, "kind": one.kind, "unit": unit, "about": about})
    return ("name", "kind", "unit", "about"), rows, lambda r: (r["name"], r["kind"], r["unit"], r["about"])


KINDS: dict[str, Callable[[], Table]] = {
    "models": _models,
    "devices": _devices,
    "clusters": _clusters,
    "schedules": _schedules,
    "frameworks": _frameworks,
    "switches": _switches,
    "precisions": _precisions,
    "optimizers": _optimizers,
    "scenarios": _scenarios,
    "rules": _rules,
    "objectives": _objectives,
    "names": _names,
}
LEFT = {
    "models": 2, "devices": 2, "clusters": 2, "schedules": 5, "frameworks": 5, "switches": 3, "precisions": 4,
    "optimizers": 3, "scenarios": 2, "rules": 2, "objectives": 4, "names": 4,
}  # fmt: skip
