"""With asynchronous scheduling structured output fails to advance its grammar, drafts or not (vLLM issue 29379).

The next step is planned before the results of this one are known, and the matcher was advanced when they came in: it
is a step behind the text, and so are its masks. One guided request, whose grammar has another mask at each place.
"""

from collections.abc import Iterator

from harness import Documented, Grammar, Lab, Request, Scenario, issue


@issue("vllm#29379", title="the grammar is a step behind", variants=("fixed", "grammar-one-step-behind"))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    grammar = Grammar(kind="regex", text="[ab][12][bc][23][cd][34][de][45][ef]")
    yield Scenario(
        name="planned ahead",
        regime="placeholder",
        requests=(Request(id="r0", prompt=lab.encode("x y z"), max_tokens=20, grammar=grammar),),
        script={"r0": lab.spell(("", 1, "a"), ("1b2", 2, "c"), ("2c3", 4, "d"))},
        must_observe={"rollback": 1, "all drafts accepted": 1},
        documented={
            "grammar-one-step-behind": Documented(failure="ledger", tensor="matcher history", step=0)
        },
    )
