"""Which files are plain data: judged by name and by content, where a file is attached and again where it is fetched.

Nothing here is a promise about what a file means. It keeps out whatever some program would execute when it is opened: pickles,
scripts, programs, libraries, and archives, which may hold any of them.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

from swarm.core.errors import FileRefused

SUFFIXES = (
    ".txt", ".text", ".md", ".csv", ".tsv", ".json", ".jsonl", ".ndjson",
    ".npy", ".parquet", ".safetensors", ".bin", ".model", ".jinja", ".tiktoken",
)  # fmt: skip
HEAD_BYTES = 64 << 10  # what is judged, or the whole file if it is shorter
MAX_SAFETENSORS_HEADER = 100_000_000  # the format's own limit
MAX_ARRAY_HEADER = 10_000  # NumPy's own

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (rb"\x80[\x02-\x05]", "a pickle"),
    (rb"PK(?:\x03\x04|\x05\x06|\x07\x08)", "a zip archive, as PyTorch's own files are"),
    (rb"\x1f\x8b|BZh[1-9]1AY&SY|\xfd7zXZ\0|\x28\xb5\x2f\xfd|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07|\x04\x22\x4d\x18", "packed"),
    (rb"[\s\S]{257}ustar", "a tar archive"),
    (rb"\x7fELF", "a program or library"),
    (rb"\xfe\xed\xfa[\xce\xcf]|[\xce\xcf]\xfa\xed\xfe|\xca\xfe\xba[\xbe\xbf]|[\xbe\xbf]\xba\xfe\xca", "a program or library"),
    (rb"MZ[^\0]{0,61}\0", "a program or library"),  # a DOS header of 64 bytes has zeros; a text that begins with MZ has none
    (rb"(?:\xef\xbb\xbf)?#!", "a script"),
    (rb"\0asm|BC\xc0\xde|\x1bLua", "a program"),
    (rb"[\s\S]{2}\r\n[\0\1\3]\0\0\0", "compiled Python"),
    (rb"\x89HDF", "HDF5, which can hold code of a framework"),
)
_MAGICS = tuple((re.compile(pattern), what) for pattern, what in _MAGIC)


def check_name(name: str) -> None:
    """Raises FileRefused unless the name's suffix is of a kind of plain data."""
    if not name.lower().endswith(SUFFIXES):
        raise FileRefused(f"{name!r} is no plain data file by its name: {', '.join(SUFFIXES)} are")


def check_content(name: str, head: bytes, tail: bytes, *, size_bytes: int) -> None:
    """`head`: the first HEAD_BYTES of the file, `tail`: its last 8 bytes. Raises FileRefused."""
    for pattern, what in _MAGICS:
        if pattern.match(head):
            raise FileRefused(f"{name!r} is {what}: only plain data is attached")
    wrong = _wrong(name.lower(), head, tail, size_bytes)
    if wrong:
        raise FileRefused(f"{name!r} is not what its name says: {wrong}")


def _wrong(name: str, head: bytes, tail: bytes, size_bytes: int) -> str | None:
    if name.endswith(".safetensors"):
        length = int.from_bytes(head[:8], "little")
        if len(head) < 9 or not 2 <= length <= min(MAX_SAFETENSORS_HEADER, size_bytes - 8) or head[8:9] != b"{":
            return "no Safetensors header"
    elif name.endswith(".parquet"):
        if head[:4] != b"PAR1" or tail[-4:] != b"PAR1":
            return "no Parquet"
    elif name.endswith(".npy"):
        return _wrong_array(head)
    elif name.endswith(".json") and head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] not in (b"{", b"["):
        return "no JSON object or list"
    return None


def _wrong_array(head: bytes) -> str | None:
    """NumPy's format, versions 1 to 3 (numpy.lib.format). One whose elements are Python objects holds a pickle."""
    if head[:6] != b"\x93NUMPY" or head[6:7] not in (b"\1", b"\2", b"\3"):
        return "no NumPy array"
    begin = 10 if head[6] == 1 else 12
    length = int.from_bytes(head[8:begin], "little")
    if begin + length > len(head) or length > MAX_ARRAY_HEADER:
        return "its header is too long"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python, about how the header is written
            header = ast.literal_eval(head[begin : begin + length].decode("utf-8" if head[6] == 3 else "latin-1").strip())
        objects = _has_objects(header["descr"])
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        return "its header cannot be read"
    return "an array of Python objects, which are pickled" if objects else None


def _has_objects(descr: Any) -> bool:
    """`descr`: '<f4', or a list of (name, descr) or (name, descr, shape)."""
    if isinstance(descr, str):
        return re.search(r"(?:^|[<>|=,\d])O", descr) is not None
    if isinstance(descr, tuple):  # (descr, shape)
        return _has_objects(descr[0])
    return any(_has_objects(field[1]) for field in descr)
