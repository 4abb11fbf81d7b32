"""The process in which a suspect runs: JSON lines in, JSON lines out, until the input ends.

    <- {"order": {...}}                                        -> {"setting": {...}}
    <- {"scenario": "...", "reverse_rows": false, "trace": PATH}  -> {"trace": PATH}
    <- {"contract": true}                                      -> {"findings": [...]}

Any line may be answered by ``{"unsupported": REASON}`` or ``{"usage": MESSAGE}``. A crash of the suspect is in the
trace; if this process dies instead, the parent sees its input end.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from harness.errors import HarnessError, Unsupported
from harness.scenario import Scenario
from harness.targets.upstream.order import Order

if TYPE_CHECKING:
    from harness.targets.upstream.suspects import Made


def main() -> None:
    """Serve one parent."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the suspect prints must not mix with the answers
    made = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if made is None:
                made = _make(Order(**request["order"]))
                _answer(answers, {"setting": {**made.target.setting, **made.notes}})
                continue
            if "contract" in request:
                _answer(answers, {"findings": _examine(made.target)})
                continue
            trace = made.target.run(
                Scenario.from_json(request["scenario"]), reverse_rows=request["reverse_rows"]
            )
            trace.save(Path(request["trace"]))
            _answer(answers, {"trace": request["trace"]})
        except Unsupported as error:
            _answer(answers, {"unsupported": str(error)})
        except HarnessError as error:
            _answer(answers, {"usage": str(error)})


def _make(order: Order) -> Made:
    """The suspect; whatever loading it dies of is the reason why it cannot be tested."""
    from harness.targets.upstream.suspects import make

    try:
        return make(order)
    except HarnessError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        raise Unsupported(f"does not load: {type(error).__name__}: {error} ({where})") from error


def _examine(target: Any) -> list[str]:
    from harness.targets.contract import examine

    return [str(finding) for finding in examine(target.selection.kernels, target.device)]


def _answer(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
