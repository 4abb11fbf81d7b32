"""A guided request whose prompt is read in pieces fails to advance its grammar (review of vLLM PR 29821).

A piece that does not end the prompt yields no token that counts, and the matcher was advanced with one all the same.
A budget of four cuts this prompt, and its first piece ends with a letter that the grammar would take.
"""

from collections.abc import Iterator

from harness import Documented, Grammar, Lab, Request, Scenario, issue

FAULT = "partial-prompt-in-the-matcher"


@issue("vllm#29821", title="the grammar reads a piece of the prompt", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    grammar = Grammar(kind="regex", text="[ab][12][bc][23][cd][34]")
    prompt = tuple(token for letter in "xyzaxyz" for token in lab.encode(letter))
    yield Scenario(
        name="a prompt in two pieces",
        token_budget=4,
        requests=(Request(id="r0", prompt=prompt, max_tokens=20, grammar=grammar),),
        script={"r0": lab.spell(("", 1, "a"), ("1b2", 2, "c"))},
        must_observe={"prompt in pieces": 1},
        documented={FAULT: Documented(failure="ledger", tensor="matcher history", step=0)},
    )
