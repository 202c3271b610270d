"""The tokenizer inside a GGUF file, rebuilt with the `tokenizers` library.

There are three kinds. Byte-level BPE ("gpt2") comes with its merges, but only the name of its rule for cutting text
into words (`tokenizer.ggml.pre`). A wrong rule gives plausible but wrong tokens, so an unknown name is refused.
SentencePiece style ("llama") comes with scores and no merges: pieces merge whenever their union is a token, the best
score first. So every pair of tokens whose union is a token becomes a merge, ranked by the union's score. Gemma 4's
("gemma4") has SentencePiece's pieces and the merges as well.
"""

from dataclasses import dataclass
from typing import Any, NoReturn

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from gradus.errors import CheckpointError
from gradus.loading.gguf.file import GGUFFile
from gradus.loading.quoting import quoted
from gradus.loading.templates import DEFAULT, ChatTemplates, Source, read_templates
from gradus.loading.tokenizer import SPACE, UNCUT, Tokenizer, begin_texts_with, building

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN_WORDS = (  # a word ends where its case changes, as in camelCase
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Rule:
    """How a byte-level BPE cuts text into words, which merges never cross.

    words: matches one word; None: GPT-2's rule. digits: each digit is a word. whole: a word that is a token is that
    token, even if its merges would lead elsewhere. begins: texts begin with the bos token unless the file says
    otherwise. composed: characters are composed first (NFC).
    """

    words: str | None = None
    digits: bool = False
    whole: bool = False
    begins: bool = False
    composed: bool = False


RULES = {
    "gpt-2": Rule(),
    "smollm": Rule(digits=True),
    "refact": Rule(digits=True),  # Granite 3
    "starcoder": Rule(digits=True),
    "llama-bpe": Rule(_LLAMA3_WORDS, whole=True, begins=True),
    "smaug-bpe": Rule(_LLAMA3_WORDS),  # SmolLM3
    "dbrx": Rule(_LLAMA3_WORDS),  # Phi-4, OLMo 2 and 3, Granite 4
    "qwen2": Rule(_QWEN2_WORDS, composed=True),
    "tekken": Rule(_TEKKEN_WORDS, whole=True, begins=True),  # Mistral Small 3, Ministral 3
    "gpt-4o": Rule(_GPT4O_WORDS),  # Phi-4-mini
}
"""Each rule by the name that llama.cpp has for it."""

NO_TOKENIZER = (None, "none", "no_vocab")
PHI3_OTHERS = ("<unk>", "<s>", "<|endoftext|>")
TURN_ENDS = (  # control tokens that end a turn in some family's template
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<turn|>",
)
MESSAGE_END, HARMONY_ENDS = "<|end|>", ("<|return|>", "<|call|>")  # in gpt-oss, a turn is several messages

NAMES = ("general.basename", "general.name")  # as in "Qwen2.5-Coder", "Qwen2.5 Coder 0.5B Instruct AWQ"


def read_tokenizer(file: GGUFFile) -> Tokenizer | None:
    """Read the file's tokenizer; None if it has none. Raises CheckpointError if it is damaged or not supported."""
    if file.metadata.get("tokenizer.ggml.model") in NO_TOKENIZER:
        return None
    return tokenizer_of(file.metadata, file.path.name)


def tokenizer_of(metadata: dict[str, Any], label: str) -> Tokenizer:
    """Build the tokenizer that a file's metadata describe. label: the file, for messages."""
    with building(label):
        return _build(_Parts(metadata, label))


def _build(parts: "_Parts") -> Tokenizer:
    match parts.kind:
        case "gpt2":
            backend = _byte_level(parts)
        case "llama":
            backend = _sentencepiece(parts, _merges(parts), parts.flag("add_space_prefix", True))
        case "gemma4":
            backend = _sentencepiece(parts, _stored_merges(parts), parts.flag("add_space_prefix", False))
        case other:
            parts.refuse(f"tokenizer model {quoted(other)} is not supported (gpt2, llama and gemma4 are)")
    _add_special(backend, parts)
    begins = _rule(parts).begins if parts.kind == "gpt2" else True
    begin_texts_with(
        backend,
        parts.bos_token_id if parts.flag("add_bos_token", begins) else None,
        parts.eos_token_id if parts.flag("add_eos_token", False) else None,
    )
    templates = _chat_templates(parts)
    return Tokenizer(
        backend,
        bos_token_id=parts.bos_token_id,
        eos_token_ids=_ends(parts, "".join(each.source for each in templates.used)),
        chat_template=templates.default,
        tool_template=templates.tool_use,
        model_name=" ".join(found for key in NAMES if isinstance(found := parts.metadata.get(key), str)),
    )


class _Parts:
    """The file's tokenizer metadata, checked."""

    def __init__(self, metadata: dict[str, Any], label: str) -> None:
        self.metadata, self.label = metadata, label
        self.kind = self.text("tokenizer.ggml.model")
        self.pre = self.text("tokenizer.ggml.pre")
        self.tokens: list[str] = self.items("tokens", str)
        self.types: list[int] = self.items("token_type", int)
        if not self.tokens or len(self.types) != len(self.tokens):
            self.refuse(f"tokenizer has {len(self.tokens)} tokens and {len(self.types)} types, expected as many")
        self.vocabulary = {token: index for index, token in enumerate(self.tokens)}
        if len(self.vocabulary) != len(self.tokens):
            self.refuse(f"tokenizer lists {len(self.tokens) - len(self.vocabulary)} tokens twice")
        self.bos_token_id = self.token_id("bos")
        self.eos_token_id = self.token_id("eos")

    def items(self, key: str, kind: type) -> list[Any]:
        value = self.metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            self.refuse(f"metadata tokenizer.ggml.{key} must be a list of {kind.__name__}")
        return value

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        if value is not None and not isinstance(value, str):
            self.refuse(f"metadata {key} must be a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, bool):
            self.refuse(f"metadata tokenizer.ggml.{key} must be true or false")
        return value

    def token_id(self, name: str) -> int | None:
        value = self.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if value is not None and not (type(value) is int and 0 <= value < len(self.tokens)):
            self.refuse(
                f"metadata tokenizer.ggml.{name}_token_id must be below {len(self.tokens)}, got {quoted(value)}"
            )
        return value

    def of_type(self, *types: int) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types]

    def refuse(self, problem: str) -> NoReturn:
        raise CheckpointError(f"{self.label}: {problem}")


# -- byte-level BPE ----------------------------------------------------------------------------------------------------


def _byte_level(parts: _Parts) -> tokenizers.Tokenizer:
    rule = _rule(parts)
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=parts.vocabulary, merges=_stored_merges(parts), ignore_merges=rule.whole)
    )
    if rule.composed:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _words(rule)
    backend.decoder = decoders.ByteLevel()
    return backend


def _rule(parts: _Parts) -> Rule:
    if parts.pre not in RULES:
        parts.refuse(
            f"pre-tokenizer {quoted(parts.pre)} is not known ({', '.join(RULES)} are): text would be cut into the "
            "wrong words"
        )
    return RULES[parts.pre]


def _words(rule: Rule) -> pre_tokenizers.PreTokenizer:
    """Cut text into words, and words into bytes."""
    if rule.words is not None:
        words = pre_tokenizers.Split(Regex(rule.words), behavior="isolated")
        return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if rule.digits:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    return gpt2


def _stored_merges(parts: _Parts) -> list[tuple[str, str]]:
    merges = [tuple(merge.split(" ")) for merge in parts.items("merges", str)]
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= parts.vocabulary.keys():
            parts.refuse(f"tokenizer merge {quoted(' '.join(merge))} does not join two tokens into one")
    return merges


# -- SentencePiece style -----------------------------------------------------------------------------------------------


def _sentencepiece(parts: _Parts, merges: list[tuple[str, str]], prefixed: bool) -> tokenizers.Tokenizer:
    """prefixed: whether a text begins with a space."""
    has_bytes = len(parts.of_type(BYTE)) == 256
    unknown = next(iter(parts.of_type(UNKNOWN)), None) or _unknown_by_id(parts)
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=parts.vocabulary,
            merges=merges,
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=has_bytes,
            cache_capacity=UNCUT,
        )
    )
    steps: list[normalizers.Normalizer] = [normalizers.Prepend(SPACE)] if prefixed else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    spoken: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*spoken, decoders.Strip(" ", 1, 0)] if prefixed else spoken)
    return backend


def _merges(parts: _Parts) -> list[tuple[str, str]]:
    """Every pair of tokens whose union is a token, the union with the best score first.

    Only normal tokens take part: the others match as a whole, or not at all.
    """
    scores: list[float] = parts.items("scores", float)
    if len(scores) != len(parts.tokens):
        parts.refuse(f"tokenizer has {len(parts.tokens)} tokens and {len(scores)} scores, expected as many")
    normal = [index for index, kind in enumerate(parts.types) if kind == NORMAL]
    pieces = {parts.tokens[index] for index in normal}
    normal.sort(key=lambda index: -scores[index])
    return [
        (token[:cut], token[cut:])
        for token in (parts.tokens[index] for index in normal)
        for cut in range(1, len(token))
        if token[:cut] in pieces and token[cut:] in pieces
    ]


def _unknown_by_id(parts: _Parts) -> str | None:
    token = parts.token_id("unknown")
    return None if token is None else parts.tokens[token]


# -- chat templates ----------------------------------------------------------------------------------------------------


def _chat_templates(parts: _Parts) -> ChatTemplates:
    """Read the template, and those with names: `tokenizer.chat_template.NAME`."""
    key = "tokenizer.chat_template"
    names = {found: found.removeprefix(f"{key}.") for found in parts.metadata if found.startswith(f"{key}.")}
    if parts.text(key):
        names[key] = DEFAULT
    sources = {name: Source(f"{parts.label}: {quoted(found)}", parts.text(found)) for found, name in names.items()}
    return read_templates(sources, parts.label)


# -- special tokens ----------------------------------------------------------------------------------------------------


def _add_special(backend: tokenizers.Tokenizer, parts: _Parts) -> None:
    """Add control tokens, and user-defined tokens, which match as a whole wherever their text occurs."""
    # Phi-3's control tokens swallow the white space behind them. No key says so: llama.cpp too goes by the model
    swallow = parts.kind == "llama" and parts.metadata.get("general.architecture") == "phi3"
    backend.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False, rstrip=swallow and token not in PHI3_OTHERS)
            for token in parts.of_type(CONTROL)
            if token
        ]
    )
    # llama.cpp writes their spaces as spaces, and matches them before spaces are replaced
    whole = [token for token in parts.of_type(USER_DEFINED) if token]
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in whole])


def _ends(parts: _Parts, template: str) -> list[int]:
    """The tokens that end a text: those that the file names, and the control tokens that end a turn in its template."""
    named = [parts.token_id(name) for name in ("eos", "eot", "eom")]
    spelled = [token for token in TURN_ENDS if token in template]
    controls = set(parts.of_type(CONTROL))
    ids = [token for token in named if token is not None]
    ids += [parts.vocabulary[token] for token in spelled if token in controls]
    if controls.issuperset(HARMONY_ENDS) and all(token in template for token in HARMONY_ENDS):
        ids = [token for token in ids if token != parts.vocabulary.get(MESSAGE_END)]
        ids += [parts.vocabulary[token] for token in HARMONY_ENDS]
    return list(dict.fromkeys(ids))
