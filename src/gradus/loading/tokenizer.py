"""Text to token ids and back, for every kind of checkpoint, with the `tokenizers` library.

Callers rely on two rules:

- **Decoding is by bytes.** `token_bytes` returns the bytes that one token adds to the text; `decode` joins them. So
  text streamed token by token equals text decoded at once, and a character that spans tokens stays whole.
- **Only raw prompts may write control tokens.** A raw prompt is the operator's: `<|im_start|>` in it is the control
  token, as in other engines. The contents of chat messages are untrusted: there it is eleven ordinary characters (see
  chat.py).
"""

import functools
import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from gradus.errors import CheckpointError, RequestError
from gradus.loading.chat import ChatTemplate, Cutter, Message, check_messages, check_settings, check_tools
from gradus.loading.quoting import quoted
from gradus.loading.templates import ChatTemplates

SPACE = "\u2581"  # ▁, how SentencePiece vocabularies write a space

LONG_TEXT = 4096
"""Characters beyond which a text is encoded as a batch of one: that releases Python's lock, and `encode` does not."""

PLAIN_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"  # of random models

UNCUT = 0
"""Words that the library keeps with their tokens, where a text is not cut into words: none. It would keep 10,000 short
texts, in 50 MB, and hardly any comes twice."""


class Tokenizer:
    """A model's tokenizer and chat templates.

    vocab_size: ids that the tokenizer knows; a model's embedding may have more rows (padding), which no text produces.
    eos_token_ids: tokens that end a text according to the tokenizer's files; a configuration may name more.
    special_token_ids: control tokens, which add nothing to decoded text.
    model_name: the names that the model's files, or else its user, give it; "" if unknown.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Sequence[int] = (),
        chat_template: ChatTemplate | None = None,
        tool_template: ChatTemplate | None = None,
        model_name: str = "",
    ) -> None:
        """Take ownership of `backend`. tool_template: for conversations with tools, if it is another one.

        Raises CheckpointError if its way of decoding is not supported."""
        backend.no_truncation()
        backend.no_padding()
        self.vocab_size = backend.get_vocab_size()
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)
        added = backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(token for token, entry in added.items() if entry.special)
        self._bytes_of, self._drops_first_space = _decoding(backend, [entry.content for entry in added.values()])
        self._markers = {entry.content: token for token, entry in added.items()}
        self.chat_templates = ChatTemplates(chat_template, tool_template)
        self.model_name = model_name
        self._backend = backend

        controls = [added[token] for token in self.special_token_ids]
        self._cutter = Cutter(f"\ue000{secrets.token_hex(16)}\ue001", [control.content for control in controls])
        self._elusive = any(control.normalized or len(control.content) == 1 for control in controls)
        self._cut_id = _add_mark(backend, self._cutter.mark)

    @classmethod
    def of_bytes(cls) -> "Tokenizer":
        """Make a tokenizer with one token per byte, for random weights: text works, and its length is obvious."""
        alphabet = _byte_alphabet()
        vocab = {alphabet[byte]: byte for byte in range(256)}
        backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], cache_capacity=UNCUT))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        return cls(backend, chat_template=ChatTemplate(PLAIN_TEMPLATE))

    # -- text to tokens ------------------------------------------------------------------------------------------------

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Encode a raw prompt; control tokens written out in it count as control tokens.

        special_tokens: also add the tokens that the model expects around a text (such as beginning-of-sequence).
        Raises RequestError if `text` is not valid Unicode (a lone surrogate).
        """
        return self._encode(text, special_tokens, param="prompt")

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        **settings: Any,
    ) -> list[int]:
        """Encode a conversation, ready for the assistant's turn. Contents never become control tokens.

        messages: {"role": …, "content": text or [{"type": "text", "text": …}, …], …}, oldest first.
        tools: {"type": "function", "function": {"name": …, "description": …, "parameters": …}}, for a template that
            shows tools; others ignore them.
        continue_final: leave the last message open, for the model to continue it, and begin no new turn.
        settings: of the template, those in `SETTINGS` (chat.py); a template ignores what it does not know.
        Raises RequestError without a template, for malformed messages, and if the template refuses them.
        """
        begin_turn = add_generation_prompt and not continue_final
        rendered = self._render(messages, self._disarm, begin_turn, tools, settings, continue_final)
        token_ids = self._encode(rendered, False, param="messages")
        return [token for token in token_ids if token != self._cut_id]

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **settings: Any,
    ) -> str:
        """Render a conversation as the chat template's text, for people to read. `chat` encodes it for the model."""
        return self._render(messages, lambda text: text, add_generation_prompt, tools, settings)

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The template of conversations without tools."""
        return self.chat_templates.default

    def marker_id(self, text: str) -> int | None:
        """Return the id of the added token with this text, which is never cut; None if there is none."""
        return self._markers.get(text)

    def token_id(self, text: str) -> int | None:
        """Return the id of the vocabulary's entry with this text, added or not; None if there is none."""
        return self._backend.token_to_id(text)

    @property
    def has_chat_template(self) -> bool:
        return self.chat_template is not None

    # -- tokens to text ------------------------------------------------------------------------------------------------

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that a token adds to the text, perhaps part of a character.

        They are b"" for a control token, and for an id that the tokenizer does not know.
        """
        return b"" if token_id in self.special_token_ids else self._token_bytes(token_id)

    def spelling(self, token_id: int) -> bytes:
        """A token's bytes as people are shown it: as `token_bytes`, but a control token has its name."""
        return self._token_bytes(token_id)

    def vocabulary(self, size: int) -> list[bytes]:
        """The bytes of each token id below `size`, a model's number of tokens."""
        return [self.token_bytes(token) for token in range(size)]

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Decode tokens to text; invalid UTF-8 becomes U+FFFD.

        skip_special: leave control tokens out, rather than writing their usual spelling.
        """
        one = self.token_bytes if skip_special else self._token_bytes
        text = b"".join(one(token) for token in token_ids).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self._drops_first_space else text

    def to_json(self) -> str:
        """Write the tokenizer in the format of tokenizer.json, for libraries that build their own from it."""
        content = json.loads(self._backend.to_str())
        content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] != self._cut_id]
        return json.dumps(content, ensure_ascii=False)

    # -- the steps -----------------------------------------------------------------------------------------------------

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
            if len(text) > LONG_TEXT:
                return self._backend.encode_batch_fast([text], add_special_tokens=special_tokens)[0].ids
            return self._backend.encode(text, add_special_tokens=special_tokens).ids
        except Exception as error:  # the vocabulary lacks a character and has no token for unknown ones
            raise RequestError(
                f"{param}: the model's tokenizer cannot encode this text: {error}", param=param
            ) from error

    def _disarm(self, text: str) -> str:
        """Insert a mark into every spelling of a control token in an untrusted text.

        This fails for control tokens of one character, and for those matched in normalized text. If a
        tokenizer has such tokens, a text that still yields a control token is refused.
        """
        cut = self._cutter.cut(text)
        if self._elusive and not self.special_token_ids.isdisjoint(self._encode(cut, False, param="messages")):
            raise RequestError(
                "messages: a content spells a control token of this model", param="messages", limit="ordinary text"
            )
        return cut

    def _render(
        self,
        messages: Sequence[Message],
        treat: Callable[[str], str],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        settings: Mapping[str, Any],
        continue_final: bool = False,
    ) -> str:
        shown = check_tools(tools, treat)
        template = self._template(shown is not None)
        checked = check_messages(messages, treat)
        end = self._left_open(checked[-1]) if continue_final else ""
        rendered = template.render(
            checked,
            add_generation_prompt=add_generation_prompt,
            bos_token=self._name(self.bos_token_id),
            eos_token=self._name(next(iter(self.eos_token_ids), None)),
            tools=shown,
            settings=check_settings(settings),
        )
        return rendered if not end else _until(end, rendered)

    def _template(self, has_tools: bool) -> ChatTemplate:
        found = self.chat_templates.choose(has_tools)
        if found is None:
            which = "no chat template" + (" for conversations without tools" if self.chat_templates.tool_use else "")
            raise RequestError(
                f"messages: this model has {which}; send its text as a prompt instead (gradus generate, "
                "/v1/completions)",
                param="messages",
                limit="a model with a chat template",
            )
        return found

    def _left_open(self, message: dict[str, Any]) -> str:
        """Mark the end of a message that is to be continued: what the template writes behind the mark is cut off."""
        if message["role"] != "assistant" or message.get("tool_calls"):
            raise RequestError(
                "continue_final_message: the last message must be the assistant's, without calls",
                param="continue_final_message",
                limit="an assistant's message at the end",
                got=message["role"],
            )
        end = f"\ue000{secrets.token_hex(16)}\ue002"
        message["content"] += end
        return end

    def _name(self, token_id: int | None) -> str:
        return "" if token_id is None else self._backend.id_to_token(token_id) or ""

    def _token_bytes(self, token_id: int) -> bytes:
        known = 0 <= token_id < 1 << 32 and token_id != self._cut_id
        token = self._backend.id_to_token(token_id) if known else None
        return b"" if token is None else self._bytes_of(token)


def _until(end: str, rendered: str) -> str:
    before, found, _ = rendered.rpartition(end)
    if not found:
        raise RequestError(
            "continue_final_message: the model's chat template leaves the last message out",
            param="continue_final_message",
            limit="false with this model",
        )
    return before


def read_tokenizer_json(text: str, where: str) -> tokenizers.Tokenizer:
    """Build the backend that a tokenizer.json describes. Raises CheckpointError, naming `where`, if it is invalid."""
    with building(where):
        return tokenizers.Tokenizer.from_str(text)


@contextmanager
def building(where: str) -> Iterator[None]:
    """Turn any error of the library into a CheckpointError that names `where`."""
    try:
        yield
    except (CheckpointError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exception, and panics in Rust arrive as BaseException
        problem = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{where}: not a tokenizer that can be used: {problem}") from error


def begin_texts_with(backend: tokenizers.Tokenizer, bos_token_id: int | None, eos_token_id: int | None) -> None:
    """Make `encode` add these tokens around a text (None: no token), whatever it added before."""
    spelled = {token: backend.id_to_token(token) for token in (bos_token_id, eos_token_id) if token is not None}
    parts = [None if bos_token_id is None else spelled[bos_token_id], "$A"]
    parts += [None if eos_token_id is None else spelled[eos_token_id]]
    backend.post_processor = processors.TemplateProcessing(
        single=[part for part in parts if part is not None],
        special_tokens=[(content, token) for token, content in spelled.items()],
    )


# -- from a token's spelling to bytes ----------------------------------------------------------------------------------


def _decoding(backend: tokenizers.Tokenizer, added: Sequence[str]) -> tuple[Callable[[str], bytes], bool]:
    """Return the function from a vocabulary entry to bytes, and whether decoding drops a text's first space.

    added: entries that are matched before the vocabulary applies. A byte-level vocabulary spells them literally;
    elsewhere they pass through the decoder's steps like any other.
    """
    steps = _decoder_steps(backend)
    if not steps:
        return (lambda token: b" " + token.encode()), True  # like the library: words with spaces between them
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds and set(kinds) <= {"ByteLevel", "ByteFallback", "Fuse"}:
        return functools.partial(_byte_level, frozenset(added)), False
    return _sentencepiece(steps)


def _sentencepiece(steps: list[dict[str, Any]]) -> tuple[Callable[[str], bytes], bool]:
    """Decode in steps that act on one token at a time, or on the beginning of the whole text."""
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
    """List GPT-2's spelling of each byte as a visible character: printable ones as themselves, others from U+0100 on.

    With it, a vocabulary of bytes can be written as strings without spaces or control characters.
    """
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte if byte in visible else 256 + hidden.index(byte)) for byte in range(256)]


# for str.translate; what spells no byte becomes a character that Latin-1 lacks
_AS_LATIN_1 = dict.fromkeys(range(256), 0xFFFF) | {
    ord(spelling): byte for byte, spelling in enumerate(_byte_alphabet())
}


def _byte_level(added: frozenset[str], token: str) -> bytes:
    if token in added:
        return token.encode()
    try:
        return token.translate(_AS_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def _add_mark(backend: tokenizers.Tokenizer, mark: str) -> int:
    """Make `mark` a token, and return its id, which must not be another token's and is used only here."""
    used = backend.get_added_tokens_decoder().keys()
    expected = max(backend.get_vocab_size(with_added_tokens=False), max(used, default=-1) + 1)
    if backend.id_to_token(expected) is not None:
        raise CheckpointError("tokenizer: its token ids have gaps, which is not supported")
    backend.add_special_tokens([AddedToken(mark, normalized=False, special=True)])
    return cast(int, backend.token_to_id(mark))
