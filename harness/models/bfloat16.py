"""bfloat16 without torch: rounding, and a safetensors writer for it (numpy has no such type)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


def rounded(values: NDArray[np.floating]) -> Float32:
    """The nearest bfloat16 values (ties to even), still held as float32; finite input only."""
    return (_upper_halves(values).astype(np.uint32) << np.uint32(16)).view(np.float32)


def save(tensors: Mapping[str, Float32], path: Path, *, keep_float32: frozenset[str]) -> None:
    """Writes one safetensors file: bfloat16, except the tensors whose last name part is in ``keep_float32``.

    The format is an 8-byte length, a JSON header and the bytes; written here because the library's writer wants torch.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blocks: list[bytes] = []
    end = 0
    for name, value in sorted(tensors.items()):
        exact = name.rsplit(".", 1)[-1] in keep_float32
        blocks.append((value.astype("<f4") if exact else _upper_halves(value).astype("<u2")).tobytes())
        start, end = end, end + len(blocks[-1])
        header[name] = {
            "dtype": "F32" if exact else "BF16",
            "shape": value.shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blocks))


def _upper_halves(values: NDArray[np.floating]) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    bias = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + bias) >> np.uint32(16)).astype(np.uint16)
