"""Reading and writing files at the edge: faults with file, line and key; atomic writes.

Readers collect all faults of a file and raise them together as `InputError`; writers write
beside the target and rename, so that a killed run leaves no half-written file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hwmodels.errors import Fault, InputError, RunError


def read_text(path: str | Path) -> str:
    """Text of a file; `InputError` where it is missing, a folder, or not UTF-8."""
    path = Path(path)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = _neighbours(path)
        fix = "one of " + ", ".join(near) if near else "a path that exists"
        raise InputError(Fault("no such file", str(path), "", fix)) from None
    except IsADirectoryError:
        raise InputError(Fault("is a folder", str(path), "a file is needed", "the path of a file in it")) from None
    except UnicodeDecodeError as error:
        raise InputError(Fault("is not UTF-8 text", str(path), str(error), "a text file")) from None
    except OSError as error:
        raise InputError(Fault("cannot be read", str(path), error.strerror or str(error), "a readable file")) from None


def _neighbours(path: Path) -> list[str]:
    """Names beside a missing file that may have been meant: close ones first, then others of its suffix."""
    import difflib

    try:
        names = sorted(p.name for p in path.parent.iterdir())
    except OSError:  # no such folder, or one that may not be listed
        return []
    close = difflib.get_close_matches(path.name, names, 4, 0.6)
    same = [name for name in names if path.suffix and name.endswith(path.suffix) and not name.startswith(".")]
    return list(dict.fromkeys([*close, *same]))[:8]


def read_json(path: str | Path) -> Any:
    """Parsed JSON; `InputError` where it is broken (line and column) or gives a key twice."""
    text = read_text(path)
    twice: list[Fault] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            keys = [key for key, _ in pairs]
            repeated = sorted({key for key in keys if keys.count(key) > 1})
            twice.extend(
                Fault(f"key {key!r} is given twice", str(path), "a parser would keep the last", "one of the two")
                for key in repeated
            )
        return content

    try:
        content = json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise InputError(Fault("is nested too deeply", str(path), "no document of ours is", "a flatter file")) from None
    except json.JSONDecodeError as error:
        where = f"{path}:{error.lineno}:{error.colno}"
        raise InputError(Fault("is not valid JSON", where, error.msg, "a file that a JSON parser accepts")) from None
    if twice:
        raise InputError(twice)
    return content


def write_text(path: str | Path, text: str) -> Path:
    """Write beside the target, flush, and rename onto it; returns the path."""
    import tempfile  # with random and its kin; what only reads has no use for them

    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error.strerror or error}). Try: a folder that can be written to"
        ) from None
    return path


def write_json(path: str | Path, content: Any) -> Path:
    """Write JSON as `write_text` does, keys in the order given.

    Raises
    ------
    hwmodels.errors.RunError
        Where the file cannot be written, or a value is infinite or no number.
    """
    try:
        text = json.dumps(content, indent=1, allow_nan=False)
    except ValueError as error:
        raise RunError(f"{path}: not written, because a value cannot be said in JSON ({error})") from None
    return write_text(path, text + "\n")
