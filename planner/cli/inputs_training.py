"""Options about what is trained beyond precision and optimizer, shared by `predict` and `search`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hwmodels.errors import Fault, InputError

if TYPE_CHECKING:
    from planner.frameworks.switches import Switches
    from planner.plan import Documents, Lora, Routing

Kind = Annotated[str | None, typer.Option("--kind", help="pretrain (default), sft or lora.")]
LoraText = Annotated[
    str | None,
    typer.Option(
        "--lora",
        metavar="rank=16,...",
        help="Train adapters only: rank=16,modules=qkv+o+up+down,dropout=0.1,base=nf4; each may be left out.",
    ),
]
DocumentsText = Annotated[
    str | None,
    typer.Option(
        "--documents",
        metavar="MEAN,MEAN_SQUARE",
        help="Documents: mean of their lengths and of the squares, in tokens; ,padded or ,thd: one a sequence.",
    ),
]
GradDtype = Annotated[str | None, typer.Option("--grad-dtype", help="fp32 or bf16; the framework's if not given.")]
MainDtype = Annotated[str | None, typer.Option("--main-dtype", help="Main weights: fp32 (default), bf16, remainder.")]
Mtp = Annotated[int | None, typer.Option("--mtp", help="Multi-token-prediction steps that are trained (0).")]
Flops = Annotated[
    str | None,
    typer.Option("--flops", metavar="NAME", help="What MFU counts: full, causal, full-no-head or causal-no-head."),
]
Images = Annotated[
    str | None,
    typer.Option("--images", metavar="N[,trained]", help="Images of a sequence; ,trained trains the tower as well."),
]
Switch = Annotated[
    list[str] | None,
    typer.Option(
        "--switch",
        metavar="NAME=VALUE",
        help="Set a field of the framework preset otherwise, as cuda_graphs=true (repeatable; list switches).",
    ),
]

RoutingText = Annotated[
    str | None,
    typer.Option(
        "--routing",
        metavar="skew=1.3,...",
        help="Load of experts: skew=1.3,capacity=1.25,pad; balanced and dropless if not given.",
    ),
]

_ROUTING = "skew=1.3,capacity=1.25,pad"
_LORA = "rank=16,modules=qkv+o,dropout=0.1,base=nf4"


def lora(text: str) -> Lora:
    """Adapters from ``"rank=16,modules=qkv+o,dropout=0.1,base=nf4"``; parts left out take their defaults.

    Raises
    ------
    InputError
        With every part that is no such thing.
    """
    from planner.plan import Lora

    readers: dict[str, Callable[[str], Any]] = {
        "rank": int,
        "modules": lambda t: tuple(t.split("+")),
        "dropout": float,
        "base": str,
    }
    given: dict[str, Any] = {}
    faults = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or name not in readers:
            faults.append(Fault(f"{part!r} is no part of an adapter", "--lora", "", _LORA))
            continue
        try:
            given[name] = readers[name](value)
        except ValueError:
            faults.append(Fault(f"{name} is {value!r}", "--lora", "a number is expected", _LORA))
    if faults:
        raise InputError(faults)
    return Lora(**given)


def documents(text: str) -> Documents:
    """Lengths of documents from ``"MEAN,MEAN_SQUARE[,BATCHING]"``; `InputError` otherwise."""
    from planner.plan import Documents
    from planner.training import BATCHINGS

    lengths, _, word = text.partition(",")
    square, _, word = word.partition(",")
    batching = next((known for known in BATCHINGS if known == (word.strip() or "packed")), None)
    try:
        mean, squares = float(lengths), float(square)
    except ValueError:
        batching = None
    if batching is None:
        what, fix = f"{text!r} is not two numbers and a batching", "--documents 1500,6e6 or --documents 1500,6e6,padded"
        raise InputError(Fault(what, "--documents", f"a batching is {', '.join(BATCHINGS)}", fix))
    return Documents(mean, squares, batching)


def routing(text: str) -> Routing:
    """Load of experts from ``"skew=1.3,capacity=1.25,pad"``; parts left out take their defaults.

    Raises
    ------
    InputError
        With every part that is no such thing.
    """
    from planner.plan import Routing

    names = {"skew": "skew", "capacity": "capacity_factor"}
    given: dict[str, Any] = {}
    faults = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if part == "pad":
            given["pad_to_capacity"] = True
        elif not equals or name not in names:
            faults.append(Fault(f"{part!r} is no part of a routing", "--routing", "", _ROUTING))
        else:
            try:
                given[names[name]] = float(value)
            except ValueError:
                faults.append(Fault(f"{name} is {value!r}", "--routing", "a number is expected", _ROUTING))
    if faults:
        raise InputError(faults)
    return Routing(**given)


def images(text: str) -> dict[str, Any]:
    """Images of a sequence and what of the tower is trained, from ``"2"`` or ``"2,trained"``."""
    number, _, word = (part.strip() for part in text.partition(","))
    try:
        return {"images": float(number), "vision": word or "frozen"}
    except ValueError:
        raise InputError(Fault(f"{text!r} is no number of images", "--images", "", "--images 1")) from None


def switches(pairs: list[str]) -> Switches:
    """Switches from ``NAME=VALUE`` words; `InputError` with every one that is none."""
    from planner.frameworks.switches import normal

    found, faults = {}, []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            faults.append(Fault(f"{pair!r} has no value", "--switch", "", "--switch cuda_graphs=true"))
        found[name.strip()] = value
    if faults:
        raise InputError(faults)
    return normal(found)


def stated(
    kind: str | None,
    adapters: str | None,
    lengths: str | None,
    grad_dtype: str | None,
    main_dtype: str | None,
    switch: list[str] | None = None,
    load: str | None = None,
    mtp: int | None = None,
    formula: str | None = None,
    pictures: str | None = None,
) -> dict[str, Any]:
    """The options that were given, read; None where not given. Adapters mean that only they are trained.

    Raises
    ------
    InputError
        With every fault of all of them.
    """
    faults: list[Fault] = []

    def read(what: Any, text: Any) -> Any:
        try:
            return None if text is None else what(text)
        except InputError as error:
            faults.extend(error.faults)
            return None

    found = {
        "kind": kind or (None if adapters is None else "lora"),
        "lora": read(lora, adapters), "documents": read(documents, lengths),
        "grad_dtype": grad_dtype, "main_dtype": main_dtype, "switches": read(switches, switch),
        "routing": read(routing, load), "mtp_layers": mtp, "flop_formula": formula,
        **(read(images, pictures) or {"images": None, "vision": None}),
    }  # fmt: skip
    if faults:
        raise InputError(faults)
    return found
