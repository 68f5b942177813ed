"""What a scenario YAML may say, as declarations (the file boundary only).

Ranges and limits are read by one validator each, so that a wrong one is one fault and not one
for every form that it might have had.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from hwmodels import energy
from hwmodels.declared import BeforeValidator, Field, PlainValidator, Strict
from hwmodels.errors import Fault, InputError
from hwmodels.units import parse_count, parse_duration, parse_grid
from planner.frameworks import names as framework_names
from planner.frameworks.base import CP_KINDS
from planner.frameworks.switches import Switches, normal
from planner.layout import ORDERS, RECOMPUTE, RESHARDS, SCHEDULES
from planner.layout.recompute import MODULES as RECOMPUTE_MODULES
from planner.plan import OPTIMIZERS, PRECISIONS, Documents, Lora, Routing, Workload
from planner.search.objectives import names as objective_names
from planner.search.question import Target
from planner.search.space import ANY_ORDER, STAGES
from planner.training import BATCHINGS, FLOP_FORMULAS, KINDS, MODULES, MOST_IMAGES, MOST_MTP, VISIONS

MAX = "max"
SEARCHED_ORDERS = (ANY_ORDER, *ORDERS)
_LIMIT = re.compile(r"^\s*(<=|>=|==|!=|<|>)\s*(\d+)\s*$")
_SPAN = re.compile(r"^\s*(\d+)\s*\.\.\s*(\d+)\s*$")


class RefusedError(ValueError):
    """Carries faults through the reading of a file, which adds the path."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        super().__init__(what)
        self.faults: tuple[Fault, ...] = (Fault(what, "", why, fix),)


def near(word: str, known: tuple[str, ...]) -> str:
    """The known names that resemble a word, or all of them."""
    close = difflib.get_close_matches(word, known, 2, 0.62)
    return " or ".join(close or known)


def _switches(value: Any) -> Switches:
    """A mapping of switch names to values."""
    if not isinstance(value, dict):
        raise RefusedError(f"value {value!r}", "switches are a mapping of names to values", "{cuda_graphs: true}")
    try:
        return normal({str(name): word for name, word in value.items()})
    except InputError as error:
        raise RefusedError(error.faults[0].what, error.faults[0].why, error.faults[0].fix) from None


def _whole(value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        quoted = " (text)" if isinstance(value, str) else ""
        raise RefusedError(f"value {value!r}{quoted}", "whole numbers stand without quotes", f"{least} or more")
    if value < least:
        raise RefusedError(f"value {value}", f"at least {least} is needed", f"{least} or more")
    return value


def _numbers(least: int) -> Callable[[Any], Any]:
    """A range of whole numbers: a list, one value, ``a..b``, ``{min, max}`` or ``max``."""

    def check(value: Any) -> Any:
        if value == MAX:
            return MAX
        if isinstance(value, str) and (span := _SPAN.match(value)):
            value = {"min": int(span[1]), "max": int(span[2])}
        if isinstance(value, dict):
            if not value or set(value) - {"min", "max"}:
                raise RefusedError(f"value {value!r}", "a range has min, max or both", "{min: 1, max: 8}")
            low, high = _whole(value.get("min", least), least), value.get("max")
            if high is not None and _whole(high, least) < low:
                raise RefusedError(f"range {low} to {high}", "it is empty", f"{{min: {high}, max: {low}}}")
            return Span(low, high)
        items = value if isinstance(value, list) else [value]
        if not items:
            raise RefusedError("an empty list", "there is nothing to search", "[1]")
        return tuple(sorted({_whole(item, least) for item in items}))

    return check


class Span(tuple[int, Any]):
    """Values from `low` to `high` (None: no end), both included."""

    def __new__(cls, low: int, high: int | None) -> Span:
        """From the two ends."""
        return super().__new__(cls, (low, high))

    def holds(self, value: int) -> bool:
        """Whether the value lies inside."""
        return self[0] <= value and (self[1] is None or value <= self[1])


def _words(known: tuple[str, ...]) -> Callable[[Any], Any]:
    """Names out of `known`: a list, one name, or ``max`` for all."""

    def check(value: Any) -> Any:
        if value == MAX:
            return known
        items = value if isinstance(value, list) else [value]
        if not items:
            raise RefusedError("an empty list", "there is nothing to search", f"[{known[0]}]")
        for item in items:
            if item not in known:
                raise RefusedError(f"value {item!r}", "it is not a known name", near(str(item), known))
        return tuple(dict.fromkeys(items))

    return check


def _varied(value: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Switches to vary: a mapping of names to a value or a list of them."""
    if not isinstance(value, dict):
        fix = "{overlap_grad_reduce: [true, false]}"
        raise RefusedError(f"value {value!r}", "switches are a mapping of names to the values to try", fix)
    found = []
    for name, words in value.items():
        each = words if isinstance(words, list) else [words]
        if not each:
            raise RefusedError(f"no value for {name!r}", "there is nothing to search", f"{name}: [true, false]")
        found.append((str(name), tuple(dict.fromkeys(word for one in each for _, word in _switches({name: one})))))
    return tuple(found)


def _module_sets(value: Any) -> tuple[str, ...]:
    """Sets of recomputed modules, each as words with plus signs between: a list, or one."""
    items = value if isinstance(value, list) else [value]
    for item in items:
        for word in str(item).split("+"):
            if word not in RECOMPUTE_MODULES:
                raise RefusedError(f"value {word!r}", "it is no module", near(word, RECOMPUTE_MODULES))
    return tuple(dict.fromkeys(map(str, items)))


def _limit(least: int) -> Callable[[Any], Any]:
    """A limit: ``"<=8"`` and its like, or what a range may say."""

    def check(value: Any) -> Any:
        if isinstance(value, str) and (found := _LIMIT.match(value)):
            return Limit(found[1], int(found[2]))
        if isinstance(value, str) and not _SPAN.match(value):
            raise RefusedError(f"value {value!r}", "it is no limit", '"<=8", "1..8", 8 or [1, 2, 4]')
        return _numbers(least)(value)

    return check


def _conditions(value: Any) -> Any:
    """Constraints of `planner.search.constraints`: a list of texts, or one."""
    from planner.search.constraints import parse_all  # the language is loaded where a file has conditions

    texts = value if isinstance(value, list) else [value]
    for text in texts:
        if not isinstance(text, str):
            raise RefusedError(f"value {text!r}", "a constraint is text", '["tp <= 8", "peak_memory <= 70GiB"]')
    return _told(lambda: parse_all(texts, ""))


def _conditions_alone(value: Any) -> Any:
    """Constraints given as a list of texts stand for a mapping with nothing else."""
    return {"where": value} if isinstance(value, list) else value


def _told(read: Callable[[], Any]) -> Any:
    """What `read` gives, its faults in the form that pydantic passes on."""
    try:
        return read()
    except InputError as error:
        refused = RefusedError(error.faults[0].what, error.faults[0].why, error.faults[0].fix)
        refused.faults = error.faults
        raise refused from None


def _read(parse: Callable[[object], float]) -> PlainValidator:
    """A validator of a figure with its unit."""
    return PlainValidator(lambda value: _told(lambda: parse(value)), json_schema_input_type=str | float)


class Limit(tuple[str, int]):
    """A comparison with a number."""

    def __new__(cls, sign: str, bound: int) -> Limit:
        """From a sign such as ``<=`` and a number."""
        return super().__new__(cls, (sign, bound))

    def holds(self, value: int) -> bool:
        """Whether the value satisfies it."""
        sign, bound = self
        return {
            "<=": value <= bound, ">=": value >= bound, "<": value < bound, ">": value > bound,
            "==": value == bound, "!=": value != bound,
        }[sign]  # fmt: skip


def _known(what: str, known: tuple[str, ...]) -> Callable[[Any], str]:
    """One name out of `known`."""

    def check(value: Any) -> str:
        if value not in known:
            raise RefusedError(f"value {value!r}", f"it is not a known {what}", near(str(value), known))
        return str(value)

    return check


One = Annotated[Any, PlainValidator(_numbers(1))]
Zero = Annotated[Any, PlainValidator(_numbers(0))]
OneLimit = Annotated[Any, PlainValidator(_limit(1))]
ZeroLimit = Annotated[Any, PlainValidator(_limit(0))]
Recompute = Annotated[Any, PlainValidator(_words(RECOMPUTE))]
ScheduleName = Annotated[Any, PlainValidator(_words(SCHEDULES))]
ModuleSets = Annotated[Any, PlainValidator(_module_sets)]
CpKind = Annotated[Any, PlainValidator(_words(CP_KINDS))]
Reshard = Annotated[Any, PlainValidator(_words(RESHARDS))]
Order = Annotated[Any, PlainValidator(_words(SEARCHED_ORDERS))]
StageWord = Annotated[Any, PlainValidator(_words(STAGES))]
OrderName = Annotated[Any, PlainValidator(_words(ORDERS))]
Precisions = Annotated[Any, PlainValidator(_words(PRECISIONS))]
Varied = Annotated[Any, PlainValidator(_varied, json_schema_input_type=dict[str, Any])]
Count = Annotated[int, Field(strict=True, ge=1)]
Text = Annotated[str, Field(strict=True, min_length=1)]
Flag = Annotated[bool, Field(strict=True)]


class LoraFile(Strict):
    """Adapters on frozen weights."""

    rank: Count = 16
    modules: Annotated[Any, PlainValidator(_words(MODULES))] = ("qkv", "o")
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    base: Literal["", "nf4"] = ""


class RoutingFile(Strict):
    """Load of experts."""

    skew: Annotated[float, Field(ge=1)] = 1.0
    capacity_factor: Annotated[float, Field(ge=0)] = 0.0
    pad_to_capacity: Flag = False


class DocumentsFile(Strict):
    """Lengths of documents and how a batch is made of them."""

    mean_tokens: Annotated[float, Field(ge=1)]
    mean_square_tokens2: Annotated[float, Field(ge=1)]
    batching: Literal[BATCHINGS] = "packed"  # type: ignore[valid-type]


class WorkloadFile(Strict):
    """What is trained."""

    seq_len: Count
    gbs: Count
    precision: Annotated[str, PlainValidator(_known("precision", PRECISIONS), json_schema_input_type=str)] = "bf16"
    optimizer: Annotated[str, PlainValidator(_known("optimizer", OPTIMIZERS), json_schema_input_type=str)] = "adamw"
    framework: Annotated[
        str, PlainValidator(_known("framework", framework_names()), json_schema_input_type=str)
    ] = "generic"
    kind: Literal[KINDS] | None = None  # type: ignore[valid-type]
    lora: LoraFile | None = None
    documents: DocumentsFile | None = None
    routing: RoutingFile = RoutingFile()
    grad_dtype: Literal["", "fp32", "bf16"] = ""
    main_dtype: Literal["fp32", "bf16", "remainder"] = "fp32"
    mtp_layers: Annotated[int, Field(ge=0, le=MOST_MTP)] = 0
    images: Annotated[float, Field(ge=0, le=MOST_IMAGES)] = 0.0
    vision: Literal[VISIONS] = "frozen"  # type: ignore[valid-type]
    flop_formula: Literal[FLOP_FORMULAS] = "full"  # type: ignore[valid-type]
    switches: Annotated[Any, PlainValidator(_switches, json_schema_input_type=dict[str, str])] = ()

    def workload(self) -> Workload:
        """The workload; adapters mean that only they are trained.

        Raises
        ------
        hwmodels.errors.InputError
            For what contradicts itself: adapters in full training, documents beyond the sequence.
        """
        given = self.to_dict()
        kind = self.kind or ("lora" if self.lora is not None else KINDS[0])
        lora = None if self.lora is None else Lora(**given["lora"])
        documents = None if self.documents is None else Documents(**given["documents"])
        routing = Routing(**given["routing"])
        return Workload(**{**given, "kind": kind, "lora": lora, "documents": documents, "routing": routing})


class SearchFile(Strict):
    """Values to search for each field; a field left out takes the default range."""

    tp: One = None
    sp: Zero = None
    cp: One = None
    pp: One = None
    vpp: One = None
    dp: One = None
    ep: One = None
    etp: One = None
    zero_stage: Zero = None
    fsdp: Zero = None
    mbs: One = None
    recompute: Recompute = None
    schedule: ScheduleName = None
    recompute_modules: ModuleSets = None
    recompute_layers: Zero = None
    offload_optimizer: Zero = None
    offload_parameters: Zero = None
    offload_activations: Zero = None
    cp_kind: CpKind = None
    cp_ulysses: Zero = None
    reshard: Reshard = None
    order: Order = None
    stages: StageWord = None
    precision: Precisions = None
    switches: Varied = None
    top: Count = 10


class ConstraintsFile(Strict):
    """What every layout of the answer must satisfy."""

    tp: OneLimit = None
    sp: ZeroLimit = None
    cp: OneLimit = None
    pp: OneLimit = None
    vpp: OneLimit = None
    dp: OneLimit = None
    ep: OneLimit = None
    etp: OneLimit = None
    zero_stage: ZeroLimit = None
    fsdp: ZeroLimit = None
    mbs: OneLimit = None
    recompute: Recompute = None
    schedule: ScheduleName = None
    recompute_modules: ModuleSets = None
    recompute_layers: ZeroLimit = None
    offload_optimizer: ZeroLimit = None
    offload_parameters: ZeroLimit = None
    offload_activations: ZeroLimit = None
    cp_kind: CpKind = None
    cp_ulysses: ZeroLimit = None
    reshard: Reshard = None
    order: OrderName = None
    memory_headroom: Annotated[float, Field(strict=True, ge=0, lt=1)] | None = None
    where: Annotated[Any, PlainValidator(_conditions, json_schema_input_type=list[str])] = ()


def parse_tokens(value: object) -> float:
    """Tokens of a run."""
    return parse_count(value, "tokens")


class TargetFile(Strict):
    """The run and the site that figures beyond one step are about."""

    tokens: Annotated[float, _read(parse_tokens)] | None = None
    deadline: Annotated[float, _read(parse_duration)] | None = None
    grid: Annotated[float, _read(parse_grid)] = energy.GRID_KG_PER_KWH.value
    pue: Annotated[float, Field(ge=1, allow_inf_nan=False)] = energy.PUE.value

    def target(self) -> Target:
        """As the search takes it."""
        return Target(self.tokens, self.grid, self.pue)


class RunFile(Strict):
    """Whether and how plans run for real."""

    execute: Flag = False
    ranks: Count | None = None
    plans: Count = 3
    # as the executor: a median and its drift need two steps, and the first step allocates and connects
    repeats: Annotated[int, Field(strict=True, ge=2)] = 5
    warmup: Annotated[int, Field(strict=True, ge=1)] = 2


class OutputsFile(Strict):
    """Where results go."""

    folder: Text | None = None


class ScenarioFile(Strict):
    """A scenario: one question, from the model to the outputs."""

    name: Text | None = None
    notes: str = ""
    model: Text | dict[str, Any]
    cluster: Text | dict[str, Any]
    workload: WorkloadFile
    search: SearchFile = SearchFile()
    constraints: Annotated[ConstraintsFile, BeforeValidator(_conditions_alone)] = ConstraintsFile()
    objective: Literal[objective_names()] = objective_names()[0]  # type: ignore[valid-type]
    pareto: Annotated[Any, PlainValidator(_words(objective_names()))] = ()
    target: TargetFile = TargetFile()
    run: RunFile = RunFile()
    outputs: OutputsFile = OutputsFile()
