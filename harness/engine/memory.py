"""An engine's memory from outside: which of its places a step wrote to."""

from __future__ import annotations

from dataclasses import dataclass

from harness.engine.attention_layer import AttentionLayer
from harness.engine.engine import Engine
from harness.engine.guards import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Places by kind, over all layers: convolution lines and recurrent states by slot (with what a
    journal logs beside them), keys and values by block."""

    conv: tuple[int, ...]
    recurrent: tuple[int, ...]
    kv: tuple[int, ...]


class Memory:
    """The caches of a model and its drafter, compared with what they held when somebody last looked."""

    def __init__(self, engine: Engine) -> None:
        linear = [layer.cache for layer in engine.model.linear_layers.values()]
        blocks = [*engine.model.blocks, *([engine.head.block] if engine.head else [])]
        paged = [block.mixer.cache for block in blocks if isinstance(block.mixer, AttentionLayer)]
        self._conv = Watch([cache.conv for cache in linear])
        journals = [cache.journal for cache in linear if cache.journal]
        logged = [pool for journal in journals for pool in journal.pools]
        self._recurrent = Watch([cache.recurrent for cache in linear] + logged)
        self._kv = Watch(
            [kept for cache in paged for kept in (cache.keys, cache.values)], rows=engine.config.block_size
        )

    def changed(self) -> Changed:
        """What changed since the last call."""
        return Changed(conv=self._conv.changed(), recurrent=self._recurrent.changed(), kv=self._kv.changed())
