"""The process in which a release's metadata builder runs: JSON in, JSON out.

{"root": FOLDER, "layout": {...}, "groups": [{"config": {...}, "batches": [{...}]}]}  ->
{"answers": [[{"fields": {...}} | {"crash": "..."}]], "retyped": [...]}  or  {"unsupported": "..."}
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from harness.targets.upstream.metadata_stubs import Served, reverse_ties
from harness.targets.upstream.metadata_stubs import StubUsed as StubUsed

BUILDER = "vllm.v1.attention.backends.gdn_attn"


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
