"""Public reports that looked like a diagnosis: what an engineer with an unknown engine may want to read next.

Facts are in our own words, with the ids that others can look up. A report is listed under every cause that it showed.
"""

from __future__ import annotations

from collections.abc import Mapping

B1 = "vllm#39273, #40875, PR 52942, PR 56531: a row without drafts reads slot 0 after several tokens were accepted"
B2 = "vLLM before #30877: accepted counts are refreshed only in steps that have drafts"
B3 = "sglang PR 26351: the n-gram worker leaves out the state commit after verification"
B4 = "vllm PR 35447: a short prompt piece takes the decode path, and the next step reads slot 0"
B5 = "vllm PR 47466: the last prompt token of a resumed request is replaced by its last sampled one"
B6 = "vllm PR 55178: a prompt tail is padded to k + 1, and only the state after the padding is kept"
B7 = "vllm#32118: a new one-token prompt is taken for a decode and starts from what its slot held"
B9 = "vllm-metal#488: a preempted request goes on from its old state, its slot neither freed nor zeroed"
B12 = "rMLX#436: accepted tokens are replayed over a scratch KV cache, so linear layers see wrong inputs"
B13 = "tpu-inference PR 3178, PR 3189: only the last state of a row is kept, rejected drafts included"
C1 = "vllm#30632: an unstable sort of the row mask shuffles tokens among rows of mixed batches"
C3 = "vllm#51812, PR 36754: q, k and v are gathered for verify rows, a and b are not"
C4 = "vllm#47381: a batch sorted by length puts trimmed rows first, and they are taken for prompts"
C5 = "vllm#34077: padded rows of no length count as prompts, or stay among the verify rows"
A1 = "vllm#24881, #24730, PR 24957: verify rows of unequal length are viewed as a rectangle"
A2 = "vllm PR 24957: where the total divides evenly, the rectangular view regroups tokens without an error"
A3 = "vllm#24660, #24667: buffers are checked against requests and indexed by tokens"
A4 = "vllm#25647, #25743: capture sizes are taken to be multiples of k + 1"
A5 = "vllm#25743: a column view of the index table is read without its stride: other requests' lines"
A6 = "vllm-ascend#9956, #10372: a of the step before is compared with the length of this row"
A7 = "vllm#37035: illegal access at k = 5 under load, k = 4 is stable"
A1C = "vllm#56419: on a CPU, a row that a grammar trimmed is shorter than its accepted count, and the engine dies"
A9 = "vllm PR 56375: a buffer of boundaries is one short at the exact limit"
D1 = "vllm#27571, #28202: inputs are padded, their indices cut to the real count"
D2 = "vllm#34571, #35945, PR 36324: capture sizes exceed the number of state blocks"
D3 = "vllm#33326: the padding id -1 is used as a slot: a place before the pool"
D4 = "vllm#35431, #39064: padding became block 0, and kernels tested for negative ids alone"
D5 = "vllm#37728: rows of finished requests keep their slots, and padding writes through them"
D6 = "vllm#49757: vacated rows and dummy runs replay the slots of the capture"
D7 = "vllm#35243, #40589: a dummy run of one token where rows have k + 1, ranks wait for each other"
D8 = "vllm#45100: tensors that are indexed by request are padded to the number of tokens"
D11 = "sglang#23330: buffers have the size of the first k, and k changes while it runs"
E1 = (
    "vllm#40756, PR 48475, PR 50021: an accepted count of 0 becomes index -1, whose content is used as a slot"
)
E4 = "vllm#46066, #33729: results of a step before a reset are counted, counters go below zero"
E5 = "vllm PR 49620, #41190: a late result of a preempted request is not thrown away"
E6 = "vllm#46533: the placeholder -1 is accepted as a token, or used as an index"
E7 = "club-3090#758: every draft is refused, then an illegal address"
E8 = "vllm#31944, #30916: drafts from before a preemption, or of a step that drafted nothing, are used again"
E9 = "1Cat-vLLM#73: draft probabilities are kept under a row that has become another request's"
E10 = "vllm-ascend#10495: acceptance falls to 0 after a while"
F1 = "vllm#44006, #44297, #44993, #53181: drafts straddle the end of the reasoning section"
F2 = "vllm#29379: with asynchronous scheduling the grammar is one step behind"
F3 = "vllm#28298: the drafts of the step before are kept when the drafter returns none"
F4 = "vllm#42452: the matcher advances one step late where a tag switches the grammar"
F5 = "vllm PR 25905, llguidance PR 364: a rollback over the end token leaves the matcher ended"
F7 = "xgrammar PR 161, PR 164, #389, #701: rollback miscounts refused and end tokens"
F8 = "openvino.genai#4081: a matcher is asked for a mask after its end"
F9 = "TensorRT-LLM#7878: the mask is not made again for each draft"
F10 = "TensorRT-LLM#15022: masks and logits disagree in rows once k has fallen to 0"
F11 = "TensorRT-LLM PR 19296: rejected drafts are not given back, the matcher is ahead"
F12 = "sglang#28407, #31249, #34786: a finished request is still in the verify batch and has no slot"
F13 = "tokenspeed PR 205: masks come from a buffer that was not made again for a mixed batch"
F14 = "vllm#29821: masks behind a placeholder are unconstrained"
G1 = "vllm#43559, PR 46281, PR 48375: prefix cache and drafter: hits of state and KV differ in length"
G1R = "vllm#43559, PR 43650: a state with rejected drafts is kept as that of a block boundary"
G2 = "vllm-ascend#17338, PR 16449: garbage with prefix caching and k = 1, or no hits"
G3 = "vllm#45238: checkpoints lie one block above what the lookup can use: no hits"
G4 = "vllm#53505: states are copied backwards when an answer ends on a block boundary"
H1 = "vllm#28343: beta is computed in another precision once it is fused"
H4 = "vllm#42076: chunked prompts lose precision to an operand layout"
H6 = "llama.cpp#25618: attention over a row of 3 tokens or more differs from one token at a time"
H7 = "vllm#40880, #40831, #53180: quantised KV cache, speculation and graphs together"
H8 = "MetaX#261, vllm-ascend#15329: loops and 0 % acceptance with MTP on other backends"
H9 = "flash-linear-attention#103, #838: empty sequences in cu_seqlens"
H10 = "vllm#25368, #25032, #25907: a worker dies under load with Qwen3-Next and MTP"

LOOKALIKES: Mapping[str, tuple[str, ...]] = {
    "lags": (B1, B3, G4),
    "leads": (G1, B6),
    "zero": (B7, H9),
    "stale snapshot": (G2, G4, B9),
    "row cut short": (C5, B6),
    "rejected drafts": (B13, B3, G1R),
    "filler tokens": (B6, E7, C5),
    "lost accepted tokens": (B1, B4, B2),
    "started after rejected drafts": (B13, B2),
    "accepted count one step old": (B2, B3, B1),
    "accepted count against this row": (A6,),
    "accepted count of another row": (D6, E9, C4),
    "accepted count out of range": (E1, A6),
    "all drafts counted as accepted": (B13, E5),
    "accepted count wrong": (B2, A6),
    "started from zero": (B7, B4),
    "started from another request": (B7, D5, A5),
    "started from a stale state": (B4, B1),
    "started from a later state": (G1, B9),
    "started from unwritten memory": (B7, E1, D3),
    "resumed from its old state": (B9, E5),
    "snapshot of another boundary": (G1, G2, G3),
    "snapshot with rejected drafts": (G1R, G1),
    "folded twice": (B5, E5),
    "first token missing": (B5, B12),
    "tokens out of order": (C1,),
    "tokens of another row": (A2, C1, C4),
    "tokens of an earlier step": (B5, E4),
    "wrong token": (B5, E6, E7),
    "rows mixed": (A2, C1, A5),
    "gates of another token": (C3, H1),
    "another rule": (H1,),
    "another request": (A5, D5, D6),
    "former owner": (D5, D6, F12),
    "unwritten memory": (E1, D3, A5),
    "window shifted": (A6, B1),
    "convolution and recurrence disagree": (B3, B1, B12),
    "layers disagree": (B12, G1),
    "wrong inputs": (B12, C3),
    "rounded": (H1, H4, H7),
    "not finite": (H9, E1, H7),
    "attention": (H6, B12, H7),
    "attention sees too little": (G1, B12),
    "logits of another position": (D8, C1),
    "logits of another request": (C1, D8),
    "stale drafts": (E8, F3),
    "drafts out of place": (E8, F3),
    "no drafts": (F3, H8),
    "drafts missing": (F3, D11),
    "too many drafts": (D11, F10),
    "drafts of another request": (E9, D6),
    "drafter read another place": (H8, E10),
    "drafter cache stale": (E10, H8),
    "drafts shifted": (F3, H8),
    "drafts differ": (E10, H8),
    "shape mismatch": (A1, A1C, D1, D11, F10),
    "index out of range": (A3, A9, E1, A7),
    "assertion": (A4, D2),
    "rows and drafts disagree": (A6, C4),
    "nothing where a value was expected": (F12,),
    "missing entry": (E9,),
    "pool exhausted": (D2,),
    "stalled": (D7, E10),
    "grammar refused a scheduled draft": (F1, F3, F2),
    "matcher asked after its end": (F8, F5),
    "matcher rolled back too far": (F7, F5),
    "matcher ahead": (F11, F1),
    "matcher behind": (F2, F4, F7),
    "mask rows miscounted": (F10, F3),
    "stale mask": (F13, F9),
    "mask of another row": (F13, C1),
    "mask of the first row repeated": (F9,),
    "unconstrained mask": (F5, F8),
    "unconstrained behind a placeholder": (F14, F1),
    "unconstrained behind the reasoning": (F1, F4),
    "null slot written": (D4, D6),
    "write before the pool": (D3, E1),
    "write behind the pool": (A3, E1),
    "write into a free slot": (D5, D6, F12),
    "prefix not found": (G3, G2),
    "prefix hit too long": (G1, G3),
    "token outside the vocabulary": (E6, E7),
    "discarded row committed": (E5, E4),
    "crash": (H10, A7),
    "drafts": (E10, H8),
}
"""Cause, or kind of divergence, -> reports, the most alike first."""


def seen_before(cause: str | None, kind: str) -> tuple[str, ...]:
    """Reports that showed the same cause, or for a cause of which none is known the same kind of divergence."""
    return LOOKALIKES.get(cause or "") or LOOKALIKES.get(kind, ())
