"""Reading and writing files at the edge: the functions of `hwmodels.files`, by the name that this package knows."""

from hwmodels.files import read_json, read_text, write_json, write_text

__all__ = ["read_json", "read_text", "write_json", "write_text"]
