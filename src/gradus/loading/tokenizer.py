"""Text to token ids and back, for every kind of checkpoint, over the `tokenizers` library.

Two rules that callers rely on:

- **Decoding is by bytes.** `token_bytes` says what one token adds to the text; `decode` is those bytes joined. So text
  that is streamed token by token and text decoded at once cannot differ, and a character that spans tokens is whole.
- **Who may write control tokens.** A raw prompt is the operator's: `<|im_start|>` in it is the control token, as in
  other engines. The contents of chat messages are a stranger's: there it is eleven ordinary characters (see chat.py).
"""

import json
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from gradus.errors import CheckpointError, RequestError
from gradus.loading.chat import ChatTemplate, Cutter, Message, check_messages

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
        self.vocab_size = _size(backend)
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)
        added = backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(token for token, entry in added.items() if entry.special)
        self._bytes_of, self._drops_first_space = _bytes_rule(backend)
        self._added = {token: entry.content.encode() for token, entry in added.items()}
        self._template = chat_template
        self._backend = backend
        # One more token, that no text can name, marks the cuts that make control tokens of strangers plain text.
        self._cutter = Cutter(
            mark=f"\ue000{secrets.token_hex(16)}\ue001", controls=[added[token].content for token in self.special_token_ids]
        )
        backend.add_special_tokens([AddedToken(self._cutter.mark, normalized=False, special=True)])
        self._cut_id = cast(int, backend.token_to_id(self._cutter.mark))

    @classmethod
    def of_bytes(cls) -> "Tokenizer":
        """One token a byte, for models that were never trained: text works, and its length is easy to reason about."""
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
        rendered = self._render(messages, self._cutter.cut, add_generation_prompt)
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
        return self._backend.encode(text, add_special_tokens=special_tokens).ids

    def _render(self, messages: Sequence[Message], treat: Callable[[str], str], add_generation_prompt: bool) -> str:
        if self._template is None:
            raise RequestError(
                "messages: this model has no chat template; send its text as a prompt instead (gradus generate, "
                "/v1/completions)",
                param="messages",
                limit="a model with a chat template",
            )
        return self._template.render(
            check_messages(messages, treat), add_generation_prompt=add_generation_prompt, bos_token=self._spelling()
        )

    def _spelling(self) -> str:
        """The beginning-of-sequence token, which templates write themselves."""
        return "" if self.bos_token_id is None else self._backend.id_to_token(self.bos_token_id) or ""

    def _token_bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id]
        token = self._backend.id_to_token(token_id) if 0 <= token_id < self._cut_id else None
        return b"" if token is None else self._bytes_of(token)
