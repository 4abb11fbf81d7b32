"""A worker extension that records the states which the linear layers of a running vLLM are about to read.

Before each forward pass, for each request of the batch: the accepted count and the slots that the layers are handed,
and what stands there. That is the state as the previous step left it, seen exactly as the next one will read it.
Called through ``POST /collective_rpc``; the harness finds the file, since worker and harness share the machine.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import numpy as np
import torch

Record = tuple[dict[str, Any], Any, Any]


class StateRecorder:
    """Mixed into vLLM's worker by ``--worker-extension-cls``; every name is ours alone, as vLLM demands."""

    def specharness_watch(self, capacity: int, every: int = 1) -> dict[str, Any]:
        """Forgets what was recorded and records from now on the last ``capacity`` rows; of the numbers of each layer
        and head every ``every``-th."""
        runner = self.model_runner  # type: ignore[attr-defined]
        camera = getattr(self, "_specharness_camera", None)
        if camera is None:
            camera = self._specharness_camera = _Camera(runner)
        camera.start(capacity, every)
        return {"layers": [index for index, _ in camera.layers]}

    def specharness_shift(self, after: int) -> dict[str, Any]:
        """Breaks the engine on purpose: after so many further steps, one row that could be told a smaller accepted
        count is, once."""
        self._specharness_camera.shift_after = self._specharness_camera.step + after
        return {"step": self._specharness_camera.shift_after}

    def specharness_save(self, path: str) -> dict[str, Any]:
        """Writes what the ring holds to ``path`` (npz); says how many rows it holds and how many it had to drop."""
        return self._specharness_camera.save(path)


class _Camera:
    """Looks at the pools of the linear layers just before the model runs."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        forward = runner.vllm_config.compilation_config.static_forward_context
        linear = [layer for layer in forward.values() if hasattr(layer, "A_log") and hasattr(layer, "conv1d")]
        # model.layers.N.linear_attn
        self.layers = sorted(
            ((int(layer.prefix.split(".layers.")[1].split(".")[0]), layer) for layer in linear),
            key=lambda pair: pair[0],
        )
        self.step = 0
        self.shift_after: int | None = None
        self.shifted: int | None = None
        self.start(0, 1)
        runner.model.register_forward_pre_hook(self._before_forward)

    def start(self, capacity: int, every: int) -> None:
        self.ring: deque[Record] = deque(maxlen=capacity)
        self.every, self.seen, self.shifted = every, 0, None

    def _before_forward(self, *_: Any) -> None:
        from vllm.forward_context import get_forward_context

        by_layer = get_forward_context().attn_metadata
        if not isinstance(by_layer, dict) or not self.ring.maxlen:
            return  # a dummy or a profiling run
        metadata = [by_layer[layer.prefix] for _, layer in self.layers]
        self.step += 1
        self._shift(metadata)
        batch = self.runner.input_batch
        for index, request in enumerate(batch.req_ids):
            computed = int(batch.num_computed_tokens_cpu[index])
            views = [_Row(of_layer, index) for of_layer in metadata]
            if computed:
                self._record(request, computed, int(batch.num_prompt_tokens[index]), views)

    def _shift(self, metadata: list[Any]) -> None:
        if (
            self.shift_after is None
            or self.step <= self.shift_after
            or metadata[0].num_accepted_tokens is None
        ):
            return
        rows = (metadata[0].num_accepted_tokens > 1).nonzero().flatten().tolist()
        if not rows:
            return
        for group in {id(of_layer): of_layer for of_layer in metadata}.values():
            group.num_accepted_tokens = group.num_accepted_tokens.clone()  # vLLM's own counts stay right
            group.num_accepted_tokens[rows[0]] -= 1
        self.shifted, self.shift_after = self.step, None

    def _record(self, request: str, computed: int, prompt: int, views: list[_Row]) -> None:
        self.seen += 1
        states = [
            view.state_of(layer, self.every) for view, (_, layer) in zip(views, self.layers, strict=True)
        ]
        about = {
            "step": self.step,
            "request": request,
            "computed": computed,
            "prompt": prompt,
            "tokens": views[0].tokens,
            "speculative": views[0].speculative,
            "accepted": views[0].accepted,
            "slots": [view.slots for view in views],
        }
        conv, recurrent = (np.stack(part) for part in zip(*states, strict=True))
        self.ring.append((about, conv, recurrent))

    def save(self, path: str) -> dict[str, Any]:
        rows = list(self.ring)
        about = {
            "layers": [index for index, _ in self.layers],
            "every": self.every,
            "dropped": self.seen - len(rows),
            "shifted": self.shifted,
            "rows": [row[0] for row in rows],
        }
        np.savez(
            path,
            about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
            conv=np.array([row[1] for row in rows], dtype=np.float32),  # [R, L, (W - 1) D / every]
            recurrent=np.array([row[2] for row in rows], dtype=np.float32),  # [R, L, HV, V K / every]
        )
        return {"rows": len(rows), "dropped": about["dropped"], "shifted": self.shifted}


class _Row:
    """What the metadata of one layer says about one row of the batch."""

    def __init__(self, metadata: Any, index: int) -> None:
        mask = metadata.spec_sequence_masks
        self.speculative = mask is not None and bool(mask[index])
        place = (
            index if mask is None else int((mask[:index] == mask[index]).sum())
        )  # among the rows of its kind
        if self.speculative:
            starts = metadata.spec_query_start_loc
            self.slots = metadata.spec_state_indices_tensor[place].tolist()
            self.accepted = int(metadata.num_accepted_tokens[place])
        else:
            starts = metadata.non_spec_query_start_loc
            self.slots = [int(metadata.non_spec_state_indices_tensor[place])]
            self.accepted = 1
        self.tokens = int(starts[place + 1] - starts[place])

    def state_of(self, layer: Any, every: int) -> tuple[Any, ...]:
        """The history ``[(W - 1) D / every]`` and the state ``[HV, V K / every]`` that this row will start from."""
        from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first

        lines, states = layer.kv_cache
        line = lines[self.slots[0]].T if is_conv_state_dim_first() else lines[self.slots[0]]  # [W - 1 + k, D]
        first, width = self.accepted - 1, layer.conv_kernel_size
        state = states[self.slots[self.accepted - 1]]
        heads, values, keys = state.shape
        # The CPU kernels keep a state as [K, V] in the memory of a pool that is declared [V, K].
        state = state.reshape(heads, keys, values).transpose(1, 2)
        history = line[first : first + width - 1].reshape(-1)[::every]
        state = state.reshape(heads, -1)[:, ::every]
        return tuple(part.to(torch.float32).numpy().copy() for part in (history, state))
