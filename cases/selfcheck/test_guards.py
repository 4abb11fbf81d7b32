"""Pools with guards: a write anywhere in or around them is seen, and memory that nobody wrote can be told."""

from __future__ import annotations

import pytest
import torch

from harness.check.poison import unwritten
from harness.engine.guards import GUARD, Watch, guarded, poison

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]


def pool(places: int = 5, dtype: torch.dtype = torch.float32, rows: int = 1) -> torch.Tensor:
    return guarded((places * rows, 3, 4), dtype, "cpu", rows)


def around(view: torch.Tensor, place: int, rows: int = 1) -> torch.Tensor:
    """The memory of a place, where a kernel with a wrong index would find it."""
    start = view.storage_offset() + place * rows * view.stride(0)
    return view.as_strided((rows, *view.shape[1:]), view.stride(), start)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 16])
def test_every_place_holds_a_number_of_its_own(dtype: torch.dtype, rows: int) -> None:
    view = pool(600, dtype, rows)
    assert view.shape == (600 * rows, 3, 4)
    assert view.is_contiguous()
    places = range(-GUARD, 600 + GUARD)
    held = [around(view, place, rows).unique().tolist() for place in places]
    assert held == [[poison(place)] for place in places]
    assert len({numbers[0] for numbers in held}) == len(places)
    assert view.isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("place", [-GUARD, -1, 0, 2, 4, 5, 5 + GUARD - 1])
def test_a_write_of_one_number_is_seen_once_at_its_place(device: str, rows: int, place: int) -> None:
    view = guarded((5 * rows, 3, 4), torch.float32, device, rows)
    watch = Watch([view], rows)
    assert watch.changed() == ()
    around(view, place, rows)[rows - 1, 1, 2] = 0.5
    assert watch.changed() == (place,)
    assert watch.changed() == ()


def test_pools_of_all_layers_are_watched_together() -> None:
    pools = [pool(), pool(), pool(dtype=torch.bfloat16)]
    watch = Watch(pools)
    pools[0][3] = 1
    pools[2][1, 0, 0] = 1
    assert watch.changed() == (1, 3)


def test_equal_bits_are_no_change_and_equal_numbers_may_be_one() -> None:
    view = pool()
    view[2] = float("nan")
    view[3] = 0.0
    watch = Watch([view])
    view[1] = poison(1)
    view[2] = float("nan")
    assert watch.changed() == ()
    view[3] = -0.0
    assert watch.changed() == (3,)


def test_a_pool_without_guards_cannot_be_watched() -> None:
    with pytest.raises(RuntimeError):
        Watch([torch.zeros(5, 3, 4)])


@pytest.mark.parametrize("shape", [(5, 3), (5, 7, 1), (6, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_odd_sizes_are_watched_too(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    view = guarded(shape, dtype, "cpu")
    watch = Watch([view])
    view[4].flatten()[-1] = 3
    assert watch.changed() == (4,)


def test_checks_know_the_poison_that_the_engine_uses() -> None:
    for place in range(-GUARD, 5000):
        assert unwritten(poison(place)) == place
    for number in (0.0, 1.0, 127.5, -poison(3), 128.25, 300.5, float("inf"), float("nan")):
        assert unwritten(number) is None
