"""Words of the command line that are plainly right, without the machinery that explains wrong ones.

Typer builds a pydantic validator for each option of a command, given or not, when it parses: a quarter of a second
for the fifty options of ``search``, of which two or three are given. Here a value that is evidently of its type is
taken as it is; all others go to Typer, which says what is wrong with them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

WHOLE = re.compile(r"-?[0-9]{1,18}")
DECIMAL = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?")
UNSURE = object()


def take_plain_values(command: Any) -> None:
    """Let the options of a command (and of those below it) take plainly right values themselves.

    Parameters
    ----------
    command : click command or group
        Changed in place: `get_params` is where click asks for its options, ``--help`` included, and `process_value`
        of an option is what it calls with the word that was given, or with the default.
    """
    listed = command.get_params

    def get_params(context: Any) -> list[Any]:
        found: list[Any] = listed(context)
        for parameter in found:
            if not isinstance(parameter.process_value, _Plain):
                parameter.process_value = _Plain(parameter)
        return found

    command.get_params = get_params
    for below in getattr(command, "commands", {}).values():
        take_plain_values(below)


class _Plain:
    """`process_value` of one parameter."""

    def __init__(self, parameter: Any) -> None:
        self.parameter, self.careful = parameter, parameter.process_value

    def __call__(self, context: Any, value: Any) -> Any:
        taken = plain(self.parameter, value)
        if taken is UNSURE:
            return self.careful(context, value)
        callback = self.parameter.callback
        return taken if callback is None else callback(context, self.parameter, taken)


def plain(parameter: Any, value: Any) -> Any:
    """The value of a parameter where there can be no doubt about it, otherwise `UNSURE`.

    Parameters
    ----------
    parameter : click parameter
        Typer's: with `type_descriptor` (the annotation) and its `parameter_info` (bounds, checks of paths).
    value : object
        As click hands it over: text of the command line, a default, or None where the option was not given.
    """
    descriptor = getattr(parameter, "type_descriptor", None)
    if descriptor is None:
        return UNSURE
    several = parameter.multiple or parameter.nargs != 1
    if value is None and not parameter.required:
        return () if several else None
    if several:
        return UNSURE
    if value is True or value is False:
        return value if descriptor.annotation is bool else UNSURE
    annotation, info = descriptor.annotation, descriptor.parameter_info
    if info.parser is not None:
        return UNSURE
    if annotation is str and isinstance(value, str):
        return value
    if annotation in (int, float):
        if isinstance(value, str) and (WHOLE if annotation is int else DECIMAL).fullmatch(value):
            value = annotation(value)
        inside = type(value) is annotation and (info.min is None or value >= info.min)
        return value if inside and (info.max is None or value <= info.max) else UNSURE
    checked = info.exists or info.resolve_path or info.path_type is not None or info.allow_dash
    if annotation is Path and isinstance(value, str | Path) and not checked:
        return Path(value)
    return UNSURE
