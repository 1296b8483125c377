"""The very bytes of a payload: readers of other versions and implementations depend on them."""

from __future__ import annotations

import hashlib

import ml_dtypes
import numpy as np

from swarm.tensors.codec import encode
from swarm.tensors.payload import Packed, unpack
from swarm.tensors.schema import Schema, TensorSpec

MLP = [
    ("fc1.bias", (32,)),
    ("fc1.weight", (32, 16)),
    ("fc2.bias", (4,)),
    ("fc2.weight", (4, 32)),
    ("norm.bias", (32,)),
    ("norm.weight", (32,)),
]
MLP_HEADER = (
    b'{"fc1.bias":{"dtype":"F32","shape":[32],"data_offsets":[0,128]},'
    b'"fc1.weight":{"dtype":"F32","shape":[32,16],"data_offsets":[128,2176]},'
    b'"fc2.bias":{"dtype":"F32","shape":[4],"data_offsets":[2176,2192]},'
    b'"fc2.weight":{"dtype":"F32","shape":[4,32],"data_offsets":[2192,2704]},'
    b'"norm.bias":{"dtype":"F32","shape":[32],"data_offsets":[2704,2832]},'
    b'"norm.weight":{"dtype":"F32","shape":[32],"data_offsets":[2832,2960]}}'
)


def test_the_demo_model_packs_to_3384_bytes() -> None:
    values = {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in reversed(MLP)}
    packed = Packed(values)
    blob = b"".join(packed)
    assert len(MLP_HEADER) == 410
    assert blob[:424] == (416).to_bytes(8, "little") + MLP_HEADER + b" " * 6
    assert blob[424:] == b"".join(values[name].tobytes() for name, _ in MLP)
    assert len(blob) == packed.size_bytes == 3384
    assert packed.sha256 == hashlib.sha256(blob).hexdigest()
    assert packed.sha256 == "1903bd3a93b09e3496b72f361659f3d05c8c902f6cd7537e9c2f3e72cb6aa9f3"


def test_every_dtype_byte_for_byte() -> None:
    blob = b"".join(
        Packed(
            {
                "w": np.array([[1.0], [-2.5]], np.float32),
                "é\n": np.array(3.5, ml_dtypes.bfloat16),
                "h": np.array([0.5, 6e-8], np.float16),
                "none": np.zeros((0, 3), np.float32),
            }
        )
    )
    header = (
        '{"h":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"none":{"dtype":"F32","shape":[0,3],"data_offsets":[4,4]},'
        '"w":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]},"é\\n":{"dtype":"BF16","shape":[],"data_offsets":[12,14]}}'
    ).encode()
    header += b" " * (-len(header) % 8)
    data = bytes.fromhex("003801000000803f000020c06040")
    assert blob == len(header).to_bytes(8, "little") + header + data
    assert unpack(blob)["é\n"] == 3.5


def test_quantised_deltas_byte_for_byte() -> None:
    spec = TensorSpec("w", "F32", (3, 2))
    theta = np.array([[1.0, -448.0], [3 * 2.0**-10, 0.0], [17.0, -0.0]], np.float32)
    zero = np.zeros_like(theta)
    blob = b"".join(Packed(encode(theta, zero, spec=spec, dtype="F8_E4M3")))
    header = b'{"w":{"dtype":"F8_E4M3","shape":[3,2],"data_offsets":[0,6]},'
    header += b'"w.scale":{"dtype":"F32","shape":[],"data_offsets":[6,10]}}'
    header += b" " * (-len(header) % 8)
    # 1 = 0 0111 000; -448 = 1 1111 110; 1.5 of the least number, a tie: 0 0000 010; 17, a tie: 16 = 0 1011 000.
    data = bytes.fromhex("38fe02005880") + bytes.fromhex("0000803f")
    assert blob == len(header).to_bytes(8, "little") + header + data

    blob = b"".join(Packed(encode(theta / 64, zero, spec=spec, dtype="F4")))
    header = b'{"w":{"dtype":"F4","shape":[32],"data_offsets":[0,16]},'
    header += b'"w.scale":{"dtype":"F8_E8M0","shape":[1],"data_offsets":[16,17]}}'
    header += b" " * (-len(header) % 8)
    # The largest magnitude is 7 = 1.75 · 4, so k = 0: 6 = 0111, the largest code; 17/64, above the tie, gives 0.5 = 0001.
    data = bytes([0xF0, 0x00, 0x81, *[0] * 13, 127])
    assert blob == len(header).to_bytes(8, "little") + header + data


def test_buffers_byte_for_byte() -> None:
    """Whatever the delta_dtype is: their own values."""
    specs = [
        TensorSpec("n", "I64", (), buffer=True),
        TensorSpec("steps", "I32", (2,), buffer=True),
        TensorSpec("var", "F32", (1,), buffer=True),
    ]
    here = {"n": np.array(-2), "steps": np.array([7, 2**31 - 1], np.int32), "var": np.array([0.25], np.float32)}
    held = {}
    for spec in specs:
        held |= encode(np.zeros_like(here[spec.name]), here[spec.name], spec=spec, dtype="F4")
    blob = b"".join(Packed(held))
    header = b'{"n":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"steps":{"dtype":"I32","shape":[2],"data_offsets":[8,16]},'
    header += b'"var":{"dtype":"F32","shape":[1],"data_offsets":[16,20]}}'
    header += b" " * (-len(header) % 8)
    data = bytes.fromhex("feffffffffffffff07000000ffffff7f0000803e")
    assert blob == len(header).to_bytes(8, "little") + header + data
    assert {name: array.tolist() for name, array in unpack(blob).items()} == {"n": -2, "steps": [7, 2**31 - 1], "var": [0.25]}
    canonical = b'[["n","I64",[],true],["steps","I32",[2],true],["var","F32",[1],true]]'
    assert Schema(specs).digest == hashlib.sha256(canonical).hexdigest()


def test_a_schemas_digest() -> None:
    schema = Schema(TensorSpec(name, "F32", shape) for name, shape in MLP)
    canonical = (
        b'[["fc1.bias","F32",[32]],["fc1.weight","F32",[32,16]],["fc2.bias","F32",[4]],'
        b'["fc2.weight","F32",[4,32]],["norm.bias","F32",[32]],["norm.weight","F32",[32]]]'
    )
    assert schema.digest == hashlib.sha256(canonical).hexdigest()
    assert schema.digest == "a43e1f655c0d934b31f8e05218629ec630864bc2c1c84de1fcc7812326e55434"
    assert schema.size_bytes == 2960
    assert Schema([TensorSpec("é", "BF16", ())]).digest == hashlib.sha256('[["é","BF16",[]]]'.encode()).hexdigest()
