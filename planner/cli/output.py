"""What commands print: the same as those of ``python -m hwmodels``."""

from hwmodels.cli.output import (
    PLAIN_WIDTH,
    console,
    jsonable,
    note,
    print_json,
    print_pairs,
    print_table,
    say,
    say_error,
    show_table,
)

__all__ = [
    "PLAIN_WIDTH",
    "console",
    "jsonable",
    "note",
    "print_json",
    "print_pairs",
    "print_table",
    "say",
    "say_error",
    "show_table",
]
