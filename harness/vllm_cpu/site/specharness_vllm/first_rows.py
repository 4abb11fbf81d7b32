"""The state of a new request whose first row is a speculative one.

vLLM 0.32.0's scheduler pads a request of one token with k drafts that are none, so that the step has equal rows
(vllm-project/vllm PR 45237). A new prompt of one token is padded, too: its first row is a speculative one and starts
from what the slot's last owner left, where only prompts start from zero (as in vllm-project/vllm#32118, PR 55178).
Here such slots are cleared before the step.
"""

from __future__ import annotations

from typing import Any


def mend(runner_class: Any) -> None:
    """Wrap the step of vLLM's ``GPUModelRunner``, which its CPU runner inherits."""
    as_released = runner_class.execute_model

    def execute_model(self: Any, scheduler_output: Any, *args: Any, **options: Any) -> Any:
        for request in scheduler_output.scheduled_new_reqs:
            drafts = scheduler_output.scheduled_spec_decode_tokens.get(request.req_id)
            if drafts and request.num_computed_tokens == 0:
                clear(self, request.block_ids)
        return as_released(self, scheduler_output, *args, **options)

    runner_class.execute_model = execute_model


def clear(runner: Any, block_ids: tuple[list[int], ...]) -> None:
    """Zero a request's slots in every layer that keeps a recurrent state; ``block_ids`` has a list for each group."""
    layers = runner.compilation_config.static_forward_context
    for group, slots in zip(runner.kv_cache_config.kv_cache_groups, block_ids, strict=True):
        if hasattr(group.kv_cache_spec, "mamba_type"):
            for name in group.layer_names:
                for cache in layers[name].kv_cache:  # convolution lines, recurrent states
                    cache[slots] = 0
