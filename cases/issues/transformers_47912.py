"""Assisted generation goes on behind an end token (transformers issue 47912, koboldcpp issue 1276).

Only the last token of an accepted run was held against the end tokens; one in its middle is passed over, and the
answer goes on. A plain step commits one token and has no middle. The second of three accepted drafts is the end.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Request, Scenario, issue


@issue(
    "transformers#47912",
    title="an end token inside an accepted run",
    variants=("fixed", "end-token-inside-a-run"),
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield Scenario(
        name="the end is the second of three drafts",
        requests=(Request(id="r0", prompt=lab.encode("x y z"), max_tokens=30),),
        script={"r0": lab.spell(("", 1, "a"), ("b$c", 4, "d"), ("ef", 3, "g"))},
        must_observe={"end token in window": 1},
        documented={"end-token-inside-a-run": Documented(failure="finish", tensor="answer", step=1)},
    )
