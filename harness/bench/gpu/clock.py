"""Time on a GPU: medians of CUDA-graph replays between events, and the bandwidth of a plain copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import torch

Work = Callable[[], object]
REPLAYS = 15


def microseconds(calls: Sequence[Work], replays: int = REPLAYS) -> float:
    """Median time of one of ``calls``, in us: all are captured in one graph, in order, which is replayed.

    One of them runs before, uncaptured: compilers and tuners are done by then. Calls that work on different slots of
    a pool larger than the L2 cache are how a pool is rotated.
    """
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    return median(_replay(graph.replay) for _ in range(replays)) / len(calls)


def _replay(work: Work) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def copy_bandwidth() -> float:
    """Bytes read plus bytes written per second by a device-to-device copy of 4 GiB of random numbers."""
    source = torch.randn(1 << 30, device="cuda")
    goal = torch.empty_like(source)
    goal.copy_(source)
    taken = median(_replay(lambda: goal.copy_(source)) for _ in range(REPLAYS))
    return 2 * source.nbytes / (taken * 1e-6)


def l2_bytes() -> int:
    """Size of the card's L2 cache."""
    return int(torch.cuda.get_device_properties(0).L2_cache_size)
