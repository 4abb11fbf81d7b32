"""Import a few real files of a release; every other module of its package is a stub.

    with_release(root, "vllm", ("vllm.model_executor.layers.fla.ops", ...))
    importlib.import_module("vllm.model_executor.layers.fla.ops.fused_recurrent")     # the file that shipped

For child processes only: it changes ``sys.meta_path`` for good, and two versions in one process would mix. A stub may
be imported, subclassed and used as a decorator; what it computes is never a result: whoever asks for its truth, its
length or its number gets an error that names it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language

from harness.errors import Unsupported
from harness.targets.upstream.metadata_stubs import RETYPED


class Platform:
    """``current_platform``: CUDA code paths, without what needs a particular GPU. Unknown questions are answered no."""

    @staticmethod
    def is_cuda_alike() -> bool:
        """The Triton kernels are wanted, on a CPU under the interpreter too; there is no ``torch.cuda`` then."""
        return torch.cuda.is_available()

    is_cuda = is_cuda_alike

    def __getattr__(self, question: str) -> Any:
        if question.startswith("__"):
            raise AttributeError(question)
        return lambda *_, **__: False


KNOWN: dict[str, Any] = {
    **RETYPED,
    "vllm.triton_utils.triton": triton,
    "vllm.triton_utils.tl": triton.language,
    "vllm.triton_utils.tldevice": getattr(triton.language.extra, "libdevice", triton.language),
    "vllm.triton_utils.HAS_TRITON": True,
    "vllm.logger.init_logger": logging.getLogger,
    "vllm.platforms.current_platform": Platform(),
    "vllm.attention.backends.utils.PAD_SLOT_ID": -1,
    "vllm.v1.attention.backends.utils.PAD_SLOT_ID": -1,
    "vllm.v1.attention.backends.utils.NULL_BLOCK_ID": 0,
    "vllm.utils.platform_utils.num_compute_units": lambda *_: 1,
    "vllm.utils.gpu_sync_debug.gpu_sync_allowed": nullcontext,
    "vllm.model_executor.layers.mamba.mamba_utils.is_conv_state_dim_first": lambda: False,
}
"""What a stub module does hold: values typed again, since the files that define them need half the engine."""


class Stub(type):
    """The class of stubs: a class that may be subclassed, subscripted, and used as a decorator."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stub(f"{cls.__qualname__}.{name}")

    def __call__(cls, *args: Any, **_: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else cls

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def _refuse(cls, *_: Any) -> Any:
        raise Unsupported(
            f"the release's code asks for the value of {cls.__qualname__}, which is not loaded here"
        )

    __bool__ = __len__ = __iter__ = __int__ = __index__ = __float__ = __add__ = __mul__ = _refuse


def stub(name: str) -> Any:
    """A stub that knows its name."""
    return Stub(name, (), {"__qualname__": name})


class StubModule(ModuleType):
    """A module in which every name exists; its real submodules are found all the same."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full in KNOWN:
            return KNOWN[full]
        return importlib.import_module(full) if self.__spec__.loader.serves(full) else stub(full)  # type: ignore[union-attr]


class ReleaseFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of one package: real below the ``real`` prefixes, stubs elsewhere."""

    def __init__(self, root: Path, package: str, real: Sequence[str]) -> None:
        self._root = root
        self._package = package
        self._real = tuple(real)

    def serves(self, name: str) -> bool:
        """Whether a module comes out of the release."""
        return self._file(name) is not None

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The real file, else a stub; ``None`` for other packages."""
        if name.split(".")[0] != self._package:
            return None
        file = self._file(name)
        if file is None:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        folders = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """A stub."""
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """A stub has no code."""

    def _file(self, name: str) -> Path | None:
        if not any(name == real or name.startswith(f"{real}.") for real in self._real):
            return None
        base = self._root.joinpath(*name.split("."))
        return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)


def with_release(root: Path, package: str, real: Sequence[str]) -> ReleaseFinder:
    """Serve a release from now on; Unsupported if another one is loaded already."""
    if package in sys.modules:
        raise Unsupported(f"a version of {package} is loaded in this process already: versions must not mix")
    finder = ReleaseFinder(root, package, real)
    sys.meta_path.insert(0, finder)
    return finder
