"""With more than one MTP draft and guided decoding the matcher rejects drafts that were masked (TensorRT-LLM 7878).

The mask was not made anew for each draft of a window, so all rows have that of the first: what the grammar allows
there counts as legal everywhere. The grammar here takes letters and digits in turn.
"""

from collections.abc import Iterator

from harness import Documented, Grammar, Lab, Request, Scenario, issue


@issue(
    "TensorRT-LLM#7878",
    title="the first mask of a window, repeated",
    variants=("fixed", "first-mask-repeated"),
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    grammar = Grammar(kind="regex", text="([a-z][0-9]){9}")
    yield Scenario(
        name="three drafts, three masks",
        requests=(Request(id="r0", prompt=lab.encode("x y z"), max_tokens=30, grammar=grammar),),
        script={"r0": lab.spell(("", 1, "a"), ("1b2", 2, "c"), ("3x4", 4, "x"))},
        must_observe={"rollback": 1},
        documented={"first-mask-repeated": Documented(failure="grammar", tensor="mask", step=1)},
    )
