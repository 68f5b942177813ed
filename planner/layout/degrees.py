"""The degrees of parallelism and their arithmetic: `Layout`, and `LayoutBatch` for many at once.

A `LayoutBatch` holds the same fields as arrays, so that one formula serves one layout and a
million.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwmodels.records import dataclass
from hwmodels.topology import GroupShape
from planner.frameworks.base import CP_KINDS
from planner.frameworks.orders import ORDERS
from planner.layout import axes, placed
from planner.layout.checked import LARGEST, normal_values
from planner.layout.distinct import distinct_rows
from planner.layout.recompute import RECOMPUTE, modules_code, modules_of
from planner.layout.splits import split_id, split_of, split_text
from planner.schedule import get as get_schedule
from planner.schedule import names as schedule_names

if TYPE_CHECKING:
    from hwmodels.cluster import Cluster

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

SCHEDULES: tuple[str, ...] = schedule_names()
DEGREES: tuple[str, ...] = ("tp", "sp", "cp", "pp", "vpp", "dp", "ep", "etp", "zero_stage", "fsdp", "mbs")
RESHARDS: tuple[str, ...] = ("default", "always", "never")
"""When stage 3 frees gathered parameters: as the framework does, after every forward, or not before the backward is
done (torchtitan ``fsdp_reshard_after_forward``; PyTorch FSDP ``SHARD_GRAD_OP`` is never)."""
OPEN_CP_KINDS: tuple[str, ...] = ("", *CP_KINDS)
"""Kinds of context parallelism; blank leaves it to the framework."""


@dataclass(frozen=True, slots=True)
class Code:
    """How a field of `Layout` that is no number stands in a `LayoutBatch`: as a whole number."""

    encode: Callable[[Any], int]
    decode: Callable[[int], Any]


def _position(names: tuple[str, ...]) -> Code:
    """A word as its position in `names`."""
    return Code(names.index, names.__getitem__)


CODES: dict[str, Code] = {
    "recompute": _position(RECOMPUTE),
    "schedule": _position(SCHEDULES),
    "cp_kind": _position(OPEN_CP_KINDS),
    "reshard": _position(RESHARDS),
    "order": _position(ORDERS),
    "placement": Code(split_id, split_of),
    "stage_layers": Code(split_id, split_of),
    "recompute_modules": Code(modules_code, modules_of),
    "recompute_layers": Code(split_id, split_of),
}
"""Field of `Layout` -> its code; every other field is a whole number as it is."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One parallel layout.

    Attributes
    ----------
    tp, cp, pp, dp : int
        Tensor, context, pipeline and data parallel degrees; world = tp*cp*pp*dp.
    sp : int
        1: sequence parallel over the tp group (Megatron), 0: not.
    vpp : int
        Virtual stages per pipeline rank; 1 is not interleaved.
    ep, etp : int
        Expert and expert-tensor parallel degrees; ep*etp divides tp*cp*dp.
    zero_stage : int
        0-3. 3 shards parameters (ZeRO-3, FSDP); 1 shards the optimizer, 2 gradients too.
    fsdp : int
        Ranks over which ZeRO/FSDP shards; 0 means all of dp (and cp). dp = replicas * fsdp.
    mbs : int
        Sequences per micro-batch and data-parallel rank.
    recompute : {'none', 'selective', 'full', 'block', 'every', 'op'}
        Kind of activation recomputation (`planner.layout.recompute`).
    schedule : str
        Name of a pipeline schedule; 1f1b when pp is 1.
    reshard : {'default', 'always', 'never'}
        Whether stage 3 frees parameters after the forward and gathers them again for the backward.
    cp_kind : str
        How attention crosses the cp ranks: ring (keys and values travel from rank to rank), all-gather (of keys and
        values), ulysses (all-to-all from sequence to heads and back), hierarchical (ulysses over `cp_ulysses`
        neighbours, ring over those groups); blank: the framework's.
    cp_ulysses : int
        Inner degree of the hierarchical kind; 0 with the others.
    stage_layers : tuple of int
        Decoder layers of each virtual stage, in the order of the model; empty for the default rule
        (`planner.layout.splits.split_layers`). The first and the last may be 0: embedding or loss alone.
    recompute_modules : tuple of str
        Of a selective policy, out of `planner.layout.recompute.MODULES`; empty: the attention core.
    recompute_layers : tuple of int
        Layers of a chunk (full), recomputed layers of a virtual stage (block), or the frequency (every): one number
        for all virtual stages, or one each. Empty: 1, all of them, 2.
    offload_optimizer : int
        Per cent of the optimizer's states and main weights that lie in host memory and are updated there.
    offload_parameters : int
        1: the shards of ZeRO-3 lie in host memory and come over its link before each gather.
    offload_activations : int
        Layers of each virtual stage, from its first, whose activations wait in host memory for the backward.
    order : str
        Axes that world ranks unfold into, the fastest first (`planner.layout.axes.ORDERS`).
    placement : tuple of int
        GPU of every world rank, ``node x gpus_per_node + gpu``; empty: ranks fill the nodes in order. A plan says it
        in its own `placement`.

    Raises
    ------
    hwmodels.errors.InputError
        For a value of another type; words and ranges are a matter of `planner.layout.rules`.
    """

    tp: int = 1
    sp: int = 0
    cp: int = 1
    pp: int = 1
    vpp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    zero_stage: int = 0
    fsdp: int = 0
    mbs: int = 1
    recompute: str = "none"
    schedule: str = "1f1b"
    stage_layers: tuple[int, ...] = ()
    recompute_modules: tuple[str, ...] = ()
    recompute_layers: tuple[int, ...] = ()
    cp_kind: str = ""
    cp_ulysses: int = 0
    reshard: str = "default"
    offload_optimizer: int = 0
    offload_parameters: int = 0
    offload_activations: int = 0
    order: str = ORDERS[0]
    placement: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values of other types with `InputError`; numpy's whole numbers and lists become Python's."""
        numbers = _NUMBERS(self)
        held = {*map(type, numbers)} == _INT and min(numbers) >= -LARGEST and max(numbers) <= LARGEST
        if held and all(part == () for part in _SEQUENCES(self)):
            return  # nearly always: a search makes few layouts, but a sweep in Python may make many
        for name, value in normal_values({f.name: getattr(self, f.name) for f in fields(self)}).items():
            object.__setattr__(self, name, value)

    @property
    def world(self) -> int:
        """Ranks that the layout uses."""
        return self.tp * self.cp * self.pp * self.dp

    def microbatches(self, gbs: int) -> int:
        """Micro-batches of one step: gbs / (mbs * dp)."""
        return gbs // (self.mbs * self.dp)

    def label(self) -> str:
        """Short text for tables: the degrees that are not 1."""
        parts = [f"{k}{getattr(self, k)}" for k in ("tp", "cp", "pp", "vpp", "dp", "ep", "etp") if getattr(self, k) > 1]
        if self.sp:
            parts.insert(1 if self.tp > 1 else 0, "sp")
        if self.cp > 1 and self.cp_kind:
            parts.append(self.cp_kind + (str(self.cp_ulysses) if self.cp_ulysses else ""))
        if self.zero_stage:
            parts.append(f"zero{self.zero_stage}")
        if self.zero_stage and self.fsdp not in (0, self.dp):
            parts.append(f"fsdp{self.fsdp}")
        if self.reshard != "default":
            parts.append(f"reshard-{self.reshard}")
        parts.append(f"mbs{self.mbs}")
        if self.recompute != "none":
            numbers = split_text(self.recompute_layers)
            parts.append(" ".join(filter(None, (self.recompute, "+".join(self.recompute_modules), numbers))))
        parts += [f"{what} {amount} on host" for what in ("optimizer", "parameters", "activations")
                  if (amount := getattr(self, f"offload_{what}"))]  # fmt: skip
        if self.pp > 1:
            parts.append(self.schedule)
        if self.stage_layers:
            parts.append(f"layers {split_text(self.stage_layers)}")
        if self.order != ORDERS[0]:
            parts.append(self.order)
        if self.placement:
            parts.append("placed")
        return " ".join(parts) if parts else "single"


_SEQUENCES = attrgetter("stage_layers", "recompute_layers", "recompute_modules", "placement")
_NUMBERS = attrgetter(*(f.name for f in fields(Layout) if f.name not in CODES))
_INT = {int}

_DEFAULTS: dict[str, int] = {
    f.name: CODES[f.name].encode(f.default) if f.name in CODES else int(f.default)  # type: ignore[arg-type]
    for f in fields(Layout)
}
"""Default of each field of `Layout` as it stands in a `LayoutBatch`."""


@dataclass(frozen=True, slots=True, eq=False)
class LayoutBatch:
    """Many layouts as arrays of one shape (``()`` for a single one).

    Fields as in `Layout`, those that are no numbers by their `CODES`: `recompute` and `schedule` are
    indices into `RECOMPUTE` and `SCHEDULES`, `stage_layers` and `recompute_layers` are numbers of
    `planner.layout.splits.split_id` (0 is the default rule), `recompute_modules` has a bit for each module.
    """

    tp: IntArray
    sp: IntArray
    cp: IntArray
    pp: IntArray
    vpp: IntArray
    dp: IntArray
    ep: IntArray
    etp: IntArray
    zero_stage: IntArray
    fsdp: IntArray
    mbs: IntArray
    recompute: IntArray
    schedule: IntArray
    stage_layers: IntArray
    recompute_modules: IntArray
    recompute_layers: IntArray
    cp_kind: IntArray
    cp_ulysses: IntArray
    reshard: IntArray
    offload_optimizer: IntArray
    offload_parameters: IntArray
    offload_activations: IntArray
    order: IntArray
    placement: IntArray

    @classmethod
    def of(cls, layouts: Layout | Sequence[Layout]) -> LayoutBatch:
        """From one layout (shape ``()``) or a sequence of n (shape ``(n,)``)."""
        single = isinstance(layouts, Layout)
        items: Sequence[Layout] = [layouts] if isinstance(layouts, Layout) else layouts
        columns = {}
        for field in fields(cls):
            values = [getattr(item, field.name) for item in items]
            if (code := CODES.get(field.name)) is not None:
                values = [code.encode(value) for value in values]
            array = np.asarray(values, dtype=np.int64)
            columns[field.name] = array[0] if single else array
        return cls(**{name: np.asarray(array) for name, array in columns.items()})

    @classmethod
    def filled(cls, columns: Mapping[str, IntArray]) -> LayoutBatch:
        """From columns of one shape; a field without a column has the default of `Layout` throughout."""
        shape = np.shape(next(iter(columns.values())))
        rest = {f.name: _DEFAULTS[f.name] for f in fields(cls) if f.name not in columns}
        same = {name: np.broadcast_to(np.asarray(value, dtype=np.int64), shape) for name, value in rest.items()}
        return cls(**(dict(columns) | same))

    def __len__(self) -> int:
        return int(np.size(self.tp))

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_] | slice) -> LayoutBatch:
        """The layouts at `index` (integer positions, a mask, or a slice of them, which copies nothing)."""
        if isinstance(index, slice):
            return LayoutBatch(*(column[index] for column in _COLUMNS(self)))
        where = np.flatnonzero(index) if index.dtype == np.bool_ else index
        n, most = len(where), len(self)

        def one(column: IntArray) -> IntArray:
            if column.strides != (0,):
                return np.asarray(column.take(where))
            # one value in one place of memory
            return column[:n] if n <= most else np.broadcast_to(column[:1].reshape(()), (n,))

        return LayoutBatch(*map(one, _COLUMNS(self)))

    def distinct(self, names: Sequence[str]) -> tuple[IntArray, IntArray]:
        """Layouts (shape (n,)) that differ in the fields `names`.

        Returns
        -------
        first : ndarray (k,)
            Position of the first layout of each distinct combination.
        inverse : ndarray (n,)
            Which of them each layout has.
        """
        return distinct_rows([np.asarray(getattr(self, name)) for name in names], len(self))

    def layout(self, i: int) -> Layout:
        """The i-th layout as a `Layout`."""
        values = {f.name: int(np.atleast_1d(getattr(self, f.name))[i]) for f in fields(self)}
        fields_of: dict[str, Any] = {n: CODES[n].decode(v) if n in CODES else v for n, v in values.items()}
        return Layout(**fields_of)

    @property
    def world(self) -> IntArray:
        """Ranks of each layout."""
        return np.asarray(self.tp * self.cp * self.pp * self.dp)

    def microbatches(self, gbs: int) -> IntArray:
        """Micro-batches of one step: gbs / (mbs * dp)."""
        return np.asarray(gbs // (self.mbs * self.dp))

    @property
    def fsdp_degree(self) -> IntArray:
        """Ranks over which ZeRO/FSDP shards: `fsdp`, or dp where it is blank (0)."""
        return np.where(self.fsdp > 0, self.fsdp, self.dp)

    @property
    def edp(self) -> IntArray:
        """Expert data parallel degree: tp*cp*dp / (ep*etp)."""
        return np.asarray(np.maximum(self.tp * self.cp * self.dp // (self.ep * self.etp), 1))

    @property
    def expert_shard(self) -> IntArray:
        """Ranks over which ZeRO/FSDP shards expert state: edp over the replicas of dp."""
        return np.asarray(np.maximum(self.edp // np.maximum(self.dp // self.fsdp_degree, 1), 1))

    def with_cp_kind(self, default: str) -> LayoutBatch:
        """The same with `default` as the kind of context parallelism where it is left open."""
        kind = np.where(self.cp_kind == 0, OPEN_CP_KINDS.index(default), self.cp_kind)
        return replace(self, cp_kind=np.asarray(kind))

    @property
    def cp_inner(self) -> IntArray:
        """Ranks that exchange sequence for heads: cp with ulysses, `cp_ulysses` with the hierarchical kind, else 1."""
        ulysses, hierarchical = (OPEN_CP_KINDS.index(name) for name in ("ulysses", "hierarchical"))
        inner = np.where(self.cp_kind == hierarchical, np.maximum(self.cp_ulysses, 1), 1)
        return np.asarray(np.where(self.cp_kind == ulysses, self.cp, inner))

    @property
    def cp_outer(self) -> IntArray:
        """Ranks that exchange keys and values: cp over `cp_inner`."""
        return np.asarray(self.cp // self.cp_inner)

    def axis(self, name: str) -> tuple[IntArray, IntArray]:
        """Size of the groups of one axis, and the distance in ranks between neighbours of its fastest level.

        See `planner.layout.axes.levels`.
        """
        found = axes.levels(self, name)
        return np.asarray(np.prod([size for size, _ in found], axis=0)), found[0][1]

    def group(self, name: str, where: int | Cluster) -> GroupShape:
        """Shape of the groups of one axis on nodes of so many GPUs, or on the nodes of a cluster.

        Only a cluster tells where groups that lie apart in two ways cross its switches (`planner.layout.axes.shape`).
        """
        if isinstance(where, int):
            found = axes.shape(self, name, where)
        else:
            found = axes.shape(self, name, where.gpus_per_node, where)
        return placed.shape(self, name, found, where) if axes.is_placed(self) else found


_COLUMNS = attrgetter(*(f.name for f in fields(LayoutBatch)))


def divisors(n: int, most: int | None = None) -> list[int]:
    """Divisors of n in rising order, none above `most`."""
    limit = n if most is None else min(n, most)
    return [d for d in range(1, limit + 1) if n % d == 0] if n < 100_000 else _large_divisors(n, limit)


def _large_divisors(n: int, limit: int) -> list[int]:
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted(d for d in {*small, *(n // d for d in small)} if d <= limit)


def with_defaults(layout: Layout, world: int) -> Layout:
    """Fill dp from the world size where tp*cp*pp divides it, the schedule from vpp, and vpp from the schedule."""
    rest = layout.tp * layout.cp * layout.pp
    dp = world // rest if rest > 0 and world % rest == 0 else layout.dp
    schedule = "interleaved-1f1b" if layout.vpp > 1 and layout.schedule == "1f1b" else layout.schedule
    vpp = layout.vpp
    if vpp == 1 and layout.pp > 1 and schedule in SCHEDULES and get_schedule(schedule).vpp_only:
        vpp = get_schedule(schedule).vpp_only
    return replace(layout, dp=dp, schedule=schedule, vpp=vpp)
