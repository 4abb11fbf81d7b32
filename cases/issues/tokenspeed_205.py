"""Where prompts run beside guided verify rows, masks are those of an earlier step (tokenspeed PR 205).

The buffer of candidates was refreshed for batches that only verify. A request arrives while another decodes, and both
have a grammar with another mask at each place.
"""

from collections.abc import Iterator

from harness import Documented, Grammar, Lab, Request, Scenario, issue


@issue(
    "tokenspeed#205",
    title="masks of an earlier step in mixed batches",
    variants=("fixed", "masks-of-the-step-before"),
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    grammar = Grammar(kind="regex", text="[ab][12][bc][23][cd][34][de][45][ef][56][fg]")
    r0 = Request(id="r0", prompt=lab.encode("x y z"), max_tokens=20, grammar=grammar)
    late = Request(id="late", prompt=lab.encode("z y x"), max_tokens=20, grammar=grammar, arrival=2)
    turns = lab.spell(("", 1, "a"), ("1b2", 3, "3"), ("c4d", 4, "5"))
    yield Scenario(
        name="a prompt joins a guided request",
        requests=(r0, late),
        script={"r0": turns, "late": turns[:2]},
        must_observe={"prompt beside verify rows": 1},
        documented={"masks-of-the-step-before": Documented(failure="grammar", tensor="mask", step=2)},
    )
