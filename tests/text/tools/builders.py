"""Tiny tokenizers of every family: one token per byte, and the family's markers as added tokens."""

from collections.abc import Sequence
from functools import cache

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from gradus.loading import Tokenizer
from gradus.loading.chat import ChatTemplate
from gradus.loading.tokenizer import _byte_alphabet
from gradus.text.tools.answer import AnswerStream
from gradus.text.tools.dialect import Dialect
from gradus.text.tools.events import Answer, Event
from gradus.text.tools.tool import read_tools

CONTROLS = ("<|im_start|>", "<|im_end|>")  # ids 256 and 257

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "list": {"type": "array"},
        "map": {"type": "object"},
        "maybe": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
    },
    "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "Does it.", "parameters": SCHEMA}},
    {"name": "g", "input_schema": {"type": "object", "properties": {}}},
]

CHATML = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' + m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINK = ("<think>", "</think>")
TAGS = ("<tool_call>", "</tool_call>")

# format → the signs in its template, and its added tokens: those that show in text, and control tokens
FAMILIES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "hermes": (CHATML, (*TAGS, *THINK), ()),
    "qwen2.5-coder": (CHATML, (*TAGS, *THINK), ()),
    "qwen3-coder": (CHATML + "{# <function= <parameter= #}", (*TAGS, *THINK), ()),
    "gemma4": (
        CHATML.replace("<tool_call>", "").replace("<think>\n\n</think>\n\n", "") + '{# <|tool_call> <|"|> #}',
        (),
        ("<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_response>", "<|channel>", "<channel|>"),
    ),
    "olmo3": (
        CHATML.replace("<tool_call>", "<function_calls>"),
        ("<function_calls>", "</function_calls>"),
        (),
    ),
    "phi4": (
        CHATML.replace("<tool_call>", "<|tool_call|>") + "{# <|/tool_call|> #}",
        ("<|tool_call|>", "<|/tool_call|>"),
        (),
    ),
    "granite3": (
        CHATML.replace("<tool_call>", "<|tool_call|>") + "{# <|start_of_role|> #}",
        THINK,
        ("<|start_of_role|>", "<|tool_call|>"),
    ),
    "harmony": (
        CHATML.replace("<tool_call>", "<|channel|>") + "{# <|message|> #}",
        (),
        ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"),
    ),
    "mistral-v3": (CHATML.replace("<tool_call>", "[TOOL_CALLS]"), (), ("[TOOL_CALLS]",)),
    "mistral-v11": (
        CHATML.replace("<tool_call>", "[TOOL_CALLS]") + "{# [ARGS] #}",
        (),
        ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    ),
    "llama3-json": (
        CHATML.replace("<tool_call>", "") + '{# <|start_header_id|> "parameters" #}',
        (),
        ("<|python_tag|>",),
    ),
    "llama3-pythonic": (PLAIN + "{# <|start_header_id|> [func_name1( #}", (), ("<|python_tag|>",)),
    "gemma3": (PLAIN + "{# <start_of_turn> #}", (), ()),
    "grammar": (PLAIN, (), ()),
}


def tokenizer(
    template: str | None = PLAIN, shown: Sequence[str] = (), controls: Sequence[str] = (), model_name: str = ""
) -> Tokenizer:
    """One token per byte, then control tokens, then markers that show in text."""
    alphabet = _byte_alphabet()
    made = tokenizers.Tokenizer(models.BPE(vocab={alphabet[byte]: byte for byte in range(256)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (*CONTROLS, *controls)])
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in shown])
    return Tokenizer(
        made,
        bos_token_id=256,
        eos_token_ids=(257,),
        chat_template=ChatTemplate(template) if template else None,
        model_name=model_name,
    )


def shown(name: str, text: str) -> str:
    """A text as a client sees it: a family's control tokens add nothing to it."""
    for control in FAMILIES[name][2]:
        text = text.replace(control, "")
    return text


@cache
def family(name: str, *, by_text: bool = False) -> Dialect:
    """A model of a family. by_text: no marker is a token of its vocabulary, unless nothing can be read without."""
    template, shown, controls = FAMILIES[name]
    by_text = by_text and name != "harmony"
    return Dialect(tokenizer(template, *(() if by_text else (shown, controls))), name)


def stream_of(dialect: Dialect, *, prompt: Sequence[int] = (), choice=None, params=None) -> AnswerStream:
    """A stream that reads calls of `f` and `g`."""
    choice = choice or ("auto" if dialect.format.free else "required")
    return dialect.turn(read_tools(TOOLS), choice).stream(prompt, params, seed="tests")


def tokens_of(dialect: Dialect, text: str) -> list[int]:
    return dialect.tokenizer.encode(text)


def events_of(dialect: Dialect, text: str, sizes: Sequence[int] = (), **options) -> list[Event]:
    """Read a text, its tokens cut into pieces of these sizes and a rest."""
    stream, tokens, events = stream_of(dialect, **options), tokens_of(dialect, text), []
    for size in sizes:
        events += stream.push(tokens[:size])
        tokens = tokens[size:]
    return [*events, *stream.push(tokens), *stream.finish()]


def read(name: str, text: str, **options) -> Answer:
    """Read a whole answer of a family."""
    return Answer.of(events_of(family(name), text, **options))


def called(answer: Answer) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in answer.calls]
