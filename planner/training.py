"""`Workload`: what is trained, in which precision, with which optimizer, on sequences of which lengths."""

from __future__ import annotations

from typing import Literal

from hwmodels.errors import Fault, InputError
from hwmodels.records import dataclass
from planner.frameworks.switches import Switches, described, normal
from planner.routing import Routing
from planner.stated import is_number, is_whole, number_fault

LARGEST = 2**30
"""Most sequences a step and tokens a sequence: far beyond any run, and safe in 64-bit products."""

Kind = Literal["pretrain", "sft", "lora"]
KINDS: tuple[Kind, ...] = ("pretrain", "sft", "lora")
MODULES: tuple[str, ...] = ("qkv", "o", "up", "down")
"""What an adapter can sit on: every projection that feeds attention (the fused query, key and value; the
latent ones of MLA), its output projection, and the two products of a dense or shared feed-forward (gate
and up are one)."""

BASES: tuple[str, ...] = ("", "nf4")
MOST_RANK = 1024
MOST_MTP = 8
"""Most multi-token-prediction steps: far beyond the one that published models train."""

MOST_IMAGES = 65_536
VISIONS: tuple[str, ...] = ("frozen", "trained")

FLOP_FORMULAS: tuple[str, ...] = ("full", "causal", "full-no-head", "causal-no-head")
"""What MFU may count (`planner.flops`)."""


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters on frozen weights (Hu et al. 2021, arXiv 2106.09685). Checked when built.

    ``y = x W + scale (drop(x) A) B`` with A (n_in x rank) and B (rank x n_out) in the compute dtype.
    Over a tensor-parallel split A of a column-split W and B of a row-split W are whole on every rank:
    partial sums pass through the reduction that W has anyway, so adapters add no collective.

    Attributes
    ----------
    rank : int
    modules : tuple of str
        Out of `MODULES`.
    dropout : float
        Of the adapter's input; 0 runs no kernel and keeps no mask.
    base : str
        How frozen matrices of the decoder layers are stored: ``""`` as the precision has them, ``"nf4"`` in 4
        bits and dequantised before each use (QLoRA, arXiv 2305.14314).
    """

    rank: int = 16
    modules: tuple[str, ...] = ("qkv", "o")
    dropout: float = 0.0
    base: str = ""

    def __post_init__(self) -> None:
        faults = []
        if not is_whole(self.rank):
            faults.append(number_fault("rank", self.rank, "workload.lora.rank", 16))
        elif not 1 <= self.rank <= MOST_RANK:
            faults.append(Fault(f"rank is {self.rank}", "workload.lora.rank", f"1 to {MOST_RANK}", "16"))
        unknown = [m for m in self.modules if m not in MODULES]
        if unknown or not self.modules:
            what = f"modules has {', '.join(map(repr, unknown))}" if unknown else "modules is empty"
            faults.append(Fault(what, "workload.lora.modules", "adapters sit on weights", ", ".join(MODULES)))
        if not is_number(self.dropout):
            faults.append(number_fault("dropout", self.dropout, "workload.lora.dropout", 0.1, whole=False))
        elif not 0.0 <= self.dropout < 1.0:
            faults.append(Fault(f"dropout is {self.dropout}", "workload.lora.dropout", "a probability", "0.1"))
        if self.base not in BASES:
            fix = "nf4, or leave it out"
            faults.append(Fault(f"base is {self.base!r}", "workload.lora.base", "it is not a known format", fix))
        if faults:
            raise InputError(faults)
        object.__setattr__(self, "modules", tuple(m for m in MODULES if m in self.modules))


Batching = Literal["packed", "padded", "thd"]
BATCHINGS: tuple[Batching, ...] = ("packed", "padded", "thd")


@dataclass(frozen=True, slots=True)
class Documents:
    """Lengths of documents and how a batch is made of them. Checked when built.

    Attention stays inside a document, so a sequence of S tokens costs S E[L²] / (2 E[L]) causal
    pairs: as many as documents of `attended` = E[L²]/E[L] tokens each (a token lies in a document of
    length L with probability proportional to L).

    Attributes
    ----------
    mean_tokens : float
        E[L], after documents longer than a sequence are cut.
    mean_square_tokens2 : float
        E[L²].
    batching : {'packed', 'padded', 'thd'}
        ``packed``: documents fill each sequence of seq_len end to end. ``padded``: a sequence is one document with
        padding up to seq_len, the longest; padding runs through every kernel. ``thd``: a sequence is one document
        without padding (Megatron-Core ``PackedSeqParams``, qkv_format thd): a micro-batch has mbs documents, and
        seq_len only bounds their length.
    """

    mean_tokens: float
    mean_square_tokens2: float
    batching: Batching = "packed"

    def __post_init__(self) -> None:
        where = "workload.documents"
        if self.batching not in BATCHINGS:
            what, fix = f"batching is {self.batching!r}", " or ".join(BATCHINGS)
            raise InputError(Fault(what, f"{where}.batching", "", fix))
        wrong = [
            number_fault(name, getattr(self, name), f"{where}.{name}", example, whole=False)
            for name, example in (("mean_tokens", 1024.0), ("mean_square_tokens2", 1024.0**2))
            if not is_number(getattr(self, name))
        ]
        if wrong:
            raise InputError(wrong)
        if not self.mean_tokens >= 1.0:
            what, why = f"mean_tokens is {self.mean_tokens:g}", "a document has a token"
            raise InputError(Fault(what, f"{where}.mean_tokens", why, "1 or more"))
        if not self.mean_square_tokens2 >= self.mean_tokens**2 * (1.0 - 1e-12):
            what = f"mean_square_tokens2 is {self.mean_square_tokens2:g}"
            why = "a mean of squares is at least the square of the mean"
            fix = f"{self.mean_tokens**2:g} or more"
            raise InputError(Fault(what, f"{where}.mean_square_tokens2", why, fix))

    @classmethod
    def of(cls, lengths: list[int], batching: Batching = "packed") -> Documents:
        """From a sample of lengths."""
        n = len(lengths)
        if not n:
            raise InputError(Fault("no length is given", "workload.documents", "", "at least one length"))
        return cls(sum(lengths) / n, sum(length * length for length in lengths) / n, batching)

    @property
    def attended_tokens(self) -> float:
        """Length of equal documents with the same number of query-key pairs."""
        return self.mean_square_tokens2 / self.mean_tokens


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained. Sizes are checked when built; names by `planner.plan_checks`.

    Attributes
    ----------
    seq_len, gbs : int
        Tokens a sequence; sequences a step.
    precision : str
        A recipe of `planner.precision` (``"bf16"``, ``"fp8"``, ``"mxfp8"`` …).
    optimizer : str
        One of `planner.optimizers`.
    framework : str
        Name of a framework preset.
    kind : {'pretrain', 'sft', 'lora'}
        sft trains every weight, as pretrain does; lora trains adapters only.
    lora : Lora or None
        Adapters; the defaults of `Lora` where kind is lora and none are given.
    documents : Documents or None
        Lengths of packed documents; None: one document fills a sequence.
    grad_dtype : str
        ``"fp32"`` or ``"bf16"``; blank: the framework's.
    main_dtype : str
        One of `planner.optimizers.MAIN_DTYPES`.
    routing : Routing
        How tokens fall on experts; balanced and dropless by default. Dense models do not read it.
    mtp_layers : int
        Multi-token-prediction steps that are trained (Megatron-Core ``--mtp-num-layers``); 0 for none, whatever the
        config of the model holds.
    flop_formula : str
        What counts as model FLOPs: a name of `planner.flops.FORMULAS`.
    images : float
        Images of a sequence, whose tokens are part of its seq_len; 0 trains on text alone, without the tower.
    vision : {'frozen', 'trained'}
        Whether the tower is trained with its projector, or the projector alone.
    switches : tuple of (name, word)
        Fields of the framework preset that this run sets otherwise (`planner.frameworks.switches`).
    """

    seq_len: int
    gbs: int
    precision: str = "bf16"
    optimizer: str = "adamw"
    framework: str = "generic"
    kind: Kind = "pretrain"
    lora: Lora | None = None
    documents: Documents | None = None
    grad_dtype: str = ""
    main_dtype: str = "fp32"
    switches: Switches = ()
    routing: Routing = Routing()
    mtp_layers: int = 0
    flop_formula: str = "full"
    images: float = 0.0
    vision: str = "frozen"

    def __post_init__(self) -> None:
        faults = []
        for name, example in (("seq_len", 4096), ("gbs", 1024)):
            value = getattr(self, name)
            if not is_whole(value):
                faults.append(number_fault(name, value, f"workload.{name}", example))
            elif not 1 <= value <= LARGEST:
                why = f"{name} is a whole number from 1 to {LARGEST}"
                faults.append(Fault(f"{name} is {value}", f"workload.{name}", why, str(example)))
        if not is_whole(self.mtp_layers):
            faults.append(number_fault("mtp_layers", self.mtp_layers, "workload.mtp_layers", 1))
        elif not 0 <= self.mtp_layers <= MOST_MTP:
            why = f"prediction steps are a whole number up to {MOST_MTP}"
            faults.append(Fault(f"mtp_layers is {self.mtp_layers}", "workload.mtp_layers", why, "1, as in DeepSeek-V3"))
        if self.flop_formula not in FLOP_FORMULAS:
            fix = " or ".join(FLOP_FORMULAS)
            faults.append(Fault(f"flop_formula is {self.flop_formula!r}", "workload.flop_formula", "", fix))
        if not is_number(self.images):
            faults.append(number_fault("images", self.images, "workload.images", 1, whole=False))
        elif not 0.0 <= self.images <= MOST_IMAGES:
            why = f"images of a sequence are a number up to {MOST_IMAGES}"
            faults.append(Fault(f"images is {self.images:g}", "workload.images", why, "1"))
        if self.vision not in VISIONS:
            faults.append(Fault(f"vision is {self.vision!r}", "workload.vision", "", " or ".join(VISIONS)))
        if self.kind not in KINDS:
            faults.append(Fault(f"kind is {self.kind!r}", "workload.kind", "", " or ".join(KINDS)))
        if self.lora is not None and self.kind != "lora":
            why = f"kind {self.kind} trains every weight"
            faults.append(Fault("adapters are given", "workload.lora", why, "kind: lora, or no lora"))
        longest = self.seq_len * (1.0 + 1e-12) if is_whole(self.seq_len) else float("inf")
        if self.documents is not None and self.documents.attended_tokens > longest:
            what = f"documents of {self.documents.attended_tokens:g} tokens (mean square over mean)"
            why = f"a document is cut at seq_len={self.seq_len}"
            fix = f"mean_square_tokens2 <= mean_tokens x {self.seq_len}"
            faults.append(Fault(what, "workload.documents", why, fix))
        if faults:
            raise InputError(faults)
        for name in ("seq_len", "gbs", "mtp_layers"):  # numpy's numbers become Python's, which a plan can hold
            object.__setattr__(self, name, int(getattr(self, name)))
        object.__setattr__(self, "switches", normal(self.switches))
        if self.kind == "lora" and self.lora is None:
            object.__setattr__(self, "lora", Lora())

    @property
    def attended_tokens(self) -> float:
        """Tokens of the document that attention runs over: seq_len unless documents are told apart."""
        if self.documents is None or self.documents.batching == "padded":
            return float(self.seq_len)
        return self.documents.attended_tokens

    @property
    def tokens_per_sequence(self) -> float:
        """Tokens that a sequence of the batch runs through the model, padding included."""
        thd = self.documents is not None and self.documents.batching == "thd"
        return self.documents.mean_tokens if self.documents is not None and thd else float(self.seq_len)

    @property
    def padding_share(self) -> float:
        """Share of the tokens that are padding."""
        if self.documents is None or self.documents.batching != "padded":
            return 0.0
        return 1.0 - self.documents.mean_tokens / self.seq_len

    def described(self) -> str:
        """What departs from full training on whole sequences in the framework's dtypes, in words; else blank."""
        found: list[str] = []
        if self.kind != "pretrain":
            found.append(self.kind)
        if self.lora is not None:
            found.append(f"rank {self.lora.rank} on {' '.join(self.lora.modules)}")
            found += [f"dropout {self.lora.dropout:g}"] * bool(self.lora.dropout)
            found += [f"base {self.lora.base}"] * bool(self.lora.base)
        if self.documents is not None:
            how = f"attending {self.attended_tokens:g}"
            how += "" if self.documents.batching == "packed" else f", {self.documents.batching}"
            found.append(f"documents of {self.documents.mean_tokens:g} tokens ({how})")
        found += [f"{self.mtp_layers} prediction steps"] * bool(self.mtp_layers)
        found += [f"{self.images:g} images a sequence, tower {self.vision}"] * bool(self.images)
        found += [f"gradients {self.grad_dtype}"] * bool(self.grad_dtype)
        found += [f"main weights {self.main_dtype}"] * (self.main_dtype != "fp32")
        found += [described(self.switches)] * bool(self.switches)
        found += [self.routing.described()] * (not self.routing.balanced)
        return ", ".join(found)
