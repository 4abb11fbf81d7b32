"""Qwen3.5 with prompt-lookup drafts repeats itself or writes nonsense on SGLang; with MTP it does not.

The worker of the prompt-lookup drafter lacked the step that commits the recurrent state behind verification: whatever
was accepted, the next step went on from the state behind the first token (SGLang PR 26351). Three tokens are
accepted here, so that two are missing a step later.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

FAULT = "lookup-drafts-never-committed"


@issue("sglang#26351", title="accepted prompt-lookup drafts are never committed", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "three accepted",
        k=3,
        drafter="ngram",
        plans={"r0": Plan(turns=((3, 3), (3, 1)))},
        must_observe={"two or more accepted": 1},
        documented={FAULT: Documented(failure="state", tensor="conv", layer=0, step=1)},
    )
