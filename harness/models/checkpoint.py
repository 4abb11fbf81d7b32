"""Reads a Qwen3-Next checkpoint folder: its configuration, and its tensors by name, one at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from harness.errors import ModelError
from harness.models.config import BUILD_HINT, ModelConfig, read_config, read_json
from harness.models.layout import expected_shapes, single_names, stacked_names

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Checkpoint", "Experts", "ModelConfig"]

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = ("BF16", "F32", "F16")


class Experts(NamedTuple):
    """One layer's routed experts, stacked as transformers 5 holds them."""

    gate_up: Tensor
    """``[experts, 2 * intermediate, hidden]``, gate rows first."""
    down: Tensor
    """``[experts, hidden, intermediate]``."""


class Checkpoint:
    """An opened model folder. Opening reads only headers, and checks that every tensor is there in its right shape.

    Tensors come as they are stored, on the CPU: bfloat16, and in some checkpoints float32 for the gates.
    """

    def __init__(
        self, folder: Path, config: ModelConfig, files: dict[str, Path], readers: dict[Path, Any]
    ) -> None:
        self.folder = folder
        self.config = config
        self._files = files
        self._readers = readers

    @classmethod
    def open(cls, folder: Path | str) -> Checkpoint:
        """Opens and checks a folder.

        Raises:
            ModelError: anything about the folder is missing, damaged, or of another family.
        """
        folder = Path(folder)
        read_config(folder, num_mtp_layers=0)
        readers = {path: _reader(path) for path in _shards(folder)}
        files = {name: path for path, reader in readers.items() for name in reader.keys()}  # noqa: SIM118
        config = read_config(folder, num_mtp_layers=_count_mtp_layers(files))
        checkpoint = cls(folder, config, files, readers)
        checkpoint._check()
        return checkpoint

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all stored tensors, sorted."""
        return tuple(sorted(self._files))

    def tensor(self, name: str) -> Tensor:
        """One tensor as stored.

        Raises:
            ModelError: there is none of that name.
        """
        if name not in self._files:
            raise ModelError(
                f"{self.folder} has no tensor {name!r}", hint=f"it holds {len(self._files)}; see .names"
            )
        tensor: Tensor = self._readers[self._files[name]].get_tensor(name)
        return tensor

    def array(self, name: str) -> NDArray[np.float32]:
        """One tensor as a float32 numpy array: exact, since bfloat16 and float16 are subsets of float32."""
        array: NDArray[np.float32] = self.tensor(name).float().numpy()
        return array

    def experts(self, prefix: str) -> Experts:
        """The routed experts under ``prefix``, e.g. ``model.layers.0.mlp.``, stacked whichever way they are stored."""
        stacked = stacked_names(prefix)
        if stacked[0] in self._files:
            return Experts(*map(self.tensor, stacked))
        count, inner, hidden = (
            self.config.num_experts,
            self.config.moe_intermediate_size,
            self.config.hidden_size,
        )
        like = self.tensor(single_names(prefix, 0)[0])
        gate_up, down = like.new_empty(count, 2 * inner, hidden), like.new_empty(count, hidden, inner)
        for expert in range(count):
            gate, up, out = map(self.tensor, single_names(prefix, expert))
            gate_up[expert, :inner], gate_up[expert, inner:], down[expert] = gate, up, out
        return Experts(gate_up, down)

    def _check(self) -> None:
        for name, shape in expected_shapes(self.config, self._files).items():
            if name not in self._files:
                raise ModelError(
                    f"{self.folder}: tensor {name!r} {list(shape)} is missing; config.json asks for it",
                    hint=_download_hint(self.folder),
                )
            view = self._readers[self._files[name]].get_slice(name)
            if tuple(view.get_shape()) != shape:
                raise ModelError(
                    f"{self._files[name]}: tensor {name!r} has shape {view.get_shape()};"
                    f" config.json makes it {list(shape)}",
                    hint="take config.json and weights from the same download",
                )
            if view.get_dtype() not in _DTYPES:
                raise ModelError(
                    f"{self._files[name]}: tensor {name!r} is {view.get_dtype()}; expected one of {', '.join(_DTYPES)}",
                    hint="use an unquantised checkpoint",
                )


def _shards(folder: Path) -> list[Path]:
    """The weight files, each of which exists."""
    if (folder / _INDEX).is_file():
        weight_map = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{folder / _INDEX} has no weight_map", hint=_download_hint(folder))
        shards = [folder / str(shard) for shard in sorted(set(weight_map.values()))]
    else:
        shards = [folder / _SINGLE]
    missing = [path.name for path in shards if not path.is_file()]
    if missing:
        raise ModelError(
            f"{folder} lacks {len(missing)} of {len(shards)} weight files, first {missing[0]}",
            hint=_download_hint(folder) if len(shards) > 1 else BUILD_HINT,
        )
    return shards


def _reader(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{path} ({path.stat().st_size} bytes) is not a complete safetensors file: {error}",
            hint=_download_hint(path.parent),
        ) from None


def _count_mtp_layers(names: Iterable[str]) -> int:
    """By the tensors: published configurations differ in the key, and transformers drops the head when it saves."""
    found = (re.match(r"mtp\.layers\.(\d+)\.", name) for name in names)
    return 1 + max((int(match[1]) for match in found if match), default=-1)


def _download_hint(folder: Path) -> str:
    return f"hf download <repository> --local-dir {folder}"
