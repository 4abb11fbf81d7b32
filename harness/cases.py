"""Finds and loads case files: one loader for the command line and for pytest.

A case is one small file in ``cases/issues``: a docstring that tells the report in our words, and a function

    @issue("vllm#24881", title="verify rows of unequal length")
    def scenarios(lab: Lab) -> Iterator[Scenario]: ...
"""

from __future__ import annotations

import importlib.util
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from harness.check.observe import EVENTS
from harness.errors import CaseError, HarnessError
from harness.lab import Lab
from harness.rundir import slug
from harness.scenario import FailureKind, Scenario
from harness.targets.protocols import Capability

Build = Callable[[Lab], Iterable[Scenario]]
STANDARD_VARIANTS = ("before-fix", "as-merged", "fixed")
REFERENCE_VARIANT = "fixed"
"""The variant that must pass everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One issue: what it is called, what it needs, and how its scenarios are built."""

    ref: str  # "vllm#24881"
    title: str
    story: str
    variants: tuple[str, ...]
    needs: frozenset[Capability]
    build: Build
    path: Path
    live: tuple[str, ...] = ()  # variants that are seen from outside when they are served

    def scenarios(self, lab: Lab) -> Iterator[Scenario]:
        """The scenarios, each name in them checked; CaseError on a typo."""
        return (_known(self, scenario) for scenario in self.build(lab))

    @property
    def number(self) -> str:
        """The part of ``ref`` after the project's name."""
        return self.ref.rpartition("#")[2]


def _known(case: Case, scenario: Scenario) -> Scenario:
    """The scenario, if every name in it means something; a typo must not pass for an event that never happened."""
    for what, names, known in (
        ("documented", scenario.documented, case.variants),
        ("passes", scenario.passes, case.variants),
        ("must_observe", scenario.must_observe, EVENTS),
        ("failure", [d.failure for d in scenario.documented.values()], get_args(FailureKind)),
    ):
        for name in names:
            if name not in known:
                raise CaseError(
                    f"{case.path}: {scenario.name!r}: saw {what} {name!r}, expected one of: {', '.join(known)}"
                )
    return scenario


def issue(
    ref: str,
    *,
    title: str,
    variants: tuple[str, ...] = STANDARD_VARIANTS,
    needs: Iterable[Capability] = (Capability.SCRIPT, Capability.STATE, Capability.LOGITS),
    live: tuple[str, ...] = (),
) -> Callable[[Build], Build]:
    """Declare a case; the decorated function builds its scenarios. ``live`` are the variants that also have to fail
    when they are served and audited from outside."""

    def declare(build: Build) -> Build:
        build.__dict__["case"] = (ref, title, variants, frozenset(needs), live)
        return build

    return declare


def find_root(start: Path | None = None) -> Path:
    """The folder that holds ``cases/`` and ``fixtures/``: the nearest one upwards, else the one beside the package."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[1]):
        if (folder / "cases" / "issues").is_dir():
            return folder
    raise CaseError(
        f"saw no cases/issues in {here} or above", hint="run from a checkout, or pass --cases FOLDER"
    )


def load_cases(root: Path) -> list[Case]:
    """Every case under ``root/cases/issues``, by file name; CaseError if there is no such folder."""
    if not (root / "cases" / "issues").is_dir():
        raise CaseError(
            f"saw no folder {root / 'cases' / 'issues'}",
            hint="pass --cases with the folder that holds cases/",
        )
    return [
        load_case(path)
        for path in sorted((root / "cases" / "issues").glob("*.py"))
        if path.name != "__init__.py"
    ]


def load_case(path: Path) -> Case:
    """One case file; CaseError if it does not load or declares no issue."""
    spec = importlib.util.spec_from_file_location(f"cases.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a case file is user code: whatever it raises is its own fault
        raise CaseError(f"{path}: does not load: {type(error).__name__}: {error}") from error
    declared = [value for value in vars(module).values() if hasattr(value, "case")]
    if len(declared) != 1:
        raise CaseError(f"{path}: saw {len(declared)} functions with @issue(...), expected one")
    ref, title, variants, needs, live = declared[0].case
    return Case(
        ref=ref,
        title=title,
        story=(module.__doc__ or "").strip(),
        variants=variants,
        needs=needs,
        live=live,
        build=_checked(declared[0], path),
        path=path,
    )


def _checked(build: Build, path: Path) -> Build:
    """``build``, which is user code: what it raises is its own fault, and so are scenarios that share a name."""

    def build_all(lab: Lab) -> list[Scenario]:
        try:
            scenarios = list(build(lab))
        except HarnessError:
            raise
        except Exception as error:
            lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
            where = f"{path}:{lines[-1]}" if lines else str(path)
            raise CaseError(f"{where}: builds no scenarios: {type(error).__name__}: {error}") from error
        if strangers := [thing for thing in scenarios if not isinstance(thing, Scenario)]:
            raise CaseError(f"{path}: builds {strangers[0]!r}, expected scenarios")
        names = [slug(scenario.name) for scenario in scenarios]
        if not names or len(set(names)) < len(names):
            seen = ", ".join(repr(scenario.name) for scenario in scenarios) or "no scenario"
            raise CaseError(f"{path}: saw {seen}, expected one scenario or more, each with its own name")
        return scenarios

    return build_all


def find_case(cases: list[Case], name: str) -> Case:
    """The case that ``name`` means: ``24881``, ``vllm#24881``, ``PR24957`` or a file's name; CaseError lists all."""
    wanted = re.sub(r"^(pr|issue)?[\s#=_-]*", "", name.strip(), flags=re.IGNORECASE)
    matches = [case for case in cases if wanted in (case.ref, case.number, case.path.stem)]
    if len(matches) != 1:
        listed = "\n".join(f"  {case.ref:<16} {case.title}" for case in cases)
        what = "no case" if not matches else "several cases"
        raise CaseError(
            f"saw {name!r}, {what} of that name; there are:\n{listed}", hint="specharness list issues"
        )
    return matches[0]
