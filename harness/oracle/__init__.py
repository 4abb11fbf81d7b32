"""The judge: one request, one token after another, in float64, sharing no code with any engine.

weights     a checkpoint folder as float64 arrays
functions   norms and activations, as the model's paper writes them
gdn         the gated delta rule, token by token
attention   gated full attention with partial rotary positions
moe         routed experts, and how close the routing was
model       the whole hybrid model: ``Oracle.load(folder).fold()``
mtp         the multi-token-prediction head as a fresh drafter
accept      what verification may commit, greedy and stochastic
grammar     legality by replaying a fresh matcher
foreign     other people's judges: transformers and llguidance
"""
