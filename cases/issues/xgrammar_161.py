"""A matcher forgets a committed token after a draft was refused (xgrammar PR 161).

The draft that it refused was counted among those to give back, though it never took it: one token too many is rolled
back, and that one was committed. The third draft here is illegal.
"""

from collections.abc import Iterator

from harness import Documented, Grammar, Lab, Request, Scenario, issue

FAULT = "refused-draft-rolled-back"


@issue("xgrammar#161", title="a refused draft is rolled back, too", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    grammar = Grammar(kind="regex", text="[ab][12][bc][23][cd][34][de][45][ef]")
    yield Scenario(
        name="an illegal draft",
        requests=(Request(id="r0", prompt=lab.encode("x y z"), max_tokens=20, grammar=grammar),),
        script={"r0": lab.spell(("", 1, "a"), ("1b2", 2, "c"), ("2cx", 3, "3"), ("d4e", 2, "5"))},
        must_observe={"grammar trim": 1},
        documented={FAULT: Documented(failure="ledger", tensor="matcher history", step=1)},
    )
