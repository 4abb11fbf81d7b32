"""With random sampling a request's answer contains the token -1 (vLLM PR 46533).

Refused and missing drafts are placeholders in a full row, and rejection sampling did not know them: it looked up a
probability in their place, and now and then accepted one. The prompt-lookup drafter leaves places free here.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Request, Sampling, Scenario, issue


@issue("vllm#46533", title="a placeholder is accepted", variants=("fixed", "placeholder-accepted"))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.natural(
        "sampled, with few drafts",
        k=3,
        drafter="ngram",
        regime="placeholder",
        requests=[
            Request(
                id=f"r{i}",
                prompt=lab.encode("x y x y"),
                max_tokens=8,
                sampling=Sampling(temperature=1.0, seed=3),
                ignore_eos=True,
            )
            for i in range(2)
        ],
        must_observe={"placeholder draft": 2},
        documented={"placeholder-accepted": Documented(failure="ledger", tensor="committed")},
    )
