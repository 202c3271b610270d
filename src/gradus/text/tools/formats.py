"""The table of formats: how models of each family are shown tools, and how they call them.

The first format whose signs are in a model's chat template, or among the tokens of its vocabulary, is the model's. A
format of one model, which shares its template with others, precedes theirs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from gradus.text.tools.answer import Trigger
from gradus.text.tools.channels import ADDRESS, CALL, CHANNEL, CONSTRAIN, MARKERS, MESSAGE
from gradus.text.tools.layout import Layout
from gradus.text.tools.syntaxes.gemma_calls import CLOSING, OPENING, QUOTE, RESULT, gemma
from gradus.text.tools.syntaxes.json_calls import bare_json, json_fence, json_in_tags, json_list, mistral
from gradus.text.tools.syntaxes.python_calls import python_fence, python_in_tags, python_list
from gradus.text.tools.syntaxes.xml_calls import xml_in_tags


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    signs: texts that a chat template of such models has, all of them; none: every model. tokens: added tokens of the
    vocabulary that say the same, for templates that show no tools. markers: tokens where the vocabulary has them, text
    otherwise. free: models may decide by themselves whether to call; otherwise only a grammar makes them. model: a part
    of the names of the models that have this format, in lower-case letters and digits; "": any. triggers: none where
    answers are messages in channels. efforts: those of reasoning that a prompt may name; (): any.
    """

    name: str
    families: str
    signs: tuple[str, ...]
    layout: Layout
    triggers: tuple[Trigger, ...]
    markers: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    free: bool = True
    model: str = ""
    efforts: tuple[str, ...] = ()


_IN_TAGS = ("<tool_call>", "</tool_call>")
_JSON_CALL = '{"name": "$name", "arguments": $json}'
_HERMES = Layout(f"<tool_call>\n{_JSON_CALL}\n</tool_call>", "<tool_call>", between="\n")

FORMATS: tuple[Format, ...] = (
    Format(
        name="qwen3-coder",
        families="Qwen3-Coder, Qwen3.5",
        signs=("<function=", "<parameter="),
        markers=_IN_TAGS,
        layout=Layout("<tool_call>\n<function=$name>\n$xml</function>\n</tool_call>", "<tool_call>", between="\n"),
        triggers=(Trigger("<tool_call>", xml_in_tags("</tool_call>")),),
    ),
    Format(
        name="hermes",
        families="Qwen2.5, Qwen3, SmolLM3, Granite 4, Hermes",
        signs=("<tool_call>",),
        markers=_IN_TAGS,
        layout=_HERMES,
        triggers=(Trigger("<tool_call>", json_in_tags("</tool_call>")),),
    ),
    Format(
        name="qwen2.5-coder",
        families="Qwen2.5-Coder, by its name: its template is Qwen2.5's, but it often leaves the tags out",
        signs=("<tool_call>",),
        model="qwen25coder",
        markers=_IN_TAGS,
        layout=replace(_HERMES, bare="json", fenced=True),
        triggers=(
            Trigger("<tool_call>", json_in_tags("</tool_call>")),
            Trigger("{", bare_json("```", "</tool_call>"), "start", part=True),
            Trigger("```", json_fence, "start"),
        ),
    ),
    Format(
        name="gemma4",
        families="Gemma 4",
        signs=(OPENING, QUOTE),
        markers=(OPENING, CLOSING, QUOTE, RESULT),
        tokens=(OPENING, CLOSING, QUOTE),
        layout=Layout(f"{OPENING}call:$name{{$gemma}}{CLOSING}", OPENING, between=""),
        triggers=(Trigger(OPENING, gemma),),
    ),
    Format(
        name="olmo3",
        families="OLMo 3",
        signs=("<function_calls>",),
        markers=("<function_calls>", "</function_calls>"),
        tokens=("<function_calls>", "</function_calls>"),
        layout=Layout(
            "$name($keywords)", "<function_calls>",
            opening="<function_calls>", closing="</function_calls>", between="\n",
        ),
        triggers=(Trigger("<function_calls>", python_in_tags("</function_calls>")),),
    ),
    Format(
        name="phi4",
        families="Phi-4-mini",
        signs=("<|tool_call|>", "<|/tool_call|>"),
        markers=("<|tool_call|>", "<|/tool_call|>"),
        tokens=("<|tool_call|>", "<|/tool_call|>"),
        layout=Layout(
            _JSON_CALL, "<|tool_call|>", opening="<|tool_call|>[", closing="]<|/tool_call|>", between=", ",
            spelled=("functools",),
        ),
        triggers=(
            Trigger("<|tool_call|>", json_in_tags("<|/tool_call|>")),
            Trigger("functools", json_list, "start"),
        ),
    ),
    Format(
        name="granite3",
        families="Granite 3",
        signs=("<|start_of_role|>", "<|tool_call|>"),
        markers=("<|tool_call|>",),
        layout=Layout(
            _JSON_CALL, "<|tool_call|>", opening="<|tool_call|>[", closing="]", between=", ", spelled=("<tool_call>",)
        ),
        triggers=(Trigger("<|tool_call|>", json_list), Trigger("<tool_call>", json_list, "start")),
    ),
    Format(
        name="harmony",
        families="gpt-oss",
        signs=(CHANNEL, MESSAGE),
        markers=MARKERS,
        tokens=(CHANNEL, MESSAGE),
        layout=Layout(
            f"{CHANNEL}commentary {ADDRESS}$name {CONSTRAIN}json{MESSAGE}$json{CALL}", CHANNEL, channels=True
        ),
        triggers=(),
        efforts=("low", "medium", "high"),
    ),
    Format(
        name="mistral-v11",
        families="Ministral 3, Mistral Small 3.2, others from version 11 of the tokenizer on",
        signs=("[TOOL_CALLS]", "[ARGS]"),
        markers=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
        tokens=("[TOOL_CALLS]", "[ARGS]"),
        layout=Layout("[TOOL_CALLS]$name[ARGS]$json", "[TOOL_CALLS]", between=""),
        triggers=(Trigger("[TOOL_CALLS]", mistral),),
    ),
    Format(
        name="mistral-v3",
        families="Mistral 7B v0.3, Nemo, Mixtral, Mistral Small 3 and 3.1",
        signs=("[TOOL_CALLS]",),
        markers=("[TOOL_CALLS]",),
        tokens=("[TOOL_CALLS]",),
        layout=Layout(
            _JSON_CALL, "[TOOL_CALLS]", opening="[TOOL_CALLS] [", closing="]", between=", "
        ),
        triggers=(Trigger("[TOOL_CALLS]", mistral),),
    ),
    Format(
        name="llama3-pythonic",
        families="Llama 3.2 with the template for calls in Python's syntax",
        signs=("<|start_header_id|>", "[func_name1("),
        markers=("<|python_tag|>",),
        layout=Layout(
            "$name($python)", "[", opening="[", closing="]", between=", ", bare="python", also=("<|python_tag|>",)
        ),
        triggers=(Trigger("[", python_list, "start"), Trigger("<|python_tag|>", python_fence)),
    ),
    Format(
        name="llama3-json",
        families="Llama 3.1, 3.2, 3.3",
        signs=("<|start_header_id|>", '"parameters"'),
        markers=("<|python_tag|>",),
        layout=Layout('{"name": "$name", "parameters": $json}', "{", bare="json", also=("<|python_tag|>",)),
        triggers=(Trigger("{", bare_json(), "start", part=True), Trigger("<|python_tag|>", bare_json())),
    ),
    Format(
        name="gemma3",
        families="Gemma 3",
        signs=("<start_of_turn>",),
        tokens=("<start_of_turn>",),
        layout=Layout(
            "$name($python)", "```tool_code", opening="```tool_code\n[", closing="]\n```", between=", ", lines=True
        ),
        triggers=(
            Trigger("```tool_code", python_fence, "line"),
            Trigger("[", python_list, "line"),
        ),
    ),
    Format(
        name="grammar",
        families="any model that was not taught to call tools, such as SmolLM2",
        signs=(),
        layout=Layout(_JSON_CALL, "{"),
        triggers=(Trigger("{", bare_json(), "start", part=True),),
        free=False,
    ),
)  # fmt: skip

NAMES = tuple(each.name for each in FORMATS)


def detect(template: str | None, has_token: Callable[[str], bool], model_name: str = "") -> Format:
    """Find the format of a model. template: its chat template's source. has_token: whether a text is an added token."""
    name = "".join(filter(str.isalnum, model_name.lower()))
    return next(
        each
        for each in sorted(FORMATS, key=lambda each: not each.model)
        if each.model in name
        and (
            (template is not None and all(sign in template for sign in each.signs))
            or (each.tokens and all(map(has_token, each.tokens)))
            or not each.signs
        )
    )
