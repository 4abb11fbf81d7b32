"""The target without speculation: two compositions of one history, whose difference is noise and nothing else.

A target that is wrong already here must not set its own threshold, so both runs are held against the oracle too, with
a limit that no correct engine of their precision comes near.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from harness.check.distance import conv_error, recurrent_error
from harness.check.reference import Reference
from harness.scenario import Request, Scenario, Turn
from harness.trace import Coordinate, Trace
from harness.verdict import Divergence

LIMITS = {"float32": 1e-5, "bfloat16": 6e-2}
"""Relative RMS that a plain run may differ from the oracle by, for each dtype of the states. Measured: 2.1e-6 and
2e-2 at most, over all layers and heads."""
TIE = 10.0
"""A router gap of less than this many times the limit is a tie that a plain run may break either way."""


def plain_pair(
    scenario: Scenario, histories: Mapping[str, Sequence[int]], piece: int
) -> tuple[Scenario, Scenario]:
    """Two drafts-free scenarios over the same histories: token by token together, and in pieces of ``piece`` tokens."""
    prompts = {request.id: len(request.prompt) for request in scenario.requests}
    used = [request for request in scenario.requests if len(histories[request.id]) > prompts[request.id]]
    longest = max(len(histories[request.id]) for request in used) + 1
    base = replace(
        scenario,
        k=0,
        script=None,
        capture_sizes=(),
        most_compilations=None,  # counting compiles; the judged run does that
        regime="trim",
        events=(),
        prefix_caching=False,
        kv_blocks=None,
        must_observe={},
        documented={},
        max_model_len=max(scenario.max_model_len, longest + 1),
    )
    together = replace(
        base,
        name=f"{scenario.name}: token by token",
        token_budget=max(scenario.token_budget, sum(prompts.values())),
        requests=tuple(_free(request, arrival=0) for request in used),
        script={
            request.id: tuple(Turn(token=token) for token in histories[request.id][prompts[request.id] :])
            for request in used
        },
    )
    pieces = replace(
        base,
        name=f"{scenario.name}: in pieces",
        token_budget=piece,
        requests=tuple(_free(request, arrival=0, prompt=histories[request.id][:-1]) for request in used),
        script={request.id: (Turn(token=histories[request.id][-1]),) for request in used},
    )
    return together, pieces


def limit_of(trace: Trace) -> float:
    """What a trace's precision allows."""
    return LIMITS.get(trace.notes.get("state dtype", "float32"), LIMITS["float32"])


def trusted(trace: Trace, reference: Reference) -> dict[str, int]:
    """For each request, the number of tokens before the first near tie that its experts broke otherwise."""
    limit = limit_of(trace)
    known = {name: len(history) for name, history in reference.histories.items()}
    for step in trace.steps:
        for row in step.rows:
            if row.routing is None:
                continue
            replay = reference.replay(row.request)
            start = row.num_computed - row.tokens
            for offset, chosen in enumerate(row.routing):
                at = start + offset
                if not 0 <= at < len(replay.routing):
                    continue  # the target counts wrongly; that is judged elsewhere
                for layer, experts in enumerate(chosen):
                    differs = set(experts) != set(replay.routing[at][layer])
                    if differs and replay.router_gap[at][layer] < TIE * limit:
                        known[row.request] = min(known[row.request], at)
    return known


def leaves_the_oracle(trace: Trace, reference: Reference, known: Mapping[str, int]) -> Divergence | None:
    """The first place where a plain run is further from the oracle than its precision allows."""
    if trace.crash:
        message = f"the target dies without speculation too: {trace.crash.kind}: {trace.crash.message}"
        return Divergence(kind="plain", at=Coordinate(step=trace.crash.step), message=message)
    return next(_divergences(trace, reference, known), None)


def _divergences(trace: Trace, reference: Reference, known: Mapping[str, int]) -> Iterator[Divergence]:
    limit = limit_of(trace)
    for step in trace.steps:
        for row in step.rows:
            if row.state is None:
                continue
            count = row.state.tokens_included
            states = reference.replay(row.request).states.get(count)
            if states is None:
                yield Divergence(
                    kind="plain",
                    at=Coordinate(step=step.index, request=row.request, tensor="tokens_included"),
                    message=f"{trace.scenario}: the state claims {count} tokens, which are not there",
                )
                continue
            if count > known[row.request]:
                continue
            conv = conv_error(row.state.conv, states.conv)
            recurrent = recurrent_error(row.state.recurrent, states.recurrent).max(axis=1)
            for tensor, errors in (("conv", conv), ("recurrent", recurrent)):
                if not (errors <= limit).all():
                    index = int(errors.argmax())
                    yield Divergence(
                        kind="plain",
                        at=Coordinate(
                            step=step.index,
                            request=row.request,
                            layer=trace.linear_layers[index],
                            tensor=tensor,
                        ),
                        message=f"{trace.scenario}: differs from the oracle without any speculation",
                        error=float(errors[index]),
                        threshold=limit,
                    )


def _free(request: Request, *, arrival: int, prompt: Sequence[int] | None = None) -> Request:
    tokens = tuple(request.prompt if prompt is None else prompt)
    return replace(
        request,
        arrival=arrival,
        prompt=tokens,
        grammar=None,
        ignore_eos=True,
        stop_token_ids=(),
        stop=(),
        reasoning_end=None,
        max_tokens=10**6,
    )
