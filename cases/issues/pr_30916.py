"""A step in which the drafter proposes nothing leaves the drafts of the step before (vLLM PRs 30916 and 28298).

Its answer was None where an empty list was meant, and None did not replace the old drafts: they are verified once
more, at another place, and a guided request's masks are asked for tokens that do not follow. The text repeats itself
by its grammar, so that prompt lookup has drafts, until the number of drafts falls to none.
"""

from collections.abc import Iterator

from harness import Documented, Event, Grammar, Lab, Request, Scenario, issue


@issue("vllm#30916", title="old drafts where there are no new ones", variants=("fixed", "old-drafts-reused"))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    grammar = Grammar(kind="regex", text="(xy){20}")
    yield lab.natural(
        "a drafter that falls silent",
        k=3,
        drafter="ngram",
        requests=[Request(id="r0", prompt=lab.encode("xyxyxy"), max_tokens=10, grammar=grammar)],
        events=(Event(step=2, what="draft length", k=0),),
        must_observe={"all drafts accepted": 1, "verify step without drafts": 1},
        documented={"old-drafts-reused": Documented(failure="drafts", step=3)},
    )
