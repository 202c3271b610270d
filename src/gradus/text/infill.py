"""Filling in the middle: a prefix and a suffix become a prompt whose answer belongs between them.

Models trained for it (Bavarian et al. 2022) have control tokens that mark the two texts and the place for the answer.
Each family spells them in its own way, and some put the suffix first, so the vocabulary decides which form is used.
"""

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradus.loading import Tokenizer

PREFIX, SUFFIX = "prefix", "suffix"
END = "<|endoftext|>"  # end of a file; chat models end a sequence with another token


@dataclass(frozen=True, slots=True)
class Spelling:
    """One family's prompt. parts: control tokens, with PREFIX and SUFFIX as placeholders for the texts.

    ends: control tokens that such a model writes after its answer, which need not be its end-of-sequence tokens.
    """

    parts: tuple[str, ...]
    ends: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(part for part in self.parts if part not in (PREFIX, SUFFIX))


SPELLINGS = (
    Spelling(  # Qwen2.5-Coder, CodeGemma, Granite's later ones
        ("<|fim_prefix|>", PREFIX, "<|fim_suffix|>", SUFFIX, "<|fim_middle|>"),
        ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>", END),
    ),
    Spelling(  # StarCoder, StarCoder 2, Stable Code, SantaCoder's successors
        ("<fim_prefix>", PREFIX, "<fim_suffix>", SUFFIX, "<fim_middle>"),
        ("<fim_pad>", "<file_sep>", "<repo_name>", "<filename>", END),
    ),
    Spelling(("<fim-prefix>", PREFIX, "<fim-suffix>", SUFFIX, "<fim-middle>"), ("<fim-pad>", END)),  # SantaCoder
    Spelling(("▁<PRE>", PREFIX, "▁<SUF>", SUFFIX, "▁<MID>"), ("▁<EOT>",)),  # CodeLlama
    Spelling(("<｜fim▁begin｜>", PREFIX, "<｜fim▁hole｜>", SUFFIX, "<｜fim▁end｜>")),  # DeepSeek-Coder
    Spelling(("[SUFFIX]", SUFFIX, "[PREFIX]", PREFIX)),  # Codestral
)


@dataclass(frozen=True, slots=True)
class Infill:
    """A model's form of the prompt. ends: the tokens that end its answer."""

    tokenizer: "Tokenizer"
    spelling: Spelling
    marks: dict[str, int]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: "Tokenizer") -> "Infill | None":
        """Look for the control tokens of a known family; None if the vocabulary has none."""
        for spelling in SPELLINGS:
            marks = {mark: tokenizer.token_id(mark) for mark in spelling.marks}
            known = {mark: token for mark, token in marks.items() if token is not None}
            if len(known) == len(marks):
                ends = (tokenizer.token_id(end) for end in spelling.ends)
                found = (token for token in chain(known.values(), ends) if token is not None)
                return cls(tokenizer, spelling, known, tuple(sorted(set(found))))
        return None

    def prompt(self, prefix: str, suffix: str, *, special_tokens: bool = True) -> list[int]:
        """Encode the two texts. special_tokens: begin with the beginning-of-sequence token, if the model has one."""
        texts = {PREFIX: prefix, SUFFIX: suffix}
        tokens = self._beginning() if special_tokens else []
        for part in self.spelling.parts:
            if part in texts:
                tokens += self.tokenizer.encode(texts[part], special_tokens=False)
            else:
                tokens.append(self.marks[part])
        return tokens

    def _beginning(self) -> list[int]:
        """The beginning-of-sequence token, if the model's texts have one."""
        bos = self.tokenizer.bos_token_id
        return [bos] if bos is not None and self.tokenizer.encode("")[:1] == [bos] else []
