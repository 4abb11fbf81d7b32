"""How many compiled variants of the convolution update a run needs: a serving engine must not stop for its compiler.

Every launch is bound by Triton's own rules (constexpr values and argument traits) as it would be on an sm_90 GPU, and
each distinct variant is really compiled, so the count needs no GPU.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from harness.engine.kernels.base import Kernels
from harness.engine.kernels.compile import Variant, variant
from harness.engine.kernels.constexpr_length import constexpr_length
from harness.engine.kernels.conv import update_launch
from harness.engine.policy import Policy

ARCHITECTURE = 90


class CountingKernels:
    """Any kernels, with every convolution update bound and counted; otherwise the ones given."""

    def __init__(self, kernels: Kernels, policy: Policy, k: int) -> None:
        self._kernels = kernels
        self._policy = policy
        self._k = k
        self._variants: dict[str, Variant] = {}
        self.conv_prefill = kernels.conv_prefill
        self.gdn_verify = kernels.gdn_verify
        self.gdn_replay = kernels.gdn_replay
        self.gdn_prefill = kernels.gdn_prefill
        self.gating = kernels.gating
        self.gated_norm = kernels.gated_norm
        self.decode = kernels.decode

    def conv_update(
        self, x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None, **rows: Any
    ) -> Tensor:
        """See ``Kernels.conv_update``."""
        launch = update_launch(x, x.new_zeros(x.shape), conv_state, weight, bias, **rows)
        longest = int(rows["query_start_loc"].diff().max())
        if (unrolled := self._policy.unrolled_length(longest, self._k)) is not None:
            launch = constexpr_length(launch, unrolled)
        needed = variant(launch, ARCHITECTURE)
        self._variants.setdefault(needed.key, needed)
        return self._kernels.conv_update(x, conv_state, weight, bias, **rows)

    def count(self) -> dict[str, int]:
        """Distinct binaries by kernel, each compiled here."""
        binaries = {needed.compile(ARCHITECTURE) for needed in self._variants.values()}
        names = [binary.kernel for binary in binaries]
        return {name: names.count(name) for name in names}
