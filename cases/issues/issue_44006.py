"""A reasoning model's answer breaks its schema, and the request dies with "Failed to advance FSM".

Whether a request is under its grammar was asked once a step. Where the marker that ends the reasoning is itself a
draft, the rows behind it are free and drafts behind it are not validated, so tokens are committed that no grammar
allows (vLLM issue 44006, repaired by PR 44297). The marker here is the second draft of three.
"""

from collections.abc import Iterator

from harness import Documented, Grammar, Lab, Request, Scenario, issue


@issue(
    "vllm#44006", title="the reasoning ends inside the drafts", variants=("fixed", "free-behind-the-marker")
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    request = Request(
        id="r0",
        prompt=lab.encode("x y z"),
        max_tokens=30,
        grammar=Grammar(kind="regex", text="([ab][12]){9}"),
        reasoning_end=lab.encode("|")[0],
    )
    yield Scenario(
        name="an illegal draft behind the marker",
        requests=(request,),
        script={"r0": lab.spell(("", 1, "x"), ("y|z", 3, "a"), ("1b2", 4, "b"))},
        must_observe={"reasoning ends in window": 1},
        documented={"free-behind-the-marker": Documented(failure="grammar", step=1)},
    )
