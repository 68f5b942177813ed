"""What commands print, of both programs: tables and messages for people, JSON for machines.

Results go to stdout; errors, logs and progress go to stderr. Colour and box drawing appear on a
terminal only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PLAIN_WIDTH = 400


def console(stream: Any = None) -> Console:
    """A console on stdout (or another stream) that is plain when the stream is not a terminal."""
    from rich.console import Console

    stream = stream or sys.stdout
    terminal = stream.isatty()
    # A pipe has no width: a table must not be cut to 80 columns there.
    return Console(
        file=stream,
        highlight=False,
        soft_wrap=not terminal,
        width=None if terminal else PLAIN_WIDTH,
        no_color=None if terminal else True,
    )


def say(message: str = "") -> None:
    """One line for a person on stdout."""
    print(message)


def note(message: str) -> None:
    """One line of log on stderr."""
    print(message, file=sys.stderr, flush=True)


def say_error(message: str) -> None:
    """The one message of a failed command, on stderr, its lines as they are."""
    text = message.rstrip() or "failed"
    if sys.stderr.isatty():
        from rich.text import Text

        console(sys.stderr).print(Text("error: ", style="bold red").append(text, style="default not bold"))
    else:
        print(f"error: {text}", file=sys.stderr, flush=True)


def print_json(content: Any) -> None:
    """One JSON document on stdout; infinities and NaN become null."""
    print(json.dumps(jsonable(content), indent=1, allow_nan=False))


def jsonable(content: Any) -> Any:
    """Plain JSON types of dataclasses, NumPy values, mappings and sequences."""
    from dataclasses import fields, is_dataclass

    if is_dataclass(content) and not isinstance(content, type):
        return {f.name: jsonable(getattr(content, f.name)) for f in fields(content)}
    if isinstance(content, Mapping):
        return {str(key): jsonable(value) for key, value in content.items()}
    if isinstance(content, str) or content is None or isinstance(content, bool | int):
        return content
    if isinstance(content, float):
        return content if content == content and abs(content) != float("inf") else None
    if hasattr(content, "tolist"):
        return jsonable(content.tolist())
    if isinstance(content, Iterable):
        return [jsonable(value) for value in content]
    return str(content)


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
    """A table on stdout: the first `left` columns are text, the others numbers flush right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title) if title else None, title_justify="left")
    for i, name in enumerate(header):
        table.add_column(Text(name), justify="left" if i < left else "right", no_wrap=i >= left)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    show_table(table)


def show_table(table: Table) -> None:
    """A rich table on stdout; on a pipe it is the same without box drawing, one row a line."""
    from rich import box

    target = console()
    table.box = box.SIMPLE_HEAD if target.is_terminal else None
    table.title_style = "bold" if target.is_terminal else "none"
    table.caption_style, table.caption_justify = "none", "left"
    table.pad_edge, table.padding = False, (0, 2, 0, 0)
    # Printed by Python itself: rich would end the process where the reader of a pipe has gone away.
    with target.capture() as captured:
        target.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Aligned ``name  value`` lines on stdout."""
    found = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in found), default=0)
    for name, value in found:
        print(f"{name:<{width}}  {value}")
