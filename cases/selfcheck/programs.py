"""The programs of a launch one at a time and in any order, under Triton's interpreter: who writes what."""

from __future__ import annotations

import importlib.util
import inspect
from itertools import product

import torch
from triton.runtime.interpreter import GridExecutor, _implicit_cvt, _patch_lang, interpreter_builder


def programs_of(launch):
    """Every program id of the grid."""
    grid = (*launch.grid, 1, 1)[:3]
    return list(product(*map(range, grid)))


def run_programs(launch, order):
    """What ``launch.run()`` does, but the programs of ``order`` one after the other."""
    executor = GridExecutor(launch.kernel.rewrite(), launch.kernel.arg_names, launch.grid)
    patched = _patch_lang(executor.fn)
    try:
        arguments = inspect.getcallargs(executor.fn, **launch.arguments)
        arguments = {
            name: value if name in executor.constexprs else _implicit_cvt(value)
            for name, value in arguments.items()
        }
        interpreter_builder.set_grid_dim(*(*launch.grid, 1, 1)[:3])
        for program in order:
            interpreter_builder.set_grid_idx(*program)
            executor.fn(**arguments)
    finally:
        patched.restore()


class Memory:
    """All that a launch can reach: its tensors, whole storages, so that a write beside a view is seen as well."""

    def __init__(self, launch):
        self.tensors = {}
        for name, value in launch.arguments.items():
            if isinstance(value, torch.Tensor) and value.numel():
                storage = value.untyped_storage()
                self.tensors.setdefault(
                    storage.data_ptr(), (name, torch.tensor([], dtype=torch.uint8).set_(storage))
                )
        self.before = self.copy()

    def copy(self):
        return {name: whole.clone() for name, whole in self.tensors.values()}

    def restore(self):
        for name, whole in self.tensors.values():
            whole.copy_(self.before[name])


def writers(launch, shared=()):
    """The programs that write each byte, each of them run alone: {argument: {byte: [programs]}}."""
    memory, found = Memory(launch), {}
    for program in programs_of(launch):
        run_programs(launch, [program])
        for name, whole in memory.copy().items():
            if name not in shared:
                for byte in (whole != memory.before[name]).nonzero().flatten().tolist():
                    found.setdefault(name, {}).setdefault(byte, []).append(program)
        memory.restore()
    return found


def results(launch, order):
    """Every tensor of the launch after its programs ran in that order; the launch can be run again."""
    memory = Memory(launch)
    run_programs(launch, order)
    after = memory.copy()
    memory.restore()
    return after


def planted(module, folder, *changes):
    """A module of kernels with some of its text replaced: a fault that no decision can express."""
    text = inspect.getsource(module).replace("from .", "from harness.engine.kernels.")
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {module.__name__}"
        text = text.replace(old, new)
    path = folder / f"planted_{module.__name__.rpartition('.')[2]}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
