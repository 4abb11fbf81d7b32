"""A stop text is missed when it is complete early in an accepted run (SGLang 23802, transformers 48039).

It was looked for at the end of the answer, and by then more tokens stand behind it. The stop text here spans two
steps: its first letter is committed by one, its third is the second draft of the next.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Request, Scenario, issue


@issue(
    "sglang#23802", title="a stop text inside an accepted run", variants=("fixed", "stop-text-inside-a-run")
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield Scenario(
        name="complete with the second of three drafts",
        requests=(Request(id="r0", prompt=lab.encode("x y z"), max_tokens=30, stop=("abc",)),),
        script={"r0": lab.spell(("", 1, "a"), ("bcd", 4, "e"), ("fg", 3, "x"))},
        must_observe={"stop text": 1},
        documented={"stop-text-inside-a-run": Documented(failure="finish", tensor="answer", step=1)},
    )
