"""Every error that a user can meet, as one tree.

    HarnessError                 (exit code 3 unless a subclass says otherwise)
    ├── UsageError               2   an argument, a file or a name that cannot be used
    │   ├── ScenarioError            a scenario that does not parse or cannot be legal
    │   ├── ModelError               a model folder that is missing, incomplete or of another family
    │   ├── TargetError              a target that does not exist or cannot be loaded
    │   └── CaseError                an unknown issue, or a case file that does not load
    ├── Unsupported            125   the target cannot do what the case needs
    └── EngineError              1   the engine under test broke its own rules; recorded as a verdict, never a traceback

An error says what was seen, what was expected, where, and the next command to run.
"""

from __future__ import annotations


class HarnessError(Exception):
    """Base of the tree. ``hint`` is the next command or step for the reader; a class may have one for all."""

    exit_code = 3
    usual_hint: str | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint or self.usual_hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n  next: {self.hint}" if self.hint else message


class UsageError(HarnessError):
    """Bad input: an argument, a file or a name that cannot be used."""

    exit_code = 2


class ScenarioError(UsageError):
    """A scenario that does not parse, or whose script could not have happened."""

    usual_hint = "correct it; every run directory under reports/ holds legal scenarios to compare with"


class ModelError(UsageError):
    """A model folder that is missing, incomplete, or of another family."""

    usual_hint = "pass --model FOLDER with a Qwen3-Next checkpoint, or no --model for a tiny one"


class TargetError(UsageError):
    """A target that does not exist or cannot be loaded."""


class CaseError(UsageError):
    """An unknown issue, or a case file that does not load."""

    usual_hint = "correct the case file"


class Unsupported(HarnessError):
    """The target cannot do what the case needs; the message says which capability is missing."""

    exit_code = 125


class EngineError(HarnessError):
    """The engine under test broke its own rules; a run records it as a crash of the suspect."""

    exit_code = 1
