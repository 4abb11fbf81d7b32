"""With asynchronous scheduling a guided answer ends in a token that its grammar forbids (vLLM issue 54437).

Refused drafts stay in the row as placeholders, and the masks of all rows behind the first one were left free, that of
the bonus token included. The grammar here refuses the third draft.
"""

from collections.abc import Iterator

from harness import Documented, Grammar, Lab, Request, Scenario, issue


@issue("vllm#54437", title="free rows behind a placeholder", variants=("fixed", "free-behind-a-placeholder"))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    grammar = Grammar(kind="regex", text="[ab][12][bc][23][cd][34][de][45][ef]")
    yield Scenario(
        name="a refused draft",
        regime="placeholder",
        requests=(Request(id="r0", prompt=lab.encode("x y z"), max_tokens=20, grammar=grammar),),
        script={"r0": lab.spell(("", 1, "a"), ("1bx", 3, "2"), ("c3d", 4, "4"))},
        must_observe={"placeholder draft": 1},
        documented={"free-behind-a-placeholder": Documented(failure="grammar", tensor="mask", step=1)},
    )
