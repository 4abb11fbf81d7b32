"""Guided requests end in a state without a legal token, with some drafters alone (TensorRT-LLM PR 19296).

The matcher is advanced over the drafts for the sake of their masks, and where they are rejected nobody took it back:
it is ahead of the text. Two drafts of three are rejected here.
"""

from collections.abc import Iterator

from harness import Documented, Grammar, Lab, Request, Scenario, issue

FAULT = "rejected-drafts-stay-in-the-matcher"


@issue("TensorRT-LLM#19296", title="the matcher keeps rejected drafts", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    grammar = Grammar(kind="regex", text="[ab][12][bc][23][cd][34][de][45][ef]")
    yield Scenario(
        name="two drafts rejected",
        requests=(Request(id="r0", prompt=lab.encode("x y z"), max_tokens=20, grammar=grammar),),
        script={"r0": lab.spell(("", 1, "a"), ("1b2", 2, "c"), ("2c3", 4, "d"))},
        must_observe={"rollback": 1},
        documented={FAULT: Documented(failure="ledger", tensor="matcher history", step=1)},
    )
