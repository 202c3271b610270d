"""Checkpoints with several chat templates: the one in use is transformers' choice, for prompts and for tool calls."""

import json

import gguf
import pytest

from gradus.errors import CheckpointError, RequestError
from gradus.loading import open_checkpoint, open_tokenizer
from gradus.loading.gguf.file import GGUFFile
from gradus.loading.gguf.tokenizer import read_tokenizer
from gradus.loading.small_files import small_files
from gradus.loading.templates import Source, read_templates
from gradus.text.tools.dialect import Dialect
from tests.loading.builders import CHATML, write_bpe_tokenizer, write_folder, write_gguf, write_json

TOOL_USE = "{% for t in tools %}<tool_call>{{ t | tojson }}{% endfor %}" + CHATML
RAG = "{% for d in documents %}{{ d }}{% endfor %}" + CHATML
TOOLS = [{"type": "function", "function": {"name": "look_up", "description": "d", "parameters": {"type": "object"}}}]
USER = {"role": "user", "content": "the cat"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": {}}}


def listed(**named):
    return [{"name": name, "template": template} for name, template in named.items()]


# name → tokenizer_config.json's entry, files
LAYOUTS = {
    "one text": (CHATML, {}),
    "a list": (listed(default=CHATML, tool_use=TOOL_USE, rag=RAG), {}),
    "a list without tool_use": (listed(rag=RAG, default=CHATML), {}),
    "a list without default": (listed(tool_use=TOOL_USE, rag=RAG), {}),
    "a list of others": (listed(rag=RAG), {}),
    "files": (None, {"chat_template.jinja": CHATML, "additional_chat_templates/tool_use.jinja": TOOL_USE}),
    "files before the list": (listed(default="no", tool_use="no"), {"chat_template.jinja": CHATML}),
    "a file that names tool_use alone": (CHATML, {"additional_chat_templates/tool_use.jinja": TOOL_USE}),
    "a file that names the default": (None, {"additional_chat_templates/default.jinja": CHATML}),
}


def folder_with(folder, entry, files):
    write_folder(folder)
    write_json(
        folder / "tokenizer_config.json", {"eos_token": "<|im_end|>"} | ({"chat_template": entry} if entry else {})
    )
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def rendered(render, *refusals):
    try:
        return render()
    except refusals:
        return "refused"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_renders_as_in_transformers_with_tools_and_without(tmp_path, layout):
    transformers = pytest.importorskip("transformers")
    folder = folder_with(tmp_path / "tiny", *LAYOUTS[layout])
    ours = open_tokenizer(str(folder))
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    for tools in (None, TOOLS):
        expected = rendered(lambda t=tools: theirs.apply_chat_template([USER], tools=t, tokenize=False), ValueError)
        found = rendered(lambda t=tools: ours.render_chat([USER], tools=t, add_generation_prompt=False), RequestError)
        assert found == expected


def test_a_gguf_file_names_its_templates_too(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    write_bpe_tokenizer(writer)
    writer.kv_data[0].pop("tokenizer.chat_template")
    writer.add_chat_template(listed(tool_use=TOOL_USE, rag=RAG, default=CHATML))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer = read_tokenizer(GGUFFile(tmp_path / "m.gguf"))
    assert "look_up" in tokenizer.render_chat([USER], tools=TOOLS)
    assert tokenizer.render_chat([USER]) == "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"


def test_templates_that_no_request_uses_are_named_once(tmp_path, caplog):
    open_tokenizer(str(folder_with(tmp_path / "tiny", *LAYOUTS["a list"])))
    assert [record.getMessage() for record in caplog.records] == ["tiny: no request uses its chat templates 'rag'"]
    caplog.clear()
    without = open_tokenizer(str(folder_with(tmp_path / "other", *LAYOUTS["a list without default"])))
    assert "so conversations without tools cannot be rendered" in caplog.text
    with pytest.raises(RequestError, match="no chat template for conversations without tools"):
        without.chat([USER])
    caplog.clear()
    open_tokenizer(str(folder_with(tmp_path / "third", *LAYOUTS["one text"])))
    assert not caplog.records


@pytest.mark.parametrize("layout", ["a list", "files", "a list without default"])
def test_the_format_of_calls_is_that_of_the_template_that_shows_tools(tmp_path, layout):
    dialect = Dialect(open_tokenizer(str(folder_with(tmp_path / "tiny", *LAYOUTS[layout]))))
    assert dialect.format.name == "hermes" and dialect.shows_tools()
    assert dialect.messages([USER], dialect.turn(TOOLS).shown) == [USER], "the template shows them, no system message"


def test_calls_of_earlier_turns_are_text_where_the_template_without_tools_shows_none(tmp_path):
    """A client that sends the history without its tools: the default template would leave the calls out."""
    shows_calls = (
        "{{ tools | tojson }}{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{% endfor %}{% endfor %}"
    )
    entry = listed(default=CHATML, tool_use=shows_calls)
    dialect = Dialect(open_tokenizer(str(folder_with(tmp_path / "tiny", entry, {}))))
    history = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sat"},
    ]
    text = dialect.tokenizer.render_chat(dialect.messages(history))
    assert '<tool_call>\n{"name": "look_up", "arguments": {}}\n</tool_call>' in text and "sat" in text
    assert "tool_calls" in dialect.messages(history, dialect.turn(TOOLS).shown)[1]


def test_each_template_says_which_conversations_it_takes(tmp_path):
    strict = "{% if messages | length > 2 %}{{ raise_exception('one turn') }}{% endif %}" + TOOL_USE
    entry = listed(default=CHATML, tool_use=strict)
    dialect = Dialect(open_tokenizer(str(folder_with(tmp_path / "tiny", entry, {}))))
    assert dialect.takes.neighbors and not dialect.takes_with_tools.neighbors


def test_a_setting_that_only_the_template_of_tools_knows_is_known(tmp_path):
    entry = listed(default=CHATML, tool_use="{{ enable_thinking }}" + TOOL_USE)
    tokenizer = open_tokenizer(str(folder_with(tmp_path / "tiny", entry, {})))
    assert "enable_thinking" in tokenizer.chat_templates.variables


@pytest.mark.parametrize("made_as", ["folder", "gguf"])
def test_a_copy_of_the_small_files_keeps_both_templates(tmp_path, made_as):
    if made_as == "folder":
        source = folder_with(tmp_path / "tiny", *LAYOUTS["files"])
    else:
        source = write_gguf(tmp_path / "m.gguf", more={"tokenizer.chat_template.tool_use": TOOL_USE})
    _, texts = small_files(open_checkpoint(str(source)))
    assert texts["chat_template.jinja"] == CHATML
    assert texts["additional_chat_templates/tool_use.jinja"] == TOOL_USE


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (7, "chat_template must be a text, or a list of named ones, got 7"),
        ([7], "must list objects with a name and a template, got 7"),
        ([{"name": 1, "template": CHATML}], "must list objects with a name"),
        ([{"name": "default", "template": 1}], "'default' must be a text"),
        (listed(default=CHATML, tool_use="{% for"), "'tool_use': not a valid template"),
    ],
)
def test_a_wrong_entry_is_refused_in_one_line(tmp_path, entry, words):
    with pytest.raises(CheckpointError, match=words) as error:
        open_tokenizer(str(folder_with(tmp_path / "tiny", entry, {})))
    assert "\n" not in str(error.value)


def test_names_from_a_file_are_quoted_and_cut(caplog):
    read_templates({"default": Source("x", CHATML), "a\nb" + "c" * 999: Source("x", None)}, "m.gguf")
    (record,) = caplog.records
    assert "\n" not in record.getMessage() and len(record.getMessage()) < 200
    assert json.dumps("a\nb")[1:-1] in record.getMessage()
