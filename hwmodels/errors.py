"""The errors that reach a user, each with the exit code of its meaning.

Every message says what is wrong, where, why, and what would work. Readers of files
collect all faults of a file and raise them together.
"""

from __future__ import annotations

from collections.abc import Iterable

from hwmodels.records import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with an input.

    Attributes
    ----------
    what : str
        The fault itself, e.g. ``"tp is -2"``.
    where : str
        File, line and key (``"cluster.yaml:7: pools[0].nodes"``), option or argument.
    why : str
        The rule or fact that makes it a fault.
    fix : str
        A value or an action that would work.
    rule : str
        Identifier of the broken rule, where there is one.
    """

    what: str
    where: str = ""
    why: str = ""
    fix: str = ""
    rule: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.why:
            text += f" ({self.why})"
        if self.rule:
            text += f" [{self.rule}]"
        if self.fix:
            text += f". Try: {self.fix}"
        return text


class MeshwrightError(Exception):
    """Base of all errors that end a command with a message instead of a traceback."""

    exit_code = 1


class InputError(MeshwrightError):
    """The input is malformed or breaks a rule by itself; exit code 2."""

    exit_code = 2

    def __init__(self, faults: Fault | str | Iterable[Fault]) -> None:
        if isinstance(faults, str):
            faults = Fault(faults)
        self.faults: tuple[Fault, ...] = (faults,) if isinstance(faults, Fault) else tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class InfeasibleError(MeshwrightError):
    """The request is legal, but nothing satisfies it; exit code 3.

    Parameters
    ----------
    message : str
        The request that cannot be met.
    binding : str
        The constraint that excludes the last candidates.
    nearest : str
        The smallest change found that would make the request feasible.
    """

    exit_code = 3

    def __init__(self, message: str, binding: str = "", nearest: str = "") -> None:
        self.binding = binding
        self.nearest = nearest
        parts = [message]
        if binding:
            parts.append(f"Binding constraint: {binding}.")
        if nearest:
            parts.append(f"Nearest that fits: {nearest}.")
        super().__init__(" ".join(parts))


class RunError(MeshwrightError):
    """A run, check or measurement failed; exit code 1."""
