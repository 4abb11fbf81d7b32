"""An answer that reaches its length keeps what lies behind a stop, and says "length" (SGLang 31599).

The length was checked before the stops, and a run of several tokens can meet both. The stop token here is the third
of five tokens that are allowed, in the run that reaches the fifth.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Request, Scenario, issue


@issue(
    "sglang#31599",
    title="the length is checked before the stops",
    variants=("fixed", "length-looked-at-first"),
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    request = Request(id="r0", prompt=lab.encode("x y z"), max_tokens=5, stop_token_ids=lab.encode("c"))
    yield Scenario(
        name="a stop in the run that reaches the length",
        requests=(request,),
        script={"r0": lab.spell(("", 1, "a"), ("bcd", 4, "e"), ("fg", 3, "x"))},
        must_observe={"end token in window": 1},
        documented={"length-looked-at-first": Documented(failure="finish", tensor="answer", step=1)},
    )
