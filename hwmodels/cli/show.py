"""``show``: the chain from the numbers of a device or link to their sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwmodels.errors import Fault, InputError

if TYPE_CHECKING:
    from hwmodels.device import Coefficient, Device
    from hwmodels.network import Link


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("show", help="Datasheet facts and laws of a device or link, each with source, rows and residual.")(show)


def show(
    name: Annotated[str, typer.Argument(metavar="DEVICE|LINK", help="A name of the catalog, or as files say: h100.")],
    law: Annotated[
        str | None, typer.Option("--law", metavar="PREFIX", help="Only coefficients that start so, e.g. gemm.bf16.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Print what the catalog says of `name`, and where each number comes from."""
    from hwmodels import catalog
    from hwmodels.cli.output import note, print_json, print_pairs, print_table, say
    from hwmodels.spelling import device_of

    asked = name
    if name not in (*catalog.device_names(), *catalog.network_names()):
        name = device_of(asked) or asked
        if name != asked:
            note(f"{asked} is read as {name}, as in measured files")
    if name in catalog.device_names():
        member: Device | Link = catalog.device(name)
        kind, facts = "device", device_facts(catalog.device(name))
    elif name in catalog.network_names():
        member = catalog.link(name)
        kind, facts = "link", link_facts(catalog.link(name))
    else:
        raise InputError(Fault(f"{name!r} is neither a device nor a link of the catalog", "show", fix=nearest(name)))
    found = {k: c for k, c in member.coefficients.items() if k.startswith(law or "")}
    if law is not None and not found:
        starts = sorted({".".join(k.split(".")[:2]) for k in member.coefficients})
        fix = ", ".join(starts) or "no --law: there are none"
        raise InputError(Fault(f"{name} has no coefficient that starts with {law!r}", "--law", fix=fix))
    if json:
        content = [{"name": k, **coefficient(c)} for k, c in found.items()]
        print_json({"schema": 1, "kind": kind, "name": name, "facts": facts, "coefficients": content})
        return
    print_pairs([(key, str(value)) for key, value in facts.items()])
    sources = list(dict.fromkeys(c.source for c in found.values()))
    say()
    rows = [
        (k, f"{c.value:.4g}", str(c.rows or "-"), f"{100 * c.residual:.1f}%", f"[{sources.index(c.source) + 1}]")
        for k, c in sorted(found.items())
    ]
    print_table("laws in use", ("coefficient", "value", "rows", "residual", "source"), rows)
    say()
    for number, source in enumerate(sources, 1):
        say(f"[{number}] {source}")
    if not found:
        say("no law was fitted for it: the defaults of the laws apply, with their wide spreads")


def coefficient(c: Coefficient) -> dict[str, Any]:
    """A coefficient as in ``--json``."""
    return {
        "value": c.value, "source": c.source, "rows": c.rows, "residual": c.residual,
        "transferred": "transferred from" in c.source,
    }  # fmt: skip


def nearest(name: str, most: int = 6, least: float = 0.6) -> str:
    """Names of the catalog that are most like a mistyped one, whole or in their first letters (``h101``)."""
    from difflib import SequenceMatcher

    from hwmodels import catalog

    def likeness(known: str) -> float:
        parts = (known, known[: len(name)])
        return max(SequenceMatcher(None, name.lower(), part).ratio() for part in parts)

    known = [*catalog.device_names(), *catalog.network_names()]
    near = sorted((k for k in known if likeness(k) >= least), key=likeness, reverse=True)
    return "one of " + ", ".join(near[:most] or known)


def device_facts(device: Device) -> Mapping[str, Any]:
    """Datasheet figures of a device, printed with units, and their sources."""
    from hwmodels.units import format_bandwidth, format_bytes, format_flops, format_seconds

    return {
        "device": device.name,
        "vendor": device.vendor,
        "generation": device.generation,
        **{f"peak {dtype}": f"{format_flops(peak)} dense" for dtype, peak in device.peak_flops.items()},
        "memory": format_bytes(device.memory_bytes),
        "memory bandwidth": format_bandwidth(device.memory_bandwidth),
        "last-level cache": format_bytes(device.l2_bytes) if device.l2_bytes else "not stated",
        "multiprocessors": str(device.n_sm) if device.n_sm else "not stated",
        "board power": f"{device.tdp_w:.0f} W" if device.tdp_w else "not stated",
        "eager launch": format_seconds(device.launch_s),
        "confidence": device.confidence,
        **{f"source of {field}": source for field, source in device.sources.items()},
    }


def link_facts(link: Link) -> Mapping[str, Any]:
    """Datasheet figures of a link, printed with units, and their source."""
    from hwmodels.units import format_bandwidth, format_seconds

    return {
        "link": link.name,
        "kind": link.kind,
        "bandwidth": f"{format_bandwidth(link.bandwidth)} per direction and GPU or port",
        "latency": format_seconds(link.latency_s),
        "topology": link.topology,
        "reduces in the switch": "yes" if link.nvls else "no",
        "source": link.source,
    }
