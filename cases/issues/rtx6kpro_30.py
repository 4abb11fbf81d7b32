"""The drafter's graph was captured for one token a request, and is handed three (rtx6kpro issue 30).

Behind a verify step the drafter has to read every accepted token before it drafts; capture covered only its later
steps, which read one. In this engine it then reads the last token alone, and the keys of the others in its cache stay
those of its own guesses: drafts get worse, answers stay right, and no check of answers can see it.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Request, Scenario, issue

FAULT = "drafter-reads-one-token"


@issue("rtx6kpro#30", title="a drafter that reads one token a step", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.natural(
        "two requests draft",
        k=3,
        requests=[
            Request(id=f"r{i}", prompt=lab.prompt(6 + i), max_tokens=12, arrival=i, ignore_eos=True)
            for i in range(2)
        ],
        must_observe={"two or more accepted": 1},
        documented={FAULT: Documented(failure="drafts")},
    )
