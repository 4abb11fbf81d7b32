"""A finding as two files: the scenario as JSON, and a Python program that shows it with nothing but this package."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from harness.explore.shrink import Found
from harness.scenario import Scenario

_PROGRAM = '''"""{title}

    pip install specharness
    python {file}          # prints what is found; exits with 1 if anything is wrong
"""

import sys

from harness.explore.show import show

SCENARIO = """
{scenario}
"""

if __name__ == "__main__":
    sys.exit(show(SCENARIO, variant={variant!r}, {setting}))
'''


def write_json(scenario: Scenario, path: Path) -> Path:
    """The scenario, as ``specharness run`` takes it."""
    path.write_text(scenario.to_json() + "\n", encoding="utf-8")
    return path


def _setting(found: Found) -> dict[str, object]:
    """What it was found with; a folder of this machine is nothing to anybody else, so models are named by preset."""
    return {name: value for name, value in asdict(found.setting).items() if name != "model"}


def write_program(found: Found, path: Path) -> Path:
    """A program of one file."""
    first = found.record.first
    what = f"{first.kind} at {first.at}: {first.message}" if first else "nothing is wrong"
    text = _PROGRAM.format(
        title=f"{found.variant} is wrong here: {what}".replace("\\", "/").replace('"""', "'''"),
        file=path.name,
        scenario=found.scenario.to_json().replace("\\", "\\\\"),
        variant=found.variant,
        setting=", ".join(f"{name}={value!r}" for name, value in _setting(found).items()),
    )
    path.write_text(text, encoding="utf-8")
    return path
