"""Answers whose grammar is lazy, of a model with many tokens that begin its sentences: random answers have some."""

import re
from collections.abc import Sequence

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from gradus.engine.structured import Lazy, Structured
from gradus.loading import Tokenizer
from gradus.loading.tokenizer import _byte_alphabet

BEGINS = tuple(f"<{number}>" for number in range(40))  # tokens 256 to 295
THINK = ("<think>", "</think>")  # 296 and 297
VOCAB, EOS = 320, 319

GRAMMAR = f'start: ({" | ".join(BEGINS)}) /[a-f]{{3}}/ | "[" /[a-f]/ "(" /[0-9]{{2}}/ ")"'
SENTENCE = re.compile(rb"<\d+>[a-f]{3}")

LAZY = {
    "several": Lazy(BEGINS),
    "one": Lazy(BEGINS, several=False),
    "open": Lazy(BEGINS, r"\("),
    "thinking": Lazy(BEGINS, r"\(", thoughts=THINK),
    "inside": Lazy(BEGINS, None, thoughts=THINK, inside=True),
}


def structured(name: str) -> Structured:
    return Structured(grammar=GRAMMAR, lazy=LAZY[name])


def tokenizer() -> Tokenizer:
    """One token per byte, and control tokens."""
    alphabet = _byte_alphabet()
    made = Backend(models.BPE(vocab={alphabet[byte]: byte for byte in range(256)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (*BEGINS, *THINK)])
    return Tokenizer(made, bos_token_id=None, eos_token_ids=(EOS,))


def spelled(tokens: Sequence[int]) -> bytes:
    """Write tokens as bytes, control tokens by their spelling."""
    names = (*BEGINS, *THINK)
    return b"".join(bytes([token]) if token < 256 else (*(n.encode() for n in names), *[b""] * 99)[token - 256]
                    for token in tokens)  # fmt: skip


def broken(name: str, tokens: Sequence[int]) -> list[int]:
    """List the places of tokens that begin a sentence which is not whole, though the answer goes on behind it."""
    lazy, found, place = LAZY[name], list[int](), 0
    if lazy.inside or (lazy.thoughts and tokens[:1] == (296,)):
        place = tokens.index(297) + 1 if 297 in tokens else len(tokens)
    for at in range(place, len(tokens) - 3):
        if 256 <= tokens[at] < 296 and not SENTENCE.match(spelled(tokens[at : at + 4])):
            found.append(at)
    return found


def begun(tokens: Sequence[int]) -> int:
    return sum(256 <= token < 296 for token in tokens)
