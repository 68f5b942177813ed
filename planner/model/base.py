"""The contract of a model importer, and the reader of config keys that it works with.

An importer names the `model_type`s it reads and turns one config into a `ModelSpec`. It asks
`ConfigKeys` for values; every fault is noted under its key path and all of them are raised
together, before anything is built. A default is given only where the Hugging Face config
class of the family fills the key in itself; the importer's file says so.
"""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from hwmodels.errors import Fault, InputError
from planner.model.spec import ModelSpec

MAX_LAYERS = 4096
"""A config with more layers than this is taken for a mistake, not for a model."""


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED = _Required()


def kind_of(value: Any) -> str:
    """A JSON value as a person would call it, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"{str(value).lower()} (true/false)"
    if isinstance(value, str):
        return f"{value!r} (text)"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return repr(value)


class ConfigKeys:
    """Typed access to the keys of a config that collects every fault.

    Parameters
    ----------
    config : mapping
        Parsed JSON object.
    name, source : str
        Name of the model; where the config came from (shown in front of the key path).
    prefix : str
        Key path of this object inside the file (``"text_config."``).
    faults : list
        Shared by nested sections.
    """

    def __init__(
        self, config: Mapping[str, Any], name: str, source: str, prefix: str = "", faults: list[Fault] | None = None
    ) -> None:
        self.config = config
        self.name = name
        self.source = source
        self.prefix = prefix
        self.faults: list[Fault] = [] if faults is None else faults

    def where(self, key: str) -> str:
        """Source and key path, as faults print them."""
        path = f"{self.prefix}{key}"
        return f"{self.source}: {path}" if self.source else path

    def fault(self, key: str, what: str, why: str = "", fix: str = "") -> None:
        """Note a fault of one key."""
        self.faults.append(Fault(what, self.where(key), why, fix))

    def sound(self, *keys: str) -> bool:
        """Whether none of the keys has a fault: only then may their values be held against each other."""
        bad = {fault.where for fault in self.faults}
        return not any(self.where(key) in bad for key in keys)

    def given(self, key: str) -> bool:
        """Whether the key is present and not null."""
        return self.config.get(key) is not None

    def first(self, *names: str) -> str:
        """The first of several spellings of a key that is given; the first of all where none is."""
        return next((name for name in names if self.given(name)), names[0])

    def _missing(self, key: str, expected: str) -> None:
        if key in self.config:
            self.fault(key, "is null", f"{expected} is needed and has no default", f"{key}: {expected}")
            return
        near = difflib.get_close_matches(key, [str(k) for k in self.config], 1, 0.8)
        hint = f" (did you mean that by {near[0]!r}?)" if near else ""
        self.fault(key, f"is missing{hint}", f"{expected} is needed and has no default", f"add {key!r}")

    def integer(self, key: str, default: Any = REQUIRED, *, minimum: int = 1, expected: str = "a whole number") -> int:
        """A whole number of at least `minimum`; null counts as absent."""
        value = self.config.get(key)
        if value is None:
            if default is REQUIRED:
                self._missing(key, expected)
                return max(minimum, 1)
            return int(default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fault(key, f"is {kind_of(value)}", f"{expected} is expected", "a number without quotes or decimals")
            return max(minimum, 1)
        if value < minimum:
            self.fault(
                key, f"is {value}", f"{expected} of at least {minimum} is expected", f"{key}: {max(minimum, 1)} or more"
            )
            return max(minimum, 1)
        return value

    def optional_integer(self, key: str, default: int | None = None) -> int | None:
        """A whole number, or None where the key is null (absent: `default`)."""
        if key in self.config:
            return self.integer(key) if self.config[key] is not None else None
        return default

    def number(self, key: str, default: float, *, minimum: float = 0.0) -> float:
        """A finite number above `minimum`; null counts as absent."""
        value = self.config.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            self.fault(key, f"is {kind_of(value)}", "a number is expected", f"{key}: {default}")
            return default
        if value <= minimum:
            self.fault(key, f"is {value}", f"a number above {minimum:g} is expected", f"{key}: {default}")
            return default
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false; null counts as absent."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fault(key, f"is {kind_of(value)}", "true or false is expected", f"{key}: {str(default).lower()}")
            return default
        return value

    def text(self, key: str, default: str) -> str:
        """A piece of text; null counts as absent."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self.fault(key, f"is {kind_of(value)}", "text is expected", f"{key}: {default!r}")
            return default
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers >= 0; absent or null is empty."""
        value = self.config.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in value):
            self.fault(key, f"is {kind_of(value)}", "a list of whole numbers is expected", f"{key}: []")
            return ()
        return tuple(value)

    def section(self, key: str) -> ConfigKeys:
        """A nested object; noted as a fault where it is missing."""
        value = self.config.get(key)
        if not isinstance(value, Mapping):
            if value is None:
                self._missing(key, "an object")
            else:
                self.fault(key, f"is {kind_of(value)}", "an object is expected", f"{key}: {{...}}")
            value = {}
        return ConfigKeys(value, self.name, self.source, f"{self.prefix}{key}.", self.faults)

    def layer_count(self, key: str, default: Any = REQUIRED) -> int:
        """Number of layers, refused above `MAX_LAYERS`."""
        value = self.integer(key, default)
        if value > MAX_LAYERS:
            self.fault(
                key, f"is {value}", f"no known model has more than {MAX_LAYERS} layers", "the number of decoder layers"
            )
            return 1
        return value

    def head_dim(
        self,
        hidden: int,
        heads: int,
        *,
        hidden_key: str = "hidden_size",
        heads_key: str = "num_attention_heads",
        key: str = "head_dim",
    ) -> int:
        """`head_dim` where it is given, else hidden/heads, which must then be whole.

        Every Hugging Face class without its own `head_dim` default computes it this way.
        """
        if key and self.given(key):
            return self.integer(key)
        if hidden % heads and self.sound(hidden_key, heads_key):
            extra = f", or give {key}" if key else ""
            self.fault(
                heads_key,
                f"{heads} heads do not divide {hidden_key}={hidden}",
                "a head is hidden/heads wide",
                f"a divisor of {hidden}{extra}",
            )
        return max(hidden // heads, 1)

    def kv_heads(
        self, heads: int, default: Any, key: str = "num_key_value_heads", heads_key: str = "num_attention_heads"
    ) -> int:
        """Key-value heads; they must divide the attention heads."""
        kv = self.integer(key, default)
        if heads % kv and self.sound(key, heads_key):
            self.fault(
                key,
                f"{kv} key-value heads do not divide {heads_key}={heads}",
                "each key-value head serves the same number of query heads",
                f"a divisor of {heads}",
            )
        return kv

    def experts(self, key: str, top_key: str = "num_experts_per_tok") -> tuple[int, int]:
        """Routed experts, and how many of them a token meets."""
        experts, top_k = self.integer(key), self.integer(top_key)
        if top_k > experts and self.sound(key, top_key):
            self.fault(top_key, f"is {top_k}", f"there are {experts} experts", f"at most {experts}")
        return experts, top_k

    def rope_theta(self, default: float = 10000.0) -> float:
        """Base of the rotary angles, from `rope_parameters` (transformers 5) or `rope_theta`."""
        nested = self.config.get("rope_parameters")
        if isinstance(nested, Mapping):
            inner = nested.get("full_attention", nested)
            if isinstance(inner, Mapping) and inner.get("rope_theta") is not None:
                return ConfigKeys(inner, self.name, self.source, f"{self.prefix}rope_parameters.", self.faults).number(
                    "rope_theta", default
                )
        return self.number("rope_theta", default)

    def rotary_fraction(self, default: float) -> float:
        """Share of a head that is rotated; at most 1."""
        nested = self.config.get("rope_parameters")
        inside = isinstance(nested, Mapping) and nested.get("partial_rotary_factor") is not None
        keys = self.section("rope_parameters") if inside else self
        value = keys.number("partial_rotary_factor", default)
        if value > 1:
            keys.fault(
                "partial_rotary_factor", f"is {value}", "it is a share of the head", "a number above 0 and at most 1"
            )
        return value

    def layer_types(self, n_layers: int, default: list[bool]) -> list[bool]:
        """Which layers slide a window: from `layer_types` where given, else `default`."""
        value = self.config.get("layer_types")
        if value is None:
            return default
        known = ("full_attention", "sliding_attention")
        if not isinstance(value, list) or len(value) != n_layers or any(v not in known for v in value):
            self.fault(
                "layer_types",
                f"is {kind_of(value)}",
                f"one of {' or '.join(known)} for each of the {n_layers} layers is expected",
                "leave it out",
            )
            return default
        return [v == "sliding_attention" for v in value]

    def finish(self) -> None:
        """Raise `InputError` with every fault noted so far; return silently if there is none."""
        if self.faults:
            raise InputError(self.faults)


class Importer(ABC):
    """Reads the configs of one model family; found by its `model_types`."""

    model_types: ClassVar[tuple[str, ...]]

    @abstractmethod
    def build(self, keys: ConfigKeys) -> ModelSpec:
        """The spec of a config.

        Implementations read all keys, call `keys.finish()`, and only then build.

        Raises
        ------
        hwmodels.errors.InputError
            With every missing, mistyped or contradictory key of the config.
        """

    def read(self, config: Mapping[str, Any], name: str = "", source: str = "") -> ModelSpec:
        """The spec of a parsed config.json; raises `InputError` with all its faults."""
        return self.build(ConfigKeys(config, name, source))
