"""Reading and writing plan.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hwmodels.errors import Fault, InputError
from planner.documents import describe, from_dict, limited, place
from planner.files import read_json, write_json
from planner.plan import SCHEMA, Plan
from planner.plan_checks import plan_faults

__all__ = ["check_schema", "load_plan", "plan_faults", "plan_from_dict", "save_plan"]


def check_schema(content: Any, known: int, source: str, what: str) -> None:
    """Refuse content of another schema version before its keys are judged.

    Raises
    ------
    hwmodels.errors.InputError
        Where the content is no object, or its ``schema`` is missing or not `known`.
    """
    if not isinstance(content, dict):
        raise InputError(Fault(f"is {describe(content)}", source, f"{what} is a JSON object", f"a {what} file"))
    other = _other_kind(content, what)
    if other:
        raise InputError(Fault(f"this is a {other}, not a {what}", source, "its keys say so", f"a {what} file"))
    where, version = place(source, "schema"), content.get("schema")
    if version is None:
        raise InputError(Fault("is missing", where, f"it says which format of {what} this is", f'"schema": {known}'))
    if version != known or isinstance(version, bool):
        newer = isinstance(version, int) and version > known
        fix = "a newer release of meshwright" if newer else f"write it again with this release, or schema {known}"
        raise InputError(Fault(f"is {describe(version)}", where, f"this release reads schema {known} of {what}", fix))


def _other_kind(content: dict[str, Any], what: str) -> str:
    """Which other document the top-level keys belong to: ``plan``, ``measurement``, or neither."""
    signs = {"plan": {"layout", "workload"}, "measurement": {"step_s", "plan_hash"}}
    found = [kind for kind, keys in signs.items() if keys <= content.keys()]
    return found[0] if found and what in signs and what not in found else ""


def plan_from_dict(content: Any, source: str = "") -> Plan:
    """A plan from plain content; see `load_plan`."""
    check_schema(content, SCHEMA, source, "plan")
    plan = from_dict(Plan, content, source)
    found = plan_faults(plan, source)
    if found:
        raise InputError(limited(found, source))
    return plan


def load_plan(path: str | Path) -> Plan:
    """Read and check a plan.json.

    Raises
    ------
    hwmodels.errors.InputError
        With all faults at once: broken JSON, another schema, unknown or mistyped keys, a layout
        that breaks a rule, grids, shares, stages, actions or placement that contradict it.
    """
    return plan_from_dict(read_json(path), str(path))


def save_plan(plan: Plan, path: str | Path) -> Path:
    """Write a plan.json beside its target and rename it; returns the path.

    Raises
    ------
    hwmodels.errors.RunError
        Where it cannot be written.
    """
    return write_json(path, plan.to_dict())
