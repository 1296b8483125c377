"""What is plain data and what is not: by name and by content."""

from __future__ import annotations

import gzip
import io
import pickle
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from swarm.core.errors import FileRefused
from swarm.files.plain import HEAD_BYTES, SUFFIXES, check_content, check_name


def judge(name: str, data: bytes) -> None:
    check_name(name)
    check_content(name, data[:HEAD_BYTES], data[-8:], size_bytes=len(data))


def array(values: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, values, version=version, allow_pickle=True)
    return file.getvalue()


def safetensors(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


PLAIN = {
    "text.txt": b"In the beginning",
    "UPPER.TXT": "Größe".encode(),
    "latin.txt": "Größe".encode("latin-1"),
    "utf16.txt": "MZ, in the beginning".encode("utf-16"),
    "names.txt": b"MZungu was here, and PK too: BZh9",
    "words.txt": b"cat\ndog\n",
    "dos.txt": b"ab\r\ncdef\r\n",
    "table.csv": b"a,b\n1,2\n",
    "table.tsv": b"a\tb\n",
    "notes.md": b"# Notes\n",
    "config.json": b'\xef\xbb\xbf \n{"a": 1}',
    "list.json": b"[1]",
    "lines.jsonl": b'"a"\n{}\n',
    "tokens.bin": np.arange(1000, dtype=np.uint16).tobytes(),
    "tokenizer.model": b"\n\x0e\n\x05<unk>",
    "chat_template.jinja": b"{% for message in messages %}{{ message['content'] }}{% endfor %}",
    "qwen.tiktoken": b"IQ== 0\nIg== 1\n",
    "f4.npy": array(np.zeros((2, 3), np.float32)),
    "v2.npy": array(np.zeros(3, np.float32), (2, 0)),
    "fields.npy": array(np.zeros(3, np.dtype([("O", "<f4"), ("b", [("Oh", "<i8", (2,))])]))),
    "text.npy": array(np.array(["O", "<O"])),
    "model.safetensors": safetensors(b'{"__metadata__":{}}'),
    "rows.parquet": b"PAR1" + bytes(20) + b"PAR1",
}


def packed_tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a.txt"))
    return file.getvalue()


def packed_zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    return file.getvalue()


EXECUTED = {
    **{f"pickle protocol {n}": pickle.dumps({"a": 1}, n) for n in range(2, pickle.HIGHEST_PROTOCOL + 1)},
    "zip": packed_zip(),
    "empty zip": b"PK\x05\x06" + bytes(18),
    "gzip": gzip.compress(b"a"),
    "tar": packed_tar(),
    "this interpreter": Path(sys.executable).read_bytes()[:1000],
    "Mach-O": b"\xcf\xfa\xed\xfe\x0c\0\0\1",
    "Mach-O, fat": b"\xca\xfe\xba\xbe\0\0\0\2",
    "PE": b"MZ\x90\0\3\0\0\0" + bytes(200),
    "script": b"#!/bin/sh\nrm -rf /\n",
    "script after a mark": b"\xef\xbb\xbf#!/usr/bin/env python\n",
    "wasm": b"\0asm\1\0\0\0",
    "pyc": b"\xa7\r\r\n\0\0\0\0" + bytes(8),
    "HDF5": b"\x89HDF\r\n\x1a\n",
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_data_passes(name: str) -> None:
    judge(name, PLAIN[name])


def test_every_kind_of_plain_data_is_tried() -> None:
    assert {Path(name).suffix.lower() for name in PLAIN} >= set(SUFFIXES) - {".text", ".ndjson"}


@pytest.mark.parametrize("what", EXECUTED)
@pytest.mark.parametrize("suffix", [".txt", ".bin", ".json", ".safetensors", ".npy", ".parquet"])
def test_what_would_be_executed_is_refused_whatever_its_name(what: str, suffix: str) -> None:
    with pytest.raises(FileRefused, match="only plain data is attached"):
        judge(f"harmless{suffix}", EXECUTED[what])


@pytest.mark.parametrize(
    "name",
    ["a.py", "a.pyc", "a.pt", "a.pth", "a.pkl", "a.pickle", "a.ckpt", "a.h5", "a.npz", "a.zip", "a.tar.gz", "a.so", "a.dylib",
     "a.dll", "a.exe", "a.sh", "a.bat", "a.jinja2", "a.ipynb", "a.html", "a", "txt", "a.txt.py", "a.txt ", ""],
)  # fmt: skip
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(FileRefused, match="no plain data file by its name"):
        check_name(name)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("objects.npy", array(np.array([{}], object))),
        ("objects.npy", array(np.array([(1, {})], np.dtype([("a", "<i4"), ("b", object)])))),
        ("objects.npy", array(np.array([((1, {}),)], np.dtype([("a", [("x", "<i4"), ("y", object, (1,))])])))),
        ("short.npy", b"\x93NUMPY\1\0\xff\xff{"),
        ("odd.npy", b"\x93NUMPY\1\0\4\0(1)\n"),
        ("code.npy", b"\x93NUMPY\1\0\x10\0__import__('os')"),
        ("deep.npy", b"\x93NUMPY\1\0\x88\x13" + b"(" * 5000),
        ("four.npy", b"\x93NUMPY\4\0" + bytes(100)),
        ("text.npy", b"text"),
        ("text.safetensors", b"text, and some more"),
        ("long.safetensors", (1 << 60).to_bytes(8, "little") + b"{}"),
        ("cut.safetensors", (100).to_bytes(8, "little") + b"{}"),
        ("short.safetensors", b"{}"),
        ("text.parquet", b"PAR1 text"),
        ("text.json", b"import os"),
        ("blank.json", b"  \n"),
    ],
)
def test_content_must_be_what_the_name_says(name: str, data: bytes) -> None:
    with pytest.raises(FileRefused, match="not what its name says"):
        judge(name, data)
