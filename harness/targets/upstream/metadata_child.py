"""The process in which a release's metadata builder runs: JSON in, JSON out; it imports nothing of this package.

An import hook serves the few real files that the builder needs out of the release and makes every other module of it
a stub. A stub may be imported, subclassed, called and passed on; a computation that needs its *value* raises, so that
a made-up value never becomes a verdict. What had to be typed again here is listed in ``RETYPED``.

    {"root": FOLDER, "layout": {...}, "groups": [{"config": {...}, "batches": [{...}]}]}  ->
    {"answers": [[{"fields": {...}} | {"crash": "..."}]], "retyped": [...]}  or  {"unsupported": "..."}
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

BUILDER = "vllm.v1.attention.backends.gdn_attn"


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

    On a CPU an unstable sort happens to be stable and on a GPU it is not; a release that relies on it fails here too.
    """

    def sort(values: torch.Tensor, *args: Any, stable: bool = False, **kwargs: Any) -> torch.Tensor:
        if stable or args or kwargs or values.dim() != 1:
            return argsort(values, *args, stable=stable, **kwargs)
        return len(values) - 1 - argsort(values.flip(0), stable=True)

    return sort


class Builder:
    """The release's own builder class, with the checks that its layout is the one that the table expects."""

    def __init__(self, root: Path, layout: dict[str, Any]) -> None:
        self._hook = Served(root, layout["modules"])
        sys.meta_path.insert(0, self._hook)
        module = importlib.import_module(BUILDER)
        self._class = module.GDNAttentionMetadataBuilder
        self._common = module.CommonAttentionMetadata
        self._spec = module.MambaSpec
        self._drafts: str = layout["drafts"]
        _expect(
            "build()", inspect.signature(self._class.build).parameters, ["num_accepted_tokens", self._drafts]
        )
        self._fields: list[str] = layout["fields"]
        _expect("metadata", [f.name for f in dataclasses.fields(module.GDNAttentionMetadata)], self._fields)

    @property
    def retyped(self) -> list[str]:
        """What had to be typed again so far."""
        return sorted(self._hook.retyped)

    def answers(self, config: dict[str, Any], batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One builder for a configuration, as in an engine; one answer per batch."""
        builder = self._class(self._cache_spec(config), ["layer"], _vllm_config(config), torch.device("cpu"))
        return [self._answer(builder, batch) for batch in batches]

    def _answer(self, builder: Any, batch: dict[str, Any]) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        if batch["drafts"] is not None:
            extra["num_accepted_tokens"] = _ints(batch["accepted"])
            extra[self._drafts] = _ints(batch["drafts"])
        try:
            built = builder.build(common_prefix_len=0, common_attn_metadata=self._metadata(batch), **extra)
        except StubUsed:
            raise
        except Exception as error:  # noqa: BLE001  whatever the builder dies of is the finding
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}:{frame.lineno}"
            return {"crash": f"{type(error).__name__}: {str(error).strip() or frame.line} ({where})"}
        fields = {name: _plain(getattr(built, name)) for name in self._fields}
        return {"fields": fields, "staged": _is_staged(built, builder)}

    def _metadata(self, batch: dict[str, Any]) -> Any:
        starts, lengths = _ints(batch["query_start_loc"]), _ints(batch["seq_lens"])
        computed = lengths - (starts[1:] - starts[:-1])
        values = {
            "query_start_loc": starts,
            "query_start_loc_cpu": starts.clone(),
            "seq_lens": lengths,
            "seq_lens_cpu": lengths.clone(),
            "_seq_lens_cpu": lengths.clone(),
            "seq_lens_cpu_upper_bound": lengths.clone(),
            "num_computed_tokens_cpu": computed,
            "_num_computed_tokens_cpu": computed.clone(),
            "num_reqs": len(lengths),
            "num_actual_tokens": batch["num_actual_tokens"],
            "max_query_len": int((starts[1:] - starts[:-1]).max()),
            "max_seq_len": int(lengths.max()),
            "block_table_tensor": _ints(batch["block_table"]),
            "slot_mapping": torch.arange(batch["num_actual_tokens"]),
            "causal": True,
            "is_prefilling": torch.tensor(batch["is_prefilling"], dtype=torch.bool),
        }
        return self._common(**_only_known(self._common, values))

    def _cache_spec(self, config: dict[str, Any]) -> Any:
        values = {
            "block_size": 1 << 20,
            "shapes": ((1,),),
            "dtypes": (torch.float32,),
            "num_speculative_blocks": config["k"],
        }
        return self._spec(**_only_known(self._spec, values))


def _only_known(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The values that the dataclass has fields for; StubUsed if it demands another."""
    fields = [field for field in dataclasses.fields(kind) if field.init]
    for field in fields:
        needed = field.default is field.default_factory is dataclasses.MISSING
        if needed and field.name not in values:
            raise StubUsed(f"{kind.__name__} demands {field.name!r}, which is not known here")
    names = {field.name for field in fields}
    return {name: value for name, value in values.items() if name in names}


def _vllm_config(config: dict[str, Any]) -> Any:
    sizes = sorted(config["capture_sizes"])
    most = sizes[-1] if sizes else 512
    compilation = SimpleNamespace(
        cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: bool(sizes)),
        max_capture_size=most,
        max_cudagraph_capture_size=most,
        cudagraph_capture_sizes=sizes,
    )
    speculative = SimpleNamespace(
        num_speculative_tokens=config["k"],
        parallel_drafting=False,
        use_eagle_block_drop=lambda: False,
    )
    return SimpleNamespace(
        compilation_config=compilation,
        speculative_config=speculative if config["k"] else None,
        scheduler_config=SimpleNamespace(max_num_seqs=config["max_num_seqs"]),
        cache_config=SimpleNamespace(mamba_cache_mode="none"),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        num_speculative_tokens=config["k"],
        num_hash_lookahead_tokens=0,
        use_v2_model_runner=False,
        pad_for_cudagraph=lambda tokens: next(size for size in sizes if size >= tokens),
    )


def _is_staged(built: Any, builder: Any) -> bool:
    """Whether the rows are in the builder's persistent tensors, which are all that a captured graph reads."""
    pairs = [
        (getattr(built, name), getattr(builder, name))
        for name in ("spec_query_start_loc", "non_spec_query_start_loc")
    ]
    return any(mine is not None and mine.data_ptr() == kept.data_ptr() for mine, kept in pairs)


def _expect(what: str, seen: Any, expected: Sequence[str]) -> None:
    missing = [name for name in expected if name not in seen]
    if missing:
        raise StubUsed(f"{what} of this release has no {', '.join(missing)}; it has {', '.join(seen)}")


def _ints(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _plain(value: Any) -> Any:
    """A field for JSON; what is neither number nor tensor is not judged."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return value if isinstance(value, (bool, int, type(None))) else None


def main() -> None:
    """Answer one request."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the release prints must not mix with the answer
    request = json.load(sys.stdin)
    torch.set_num_threads(1)
    torch.argsort = reverse_ties(torch.argsort)
    try:
        builder = Builder(Path(request["root"]), request["layout"])
        answers = [builder.answers(group["config"], group["batches"]) for group in request["groups"]]
        result: dict[str, Any] = {"answers": answers, "retyped": builder.retyped}
    except Exception as error:  # noqa: BLE001  an unknown layout is a result, with its reason
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        result = {"unsupported": f"{type(error).__name__}: {error} ({where})"}
    json.dump(result, answer)
    answer.close()


if __name__ == "__main__":
    main()
