"""What only a framework's own files hold; tests/unit/test_payload.py has all rules."""

from __future__ import annotations

import json

import pytest

from swarm.core.header import ALL_BYTES, WIRE_BYTES, HeaderUnknownDtype, parse_header
from swarm.tensors.precision import WIRE_DTYPES


def test_the_bytes_of_each_dtype_are_those_of_the_arrays() -> None:
    assert {code: dtype.itemsize for code, dtype in WIRE_DTYPES.items()} == WIRE_BYTES


def test_a_framework_s_file_may_hold_more_than_a_payload() -> None:
    text = json.dumps({"__metadata__": {"swarm": "{}"}, "key": {"dtype": "U32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    whole = len(text).to_bytes(8, "little") + text + bytes(8)
    (entry,) = parse_header(whole, len(whole), ALL_BYTES)
    assert (entry.name, entry.end - entry.begin) == ("key", 8)
    with pytest.raises(HeaderUnknownDtype):
        parse_header(whole, len(whole))
