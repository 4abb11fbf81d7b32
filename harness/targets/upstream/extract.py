"""Take one method out of a release's model file, with what it calls, and nothing else.

The file imports half an engine, the method needs a dozen names. The tree is cut down to the class without its bases,
the method and those it reaches, and the functions of the file they call; it is compiled under the real file name, so
that a traceback names the release's own file and line.
"""

from __future__ import annotations

import ast
import copy
import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.errors import Unsupported
from harness.targets.upstream.layouts import parse

Function = ast.FunctionDef
KEPT = ("staticmethod", "classmethod")
"""Decorators without which a method would be called differently."""


def extract(path: Path, entry: str, provided: Mapping[str, Any]) -> tuple[type, set[str]]:
    """The class of ``path`` that defines ``entry``, cut down; and which of the ``provided`` names it uses.

    ``provided`` wins over the file's imports. Unsupported if the file has no such class, or a name stays unknown.
    """
    tree = parse(path)
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and entry in _methods(n)]
    if len(classes) != 1:
        raise Unsupported(f"{path}: saw {len(classes)} classes with {entry}, expected one")
    methods, functions = _methods(classes[0]), {n.name: n for n in tree.body if isinstance(n, Function)}
    reached = _reach(entry, methods, functions, set(provided))
    mine = [_bare(methods[name]) for name in methods if name in reached]
    helpers = [_bare(node) for name, node in functions.items() if name in reached and name not in provided]
    cut = copy.copy(classes[0])
    cut.bases, cut.keywords, cut.decorator_list, cut.body = [], [], [], mine
    module = ModuleType(f"extracted.{path.stem}")
    module.__file__ = str(path)
    names = {name for node in (*mine, *helpers) for name in _names(node)}
    used = names & set(provided)
    vars(module).update(_imports(tree, names - used), **{name: provided[name] for name in used})
    sys.modules[module.__name__] = module
    body = ast.fix_missing_locations(ast.Module(body=[*helpers, cut], type_ignores=[]))
    exec(compile(body, str(path), "exec"), vars(module))  # the child process is there for this
    _complain(path, tree, names, module)
    found: type = getattr(module, cut.name)
    return found, used


def _methods(node: ast.ClassDef) -> dict[str, Function]:
    return {n.name: n for n in node.body if isinstance(n, Function)}


def _reach(
    entry: str, methods: Mapping[str, Function], functions: Mapping[str, Function], stop: set[str]
) -> set[str]:
    """Names of the methods and functions that ``entry`` calls, directly or not."""
    reached: set[str] = set()
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        node = methods.get(name) or functions.get(name)
        if node is None or name in reached or name in stop:
            continue
        reached.add(name)
        waiting += [*_names(node), *_own(node)]
    return reached


def _names(node: ast.AST) -> Iterator[str]:
    """Names that a function mentions; those of types do not count."""
    return (n.id for n in ast.walk(_bare(node)) if isinstance(n, ast.Name))


def _own(node: ast.AST) -> Iterator[str]:
    """Attributes of ``self``."""
    for n in ast.walk(node):
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self":
            yield n.attr


class _Bare(ast.NodeTransformer):
    """Without decorators and types, except on kernels, where they mean something."""

    def visit_FunctionDef(self, node: Function) -> Function:
        """Strip one function and those within it."""
        if any("triton" in ast.unparse(decorator) for decorator in node.decorator_list):
            return node
        self.generic_visit(node)
        node.decorator_list = [d for d in node.decorator_list if ast.unparse(d) in KEPT]
        node.returns = None
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Strip one argument."""
        return ast.copy_location(ast.arg(arg=node.arg), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Strip one variable."""
        self.generic_visit(node)
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)


def _bare(node: ast.AST) -> Any:
    """A copy of a node without decorators and types."""
    return _Bare().visit(copy.deepcopy(node))


def _imports(tree: ast.Module, wanted: set[str]) -> dict[str, Any]:
    """What the file's imports bind to the wanted names."""
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                if name in wanted:
                    module = importlib.import_module(alias.name)
                    found[name] = module if alias.asname else sys.modules[name]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) in wanted:
                    module = importlib.import_module(node.module)
                    found[alias.asname or alias.name] = getattr(module, alias.name)
    return found


def _complain(path: Path, tree: ast.Module, names: set[str], module: ModuleType) -> None:
    """Unsupported if a constant of the file is asked for: only functions are taken out of it."""
    targets = [t for n in tree.body if isinstance(n, ast.Assign) for t in n.targets]
    missing = {t.id for t in targets if isinstance(t, ast.Name)} & names - set(vars(module))
    if missing:
        raise Unsupported(f"{path}: needs {', '.join(sorted(missing))}, which are not taken out of the file")
