"""Stand-ins for everything of a release but the few files that are under test.

An import hook serves those files and makes every other module of the release a stub. A stub may be imported,
subclassed, called and passed on; a computation that needs its *value* raises, so that a made-up value never becomes
a verdict. What had to be typed again is listed in ``RETYPED``.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


class StubUsed(Exception):
    """A computation needed the value of something that is only a stub."""


class StubType(type):
    """A class that stands for anything: its attributes are stubs, its calls give instances."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return make_stub(f"{cls.__qualname__}.{name}")

    def __getitem__(cls, item: Any) -> Any:
        return cls


def make_stub(name: str) -> Any:
    """A stub that names itself when its value is asked for."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise StubUsed(f"{name} is a stub, and its value was needed")

    def create(cls: Any, *args: Any, **_: Any) -> Any:
        # a decorator gives back what it decorates
        return args[0] if len(args) == 1 and inspect.isfunction(args[0]) else object.__new__(cls)

    values = dict.fromkeys(
        "__bool__ __int__ __index__ __float__ __len__ __iter__ __add__ __mul__ __sub__".split(), refuse
    )
    body: dict[str, Any] = {
        "__new__": create,
        "__init__": lambda self, *_, **__: None,
        "__call__": lambda self, *args, **_: args[0] if len(args) == 1 and callable(args[0]) else self,
        "__getattr__": lambda self, attribute: make_stub(f"{name}.{attribute}"),
        "__init_subclass__": classmethod(lambda cls, **_: None),
        **values,
    }
    return StubType(name, (), body)


class StubModule(ModuleType):
    """A module in which every name exists."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return make_stub(f"{self.__name__}.{name}")


def _device_copy(data: Any, device: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """Copy a list, an array or a tensor to a device."""
    copied = torch.as_tensor(data, dtype=dtype).to(device or "cpu")
    return copied if out is None else out.copy_(copied)


RETYPED: dict[str, Any] = {
    "vllm.attention.backends.utils.PAD_SLOT_ID": -1,
    "vllm.utils.torch_utils.async_tensor_h2d": _device_copy,
    "vllm.utils.torch_utils.PIN_MEMORY": False,
    "vllm.utils.torch_utils.np_to_pinned_tensor": torch.from_numpy,
    "vllm.utils.torch_utils.get_dtype_size": lambda dtype: torch.empty(0, dtype=dtype).element_size(),
    "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn._resolve_gdn_prefill_backend": (
        lambda config: ("triton", "triton")
    ),
    **{
        f"{folder}.ops.{name}": value
        for folder in ("vllm.model_executor.layers.fla", "vllm.third_party.flash_linear_attention")
        for name, value in {
            "utils.FLA_CHUNK_SIZE": 64,
            "index.prepare_chunk_indices": lambda starts, size: starts[
                :0
            ],  # how prefill is cut is not judged
            "index.prepare_chunk_offsets": lambda starts, size: starts[:0],
        }.items()
    },
}
"""Values that a file which cannot be loaded here would give."""


class Served(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of the package: real where it is to be served, a stub elsewhere."""

    def __init__(self, root: Path, files: Sequence[str]) -> None:
        self._paths = {name: _path_of(root, name) for name in files}
        missing = [name for name, path in self._paths.items() if path is None]
        if missing:
            raise StubUsed(f"this release has no module {missing[0]}")
        self.retyped: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The release's own file, or a stub; modules of other packages are none of ours."""
        if name.split(".")[0] != "vllm":
            return None
        if real := self._paths.get(name):
            return importlib.util.spec_from_file_location(name, real)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        """A stub, with the values that had to be typed again."""
        module = StubModule(spec.name)
        for full, value in RETYPED.items():
            where, _, what = full.rpartition(".")
            if where == spec.name:
                setattr(module, what, value)
                self.retyped.add(full)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """A stub has no code."""


def _path_of(root: Path, name: str) -> Path | None:
    base = root.joinpath(*name.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def reverse_ties(argsort: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``torch.argsort`` that, unless asked to be stable, returns equal entries in reverse: its contract allows it.

    On a CPU an unstable sort happens to be stable. On an H200 with torch 2.11 none of 600 random masks of 8 to 24
    entries came back in stable order. So a release that relies on the order fails here too.
    """

    def sort(values: torch.Tensor, *args: Any, stable: bool = False, **kwargs: Any) -> torch.Tensor:
        if stable or args or kwargs or values.dim() != 1:
            return argsort(values, *args, stable=stable, **kwargs)
        return len(values) - 1 - argsort(values.flip(0), stable=True)

    return sort
