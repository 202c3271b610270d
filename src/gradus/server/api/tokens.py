"""/tokenize, /detokenize and /tokenizer_info: the model's tokens, in other servers' form."""

from collections.abc import Sequence
from typing import Any

from gradus.loading.chat import check_settings
from gradus.server.api.fields import Fields, refuse
from gradus.server.api.openai import NO_EFFECT, spelled, speller
from gradus.server.exchange import Served
from gradus.text.front_end import FrontEnd


def tokenized(body: Any, served: Served) -> dict[str, Any]:
    """Encode a `prompt`, or `messages` by the chat template. Raises RequestError, Unavailable while the model loads."""
    front_end, fields = served.front_end, Fields(body, strict=served.config.strict_fields)
    strings = fields.flag("return_token_strs")
    tokens = _of_messages(fields, front_end) if "messages" in fields else _of_prompt(fields, front_end)
    fields.some(*NO_EFFECT)
    fields.ignored()
    spelling = speller(front_end.tokenizer)
    return {
        "count": len(tokens),
        "max_model_len": front_end.limits.context_length,
        "tokens": tokens,
        "token_strs": [spelled(spelling(token)) for token in tokens] if strings else None,
    }


def _of_prompt(fields: Fields, front_end: FrontEnd) -> Sequence[int]:
    prompt = fields.text("prompt")
    if prompt is None:
        refuse("prompt", "a text (or messages, a conversation)", None)
    return front_end.tokens(prompt, special_tokens=fields.flag("add_special_tokens", True))


def _of_messages(fields: Fields, front_end: FrontEnd) -> Sequence[int]:
    fields.refuse(
        {
            "chat_template": "the model's own is used",
            "continue_final_message": "send the prompt's text",
        }
    )
    if fields.flag("add_special_tokens"):
        refuse("add_special_tokens", "false with messages: the chat template writes the control tokens", True)
    settings = check_settings(fields.object("chat_template_kwargs"))
    last = fields.flag("add_generation_prompt", True)
    return front_end.chat_prompt(
        fields.list("messages"), tools=fields.get("tools"), add_generation_prompt=last, **settings
    )


def detokenized(body: Any, served: Served) -> dict[str, Any]:
    """Decode `tokens`, control tokens by their names. Raises RequestError, Unavailable while the model loads."""
    front_end, fields = served.front_end, Fields(body, strict=served.config.strict_fields)
    if "tokens" not in fields:
        refuse("tokens", "a list of token ids", None)
    tokens, most = fields.list("tokens"), front_end.limits.vocab_size - 1
    for token in tokens:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= most:
            refuse("tokens", f"a list of token ids between 0 and {most}", token)
    fields.some(*NO_EFFECT)
    fields.ignored()
    return {"prompt": front_end.text(tokens)}


def tokenizer_described(served: Served) -> dict[str, Any]:
    """Describe the tokenizer for programs that render conversations themselves."""
    tokenizer = served.front_end.tokenizer
    if tokenizer is None:
        refuse("tokenizer", "there, for a description of it", None)
    bos, eos = tokenizer.bos_token_id, next(iter(served.front_end.limits.eos_token_ids), None)
    template = tokenizer.chat_template
    return {
        "tokenizer_class": "gradus",
        "vocab_size": tokenizer.vocab_size,
        "bos_token": None if bos is None else spelled(tokenizer.spelling(bos)),
        "eos_token": None if eos is None else spelled(tokenizer.spelling(eos)),
        "chat_template": None if template is None else template.source,
    }
