"""The tiny model's tokenizer: byte-level BPE of 1,000 tokens, split as Qwen splits, shipped inside the package."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from harness.models.corpus import Author

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)
SIZE = 1000

# Qwen's pattern: words take one leading character, every digit is on its own, punctuation clings together.
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def load() -> Tokenizer:
    """The tokenizer that ships with the package; the same object for a checkout and an installed wheel."""
    return Tokenizer.from_str(_shipped())


def special_ids(tokenizer: Tokenizer, *names: str) -> list[int]:
    """Ids of tokens by their text, in the order asked for; every one must exist."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return [vocabulary[name] for name in names]


def write(folder: Path) -> None:
    """Puts ``tokenizer.json`` and ``tokenizer_config.json`` into a model folder."""
    (folder / "tokenizer.json").write_text(_shipped(), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "bos_token": None,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "chat_template": _CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def train() -> Tokenizer:
    """How the shipped file was made; special tokens come last, as in Qwen's vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    author = Author(np.random.Generator(np.random.PCG64(0)))
    tokenizer.train_from_iterator(author.documents(texts=4000, objects=4000), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


def _shipped() -> str:
    return (resources.files("harness.models") / "data" / "tokenizer.json").read_text(encoding="utf-8")


if __name__ == "__main__":
    train().save(str(Path(__file__).parent / "data" / "tokenizer.json"))
