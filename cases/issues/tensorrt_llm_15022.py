""" "Bitmask must have the same batch size as logits" when the number of drafts falls to none (TensorRT-LLM 15022).

Rows of masks were counted as if each request had drafts. A schedule that lowers their number under load ends at
none, and there the counts disagree. The prompt's last row has no draft, either, so the first step shows it.
"""

from collections.abc import Iterator

from harness import Documented, Event, Grammar, Lab, Request, Scenario, issue

FAULT = "masks-for-drafts-that-are-none"


@issue("TensorRT-LLM#15022", title="rows of masks for drafts that are none", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    grammar = Grammar(kind="regex", text="[a-z0-9]{20}")
    yield Scenario(
        name="k falls to none",
        requests=(Request(id="r0", prompt=lab.encode("x y z"), max_tokens=30, grammar=grammar),),
        script={"r0": lab.spell(("", 1, "a"), ("1b2", 2, "c"), ("3x4", 4, "x"))},
        events=(Event(step=1, what="draft length", k=0),),
        must_observe={"k is zero": 1},
        documented={FAULT: Documented(failure="crash", step=0)},
    )
