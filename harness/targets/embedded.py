"""The embedded engine as a target: scenarios in, traces out. The only module outside ``engine`` that knows both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from harness.engine.config import EngineConfig, Layout
from harness.engine.kernels.select import Kind, Selection, select
from harness.engine.loader import Loader
from harness.engine.policy import Policy
from harness.engine.variants import variant
from harness.scenario import Scenario
from harness.targets.embedded_run import Run
from harness.targets.protocols import Capability
from harness.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedTarget:
    """The engine under one policy. Weights are read once per ``Loader`` and shared between variants.

    With ``graphs``, captured steps are CUDA graphs wherever that is possible.
    """

    loader: Loader
    policy: Policy
    kernels: Kind | Selection = "auto"
    device: str = "cpu"
    graphs: bool = True
    state_dtype: torch.dtype = torch.float32
    layout: Layout = "slots"
    speculate: bool = True
    capabilities: frozenset[Capability] = field(default=frozenset(Capability))

    @property
    def name(self) -> str:
        """``embedded:`` and the variant."""
        return f"embedded:{self.policy.name}"

    @property
    def selection(self) -> Selection:
        """The kernels and why: those that were handed in, or those of a kind."""
        return self.kernels if isinstance(self.kernels, Selection) else select(self.kernels, self.device)

    @property
    def without_graphs(self) -> str | None:
        """Why captured steps are only padded like graphs; ``None`` where they are graphs."""
        if not self.graphs:
            return "asked for"
        if self.device != "cuda":
            return f"the device is {self.device}"
        return None if self.selection.capturable else "these kernels may wait for the device"

    @property
    def setting(self) -> dict[str, str]:
        """The kernels and why, whether captured steps are CUDA graphs, the dtype of the states."""
        return {
            "kernels": self.selection.reason,
            "graphs": f"off: {self.without_graphs}" if self.without_graphs else "on",
            "state dtype": str(self.state_dtype).removeprefix("torch."),
            "layout": self.layout,
        }

    def run(self, scenario: Scenario, *, reverse_rows: bool = False) -> Trace:
        """Run a scenario; an exception inside the engine is the suspect's crash."""
        return Run(self, scenario, reverse_rows).trace()

    def config(self, scenario: Scenario, *, reverse_rows: bool = False, graphs: bool = True) -> EngineConfig:
        """The engine's setting for a scenario."""
        return EngineConfig(
            k=scenario.k if self.speculate else 0,
            token_budget=scenario.token_budget,
            max_model_len=scenario.max_model_len,
            max_num_seqs=scenario.max_num_seqs,
            most_requests=2 * len(scenario.requests),  # every byte of a pool is compared after every step
            regime=scenario.regime,
            prefix_caching=scenario.prefix_caching,
            block_size=scenario.block_size,
            kv_blocks=_enough_blocks(scenario) if scenario.kv_blocks is None else scenario.kv_blocks,
            capture_sizes=scenario.capture_sizes,
            graphs=graphs and self.without_graphs is None,
            drafter="ngram"
            if scenario.forced
            else scenario.drafter,  # a script drafts by itself: no head needed
            sample_drafts=scenario.sample_drafts,
            state_dtype=self.state_dtype,
            layout=self.layout,
            device=self.device,
            reverse_rows=reverse_rows != scenario.reverse_rows,
        )


def under_each_variant(
    folder: Path,
    *,
    kernels: Kind = "auto",
    device: str = "cpu",
    graphs: bool = True,
    state_dtype: str = "float32",
    layout: Layout = "slots",
) -> Callable[[str], EmbeddedTarget]:
    """A function from a variant's name to the target under it; the weights are read once."""
    loader = Loader(folder, device=device)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[state_dtype]

    def under(name: str) -> EmbeddedTarget:
        return EmbeddedTarget(
            loader=loader,
            policy=variant(name),
            kernels=kernels,
            device=device,
            graphs=graphs,
            state_dtype=dtype,
            layout=layout,
        )

    return under


def _enough_blocks(scenario: Scenario) -> int:
    """KV blocks that never run short: twice what all requests need at their longest, and the null block."""
    longest = (
        min(len(request.prompt) + request.max_tokens, scenario.max_model_len) + 2 * scenario.k
        for request in scenario.requests
    )
    return 1 + 2 * sum(-(-tokens // scenario.block_size) for tokens in longest)
