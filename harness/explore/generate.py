"""Scenarios drawn at random: any setting, any schedule, small on purpose. The generator knows no fault.

``scenario(words, seed, index)`` is the same on every machine. ``draw`` takes any ``random.Random``, so Hypothesis can
drive it too (``st.randoms()``).
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import get_args

from harness.explore.scripts import DIGITS_ONLY, Ending, Script
from harness.explore.words import Words
from harness.scenario import Event, EventKind, Grammar, Regime, Request, Sampling, Scenario, Turn

GENERATED = "generated"
"""How the names of drawn scenarios begin."""
Features = frozenset[str]
FEATURES: Features = frozenset(
    ("placeholder", "events", "pressure", "prefix caching", "stops", "reasoning", "cuts")
)
"""What a scenario may need an engine to have; a target that lacks some is not asked for them."""
PATTERNS = (
    "[0-9]{1,3}",
    "[a-z ]{2,9}",
    "(yes|no|maybe)",
    r"\[[0-9](, [0-9])*\]",
    '[{]"[a-z]{1,5}": [0-9]+[}]',
)
MOST_PROMPT = 26
MOST_STORY = 40
LAST_ARRIVAL = 7
LAST_STEP = 9
Prompt = tuple[int, ...]


def scenario(words: Words, seed: int, index: int, features: Features = FEATURES) -> Scenario:
    """The scenario of this number in the sequence that ``seed`` begins."""
    return draw(Random(f"{seed}/{index}"), words, f"{GENERATED} {seed}/{index}", features)


def draw(random: Random, words: Words, name: str, features: Features = FEATURES) -> Scenario:
    """One scenario; everything in it comes from ``random``."""
    setting = _setting(random, features)
    count = random.choice((1, 2, 2, 3, 3, 4, 5))
    setting = replace(setting, max_num_seqs=random.choice((count, count, max(1, count - 1))))
    write = _forced if random.random() < 0.7 else _natural
    drawn = write(random, words, setting, count, features)
    longest = max(len(request.prompt) + request.max_tokens for request in drawn.requests)
    room = _room(random, drawn, longest, features)
    blocks = -(-(min(longest, room) + 2 * setting.k) // setting.block_size)
    pressed = "pressure" in features and random.random() < 0.2
    return replace(
        drawn,
        name=name,
        max_model_len=room,
        kv_blocks=1 + blocks + random.randint(0, blocks) if pressed else None,
        events=tuple(_events(random, drawn, features)),
    )


def _setting(random: Random, features: Features) -> Scenario:
    """An engine's setting, around a request that is no part of the result."""
    k = random.choice((1, 2, 2, 3, 3, 3, 4, 5, 8))
    block_size = random.choice((2, 4, 4, 8, 16))
    regimes: tuple[Regime, ...] = ("trim", "trim", "placeholder")
    return Scenario(
        name="setting",
        requests=(Request(id="none", prompt=(0,), max_tokens=1),),
        k=k,
        drafter=random.choice(("mtp", "mtp", "ngram")),
        sample_drafts=random.random() < 0.3,
        token_budget=random.choice((512, 512, 512, 3, k + 1, 2 * k + 3, 2 * block_size, 13)),
        regime=random.choice(regimes if "placeholder" in features else regimes[:1]),
        prefix_caching="prefix caching" in features and random.random() < 0.4,
        block_size=block_size,
        capture_sizes=random.choice(
            ((), (), (4, 8, 16), (k + 1, 2 * k + 2), (k + 1, 2 * k + 2, 4 * k + 4), (1, 2, 4, 32))
        ),
        reverse_rows=random.random() < 0.2,
    )


def _forced(random: Random, words: Words, setting: Scenario, count: int, features: Features) -> Scenario:
    """Requests whose script decides."""
    requests: list[Request] = []
    script: dict[str, tuple[Turn, ...]] = {}
    told: list[tuple[int, Prompt]] = []  # (arrival, prompt and answer) of those before
    endings = [ending for ending in get_args(Ending) if "stops" in features or not ending.startswith("stop ")]
    for i in range(count):
        guided = random.random() < 0.5
        reasons = guided and "reasoning" in features and random.random() < 0.3
        ending: Ending = random.choice(("script", *endings))
        written = Script(random=random, words=words, k=setting.k, guided=guided, reasons=reasons)
        written.write(ending)
        arrival, prompt = _prompt(random, words, setting, told)
        length = len(written.answer)
        short = random.random() < 0.3 and length > 1
        requests.append(
            Request(
                id=f"r{i}",
                prompt=prompt,
                max_tokens=random.randint(max(1, length - setting.k), length)
                if short
                else length + setting.k,
                arrival=arrival,
                grammar=DIGITS_ONLY if guided else None,
                ignore_eos=ending == "ignored end",
                stop_token_ids=(written.alphabet.stop,) if ending == "stop token" else (),
                stop=(written.alphabet.stop_text,) if ending == "stop text" else (),
                reasoning_end=words.reasoning_end if reasons else None,
            )
        )
        script[f"r{i}"] = tuple(written.turns)
        told.append((arrival, prompt + written.answer))
    if "cuts" not in features:
        setting = replace(setting, token_budget=512)
    return replace(setting, requests=tuple(requests), script=script)


def _natural(random: Random, words: Words, setting: Scenario, count: int, features: Features) -> Scenario:
    """Requests for which drafter and sampler decide."""
    requests: list[Request] = []
    told: list[tuple[int, Prompt]] = []
    for i in range(count):
        arrival, prompt = _prompt(random, words, setting, told, texts=words.texts)
        pattern = random.choice((None, None, *PATTERNS))
        stops = "stops" in features and random.random() < 0.3
        reasons = pattern and "reasoning" in features and random.random() < 0.3
        requests.append(
            Request(
                id=f"r{i}",
                prompt=prompt,
                max_tokens=random.randint(1, 14),
                arrival=arrival,
                grammar=Grammar(kind="regex", text=pattern) if pattern else None,
                sampling=Sampling(
                    temperature=random.choice((0.0, 0.0, 0.8, 1.5)), top_k=random.choice((0, 5)), seed=i
                ),
                ignore_eos=random.random() < 0.5,
                stop_token_ids=random.choice(((), prompt[-1:])) if stops else (),
                stop=random.choice(((), ("e",), (" the", "r"))) if stops else (),
                reasoning_end=random.choice(random.choice(words.texts)) if reasons else None,
            )
        )
        told.append((arrival, prompt))
    return replace(setting, requests=tuple(requests))


def _prompt(
    random: Random,
    words: Words,
    setting: Scenario,
    told: list[tuple[int, Prompt]],
    texts: tuple[Prompt, ...] = (),
) -> tuple[int, Prompt]:
    """(arrival, prompt): a length at an edge, or what an earlier request began with, or its whole story and more once
    it may be over, as the next turn of a conversation."""
    edges = (1, 2, setting.k + 1, setting.block_size, 2 * setting.block_size, setting.token_budget, 7, 12)
    length = max(1, random.choice(edges) + random.choice((-1, 0, 0, 1)))
    prompt = words.prompt(random, min(length, MOST_PROMPT))
    arrival = random.choice((0, 0, random.randint(0, LAST_ARRIVAL)))
    if texts and random.random() < 0.7:
        prompt = random.choice(texts)
    if told and random.random() < (0.7 if setting.prefix_caching else 0.2):
        before, story = random.choice(told)
        lengths = (len(story), len(story), random.randint(1, len(story)), setting.block_size)
        begun = story[: random.choice(lengths)]
        prompt = random.choice((begun, (*begun, *prompt)))
        arrival = before + random.randint(0, 2 * LAST_ARRIVAL)
        return arrival, prompt[:MOST_STORY]
    return arrival, prompt[:MOST_PROMPT]


def _room(random: Random, drawn: Scenario, longest: int, features: Features) -> int:
    """``max_model_len``: enough for all, or so little that the longest answers are cut."""
    tightest = max(len(request.prompt) for request in drawn.requests) + 1
    tight = random.random() < 0.2 and ("cuts" in features or not drawn.forced)
    return random.randint(tightest, max(tightest, longest)) if tight else longest + drawn.k + 1


def _events(random: Random, drawn: Scenario, features: Features) -> list[Event]:
    """Up to three things that happen to the engine."""
    if "events" not in features or random.random() < 0.6:
        return []
    kinds: tuple[EventKind, ...] = ("preempt", "preempt", "abort", "dummy", "draft length", "draft length")
    events = []
    for _ in range(random.randint(1, 3)):
        what = random.choice(kinds)
        named = what in ("preempt", "abort")
        events.append(
            Event(
                step=random.randint(0, LAST_STEP),
                what=what,
                request=random.choice(drawn.requests).id if named else "",
                k=random.randint(0, drawn.k) if what == "draft length" else 0,
            )
        )
    return sorted(events, key=lambda event: event.step)
