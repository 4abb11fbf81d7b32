"""The MTP head against one put together from transformers' own modules, which recomputes everything for every draft."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from harness.errors import Unsupported
from harness.models.tiny import ensure
from harness.oracle.model import Oracle
from harness.oracle.mtp import draft


@pytest.fixture(scope="module", params=["peaked", "flat"])
def folder(request: pytest.FixtureRequest) -> Path:
    return ensure(request.param, 0)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle.load(folder)


class ForeignHead:
    """Float32. No cache: the whole sequence goes through the head for every draft."""

    def __init__(self, folder: Path) -> None:
        from transformers import Qwen3NextConfig
        from transformers.models.qwen3_next import modeling_qwen3_next as qwen

        config = Qwen3NextConfig.from_pretrained(folder)
        config._attn_implementation = "eager"
        config._experts_implementation = "eager"
        tensors = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
        self.embedding, self.lm_head = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
        self.fc = tensors["mtp.fc.weight"]
        self.rotary = qwen.Qwen3NextRotaryEmbedding(config)
        self.layer = qwen.Qwen3NextDecoderLayer(config, config.layer_types.index("full_attention"))
        own = {
            name.removeprefix("mtp.layers.0."): tensor
            for name, tensor in tensors.items()
            if name.startswith("mtp.layers.0.")
        }
        self.layer.load_state_dict(stack_experts(own))
        self.norms = {}
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            self.norms[name] = qwen.Qwen3NextRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
            self.norms[name].load_state_dict({"weight": tensors[f"mtp.{name}.weight"]})

    @torch.no_grad()
    def draft(self, tokens: list[int], hidden: np.ndarray, k: int) -> np.ndarray:
        ids, given, rows = list(tokens[1:]), torch.tensor(hidden).float(), []
        for _ in range(k):
            both = torch.cat(
                [
                    self.norms["pre_fc_norm_embedding"](self.embedding[ids]),
                    self.norms["pre_fc_norm_hidden"](given),
                ],
                dim=-1,
            )
            x = (both @ self.fc.T)[None]
            future = torch.full((len(ids), len(ids)), -torch.inf).triu(1)[None, None]
            x = self.layer(
                x,
                position_embeddings=self.rotary(x, torch.arange(len(ids))[None]),
                attention_mask=future,
            )
            own = self.norms["norm"](x)[0, -1:]
            rows.append(self.lm_head @ own[0])
            ids.append(int(rows[-1].argmax()))
            given = torch.cat([given, own])
        return torch.stack(rows).double().numpy()


def stack_experts(tensors: dict[str, Any]) -> dict[str, Any]:
    gate, up, down = (
        torch.stack([tensors.pop(f"mlp.experts.{e}.{part}_proj.weight") for e in range(8)])
        for part in ("gate", "up", "down")
    )
    return tensors | {
        "mlp.experts.gate_up_proj": torch.cat([gate, up], dim=1),
        "mlp.experts.down_proj": down,
    }


def committed(oracle: Oracle, seed: int, length: int) -> tuple[list[int], np.ndarray]:
    """Tokens [T + 1] and the target's hidden states [T, hidden] of all but the last."""
    tokens = np.random.default_rng(seed).integers(0, 1000, length + 1).tolist()
    return tokens, oracle.fold().extend(tokens[:-1]).hidden


@pytest.mark.parametrize("length", [1, 2, 33])
def test_drafts_agree_with_transformers_modules(oracle: Oracle, folder: Path, length: int) -> None:
    tokens, hidden = committed(oracle, length, length)
    drafts = draft(oracle, tokens, hidden, 4)
    expected = ForeignHead(folder).draft(tokens, hidden, 4)
    assert (drafts.tokens == expected.argmax(axis=-1)).all()
    for seen, row in zip(drafts.logits, expected, strict=True):
        assert np.sqrt(np.square(seen - row).mean() / np.square(row).mean()) < 1e-5


def test_fewer_drafts_are_a_prefix_of_more(oracle: Oracle) -> None:
    tokens, hidden = committed(oracle, 0, 12)
    most = draft(oracle, tokens, hidden, 3)
    assert (draft(oracle, tokens, hidden, 1).logits == most.logits[:1]).all()
    assert draft(oracle, tokens, hidden, 0).tokens.shape == (0,)


def test_every_hidden_state_of_the_prefix_matters(oracle: Oracle) -> None:
    tokens, hidden = committed(oracle, 1, 8)
    expected = draft(oracle, tokens, hidden, 1).logits
    for i in range(len(hidden)):
        changed = hidden.copy()
        changed[i] = -changed[i]
        assert np.abs(draft(oracle, tokens, changed, 1).logits - expected).max() > 1e-6


def test_a_prefix_and_hidden_states_that_do_not_fit_are_refused(oracle: Oracle) -> None:
    tokens, hidden = committed(oracle, 2, 5)
    with pytest.raises(ValueError, match="expected one token more"):
        draft(oracle, tokens[:-1], hidden, 1)
    headless = Oracle(replace(oracle.weights, mtp=None))
    with pytest.raises(Unsupported, match="no MTP head"):
        draft(headless, tokens, hidden, 1)
