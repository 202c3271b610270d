"""Text to token ids and back, for every kind of checkpoint, over the `tokenizers` library.

Two rules that callers rely on:

- **Decoding is by bytes.** `token_bytes` says what one token adds to the text; `decode` is those bytes joined. So text
  that is streamed token by token and text decoded at once cannot differ, and a character that spans tokens is whole.
- **Who may write control tokens.** A raw prompt is the operator's: `<|im_start|>` in it is the control token, as in
  other engines. The contents of chat messages are a stranger's: there it is eleven ordinary characters (see chat.py).
"""

import functools
import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from gradus.errors import CheckpointError, RequestError
from gradus.loading.chat import ChatTemplate, Cutter, Message, check_messages
from gradus.loading.quoting import quoted

SPACE = "\u2581"  # ▁, how SentencePiece vocabularies write a space

PLAIN_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"  # of random models


class Tokenizer:
    """A model's tokenizer and chat template.

    vocab_size: ids that the tokenizer knows; a model's embedding may have more rows (padding), never named in text.
    eos_token_ids: what ends a text, as far as the tokenizer's files say; a configuration may name more.
    special_token_ids: control tokens: no text of theirs shows in decoded text.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Sequence[int] = (),
        chat_template: ChatTemplate | None = None,
    ) -> None:
        """Takes `backend` over. Raises CheckpointError if it decodes in a way that is not known here."""
        backend.no_truncation()
        backend.no_padding()
        self.vocab_size = backend.get_vocab_size()
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)
        added = backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(token for token, entry in added.items() if entry.special)
        self._bytes_of, self._drops_first_space = _decoding(backend, [entry.content for entry in added.values()])
        self._template = chat_template
        self._backend = backend

        controls = [added[token] for token in self.special_token_ids]
        self._cutter = Cutter(f"\ue000{secrets.token_hex(16)}\ue001", [control.content for control in controls])
        self._elusive = any(control.normalized or len(control.content) == 1 for control in controls)
        self._cut_id = _add_mark(backend, self._cutter.mark)

    @classmethod
    def of_bytes(cls) -> "Tokenizer":
        """One token per byte, for models that were never trained: text works, and its length is easy to tell."""
        alphabet = _byte_alphabet()
        backend = tokenizers.Tokenizer(models.BPE(vocab={alphabet[byte]: byte for byte in range(256)}, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        return cls(backend, chat_template=ChatTemplate(PLAIN_TEMPLATE))

    # -- text to tokens ------------------------------------------------------------------------------------------------

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """The token ids of a raw prompt; control tokens written out in it count as such.

        special_tokens: also add what the model expects around a text (a beginning-of-sequence token, if it has one).
        Raises RequestError if `text` is not valid Unicode (a lone surrogate).
        """
        return self._encode(text, special_tokens, param="prompt")

    def chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """The token ids of a conversation, ready for the assistant's turn. Contents never become control tokens.

        messages: {"role": …, "content": text or [{"type": "text", "text": …}, …], …}, oldest first.
        Raises RequestError without a template, for malformed messages, and when the template refuses them.
        """
        rendered = self._render(messages, self._disarm, add_generation_prompt)
        token_ids = self._encode(rendered, False, param="messages")
        return [token for token in token_ids if token != self._cut_id]

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The text that the chat template makes of a conversation: for people to read. `chat` is what a model gets."""
        return self._render(messages, lambda text: text, add_generation_prompt)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    # -- tokens to text ------------------------------------------------------------------------------------------------

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text, as UTF-8 bytes, perhaps part of a character.

        b"" for a control token, and for an id that the tokenizer does not know.
        """
        return b"" if token_id in self.special_token_ids else self._token_bytes(token_id)

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of some tokens; what is not valid UTF-8 shows as U+FFFD.

        skip_special: leave control tokens out, rather than writing them in their usual spelling.
        """
        one = self.token_bytes if skip_special else self._token_bytes
        text = b"".join(one(token) for token in token_ids).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self._drops_first_space else text

    def to_json(self) -> str:
        """The tokenizer in the format of tokenizer.json, for libraries that build their own from it."""
        content = json.loads(self._backend.to_str())
        content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] != self._cut_id]
        return json.dumps(content, ensure_ascii=False)

    # -- how it is done ------------------------------------------------------------------------------------------------

    def _encode(self, text: str, special_tokens: bool, param: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"{param}: the text is not valid Unicode: a lone surrogate at character {error.start}",
                param=param,
                limit="valid Unicode",
                got=ascii(text[error.start]),
            ) from error
        try:
            return self._backend.encode(text, add_special_tokens=special_tokens).ids
        except Exception as error:  # a vocabulary that lacks a character, and a token for what it lacks
            raise RequestError(
                f"{param}: the model's tokenizer cannot encode this text: {error}", param=param
            ) from error

    def _disarm(self, text: str) -> str:
        """A stranger's text with a mark inside everything that reads as a control token.

        A control token that is one character, or that is looked for in normalized text, can escape the knife. Where a
        tokenizer has such ones, a text that still yields a control token is refused.
        """
        cut = self._cutter.cut(text)
        if self._elusive and not self.special_token_ids.isdisjoint(self._encode(cut, False, param="messages")):
            raise RequestError(
                "messages: a content spells a control token of this model", param="messages", limit="ordinary text"
            )
        return cut

    def _render(self, messages: Sequence[Message], treat: Callable[[str], str], add_generation_prompt: bool) -> str:
        if self._template is None:
            raise RequestError(
                "messages: this model has no chat template; send its text as a prompt instead (gradus generate, "
                "/v1/completions)",
                param="messages",
                limit="a model with a chat template",
            )
        return self._template.render(
            check_messages(messages, treat),
            add_generation_prompt=add_generation_prompt,
            bos_token=self._spelling(self.bos_token_id),
            eos_token=self._spelling(next(iter(self.eos_token_ids), None)),
        )

    def _spelling(self, token_id: int | None) -> str:
        return "" if token_id is None else self._backend.id_to_token(token_id) or ""

    def _token_bytes(self, token_id: int) -> bytes:
        known = 0 <= token_id < 1 << 32 and token_id != self._cut_id
        token = self._backend.id_to_token(token_id) if known else None
        return b"" if token is None else self._bytes_of(token)


def read_tokenizer_json(text: str, where: str) -> tokenizers.Tokenizer:
    """The backend that a tokenizer.json describes. Raises CheckpointError, naming `where`, if it describes none."""
    with building(where):
        return tokenizers.Tokenizer.from_str(text)


@contextmanager
def building(where: str) -> Iterator[None]:
    """Whatever the library finds wrong with a tokenizer becomes a CheckpointError that names `where`."""
    try:
        yield
    except (CheckpointError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exception, and panics in Rust arrive as BaseException
        problem = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{where}: not a tokenizer that can be used: {problem}") from error


def begin_texts_with(backend: tokenizers.Tokenizer, bos_token_id: int | None, eos_token_id: int | None) -> None:
    """Have `encode` put these around a text (None: nothing), whatever it did before."""
    spelled = {token: backend.id_to_token(token) for token in (bos_token_id, eos_token_id) if token is not None}
    parts = [None if bos_token_id is None else spelled[bos_token_id], "$A"]
    parts += [None if eos_token_id is None else spelled[eos_token_id]]
    backend.post_processor = processors.TemplateProcessing(
        single=[part for part in parts if part is not None],
        special_tokens=[(content, token) for token, content in spelled.items()],
    )


# -- what a token's spelling stands for --------------------------------------------------------------------------------


def _decoding(backend: tokenizers.Tokenizer, added: Sequence[str]) -> tuple[Callable[[str], bytes], bool]:
    """How an entry of the vocabulary becomes bytes, and whether the space that a text was begun with is to be dropped.

    added: entries that text is searched for before the vocabulary applies. A byte-level vocabulary spells them as they
    are; elsewhere they pass through the decoder's steps like any other.
    """
    steps = _decoder_steps(backend)
    if not steps:
        return (lambda token: b" " + token.encode()), True  # as the library does: words, with spaces between them
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds and set(kinds) <= {"ByteLevel", "ByteFallback", "Fuse"}:
        return functools.partial(_byte_level, frozenset(added)), False
    return _sentencepiece(steps)


def _sentencepiece(steps: list[dict[str, Any]]) -> tuple[Callable[[str], bytes], bool]:
    """Decoding in steps that act on one token at a time, or on the beginning of the whole text."""
    replaced: list[tuple[str, str]] = []
    byte_fallback = fused = drops = False
    for step in steps:
        match step:
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Metaspace", "replacement": str(mark), "prepend_scheme": scheme}:
                replaced.append((mark, " "))
                drops |= scheme != "never"
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if len(old) == 1:
                replaced.append((old, new))
            case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0} if fused:
                drops |= start == 1
            case _:
                raise CheckpointError(
                    f"tokenizer: decoding by {step['type']} is not supported here ({quoted(json.dumps(step))}): "
                    "byte-level BPE and SentencePiece-style tokenizers are"
                )

    def bytes_of(token: str) -> bytes:
        """Characters without a token of their own are spelled as bytes: <0xE2>."""
        if byte_fallback and (byte := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token)):
            return bytes([int(byte[1], 16)])
        for old, new in replaced:
            token = token.replace(old, new)
        return token.encode()

    return bytes_of, drops


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    described = json.loads(backend.decoder.__getstate__())
    return described["decoders"] if described["type"] == "Sequence" else [described]


def _byte_alphabet() -> list[str]:
    """GPT-2's spelling of each byte as one visible character: printable ones as themselves, the others from U+0100 on.

    It lets a vocabulary of bytes be written as strings, without spaces or control characters in them.
    """
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte if byte in visible else 256 + hidden.index(byte)) for byte in range(256)]


_BYTE_OF = {character: byte for byte, character in enumerate(_byte_alphabet())}


def _byte_level(added: frozenset[str], token: str) -> bytes:
    if token in added or not _BYTE_OF.keys() >= set(token):
        return token.encode()
    return bytes(_BYTE_OF[character] for character in token)


def _add_mark(backend: tokenizers.Tokenizer, mark: str) -> int:
    """Make `mark` a token; its id, which must not be another token's, stays in here."""
    used = backend.get_added_tokens_decoder().keys()
    expected = max(backend.get_vocab_size(with_added_tokens=False), max(used, default=-1) + 1)
    if backend.id_to_token(expected) is not None:
        raise CheckpointError("tokenizer: its token ids have gaps, which is not supported")
    backend.add_special_tokens([AddedToken(mark, normalized=False, special=True)])
    return cast(int, backend.token_to_id(mark))
