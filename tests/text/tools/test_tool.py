"""Tools and the choice among them: every client's shape is read, and what cannot be is refused in one line."""

import pytest

from gradus.errors import RequestError
from gradus.text.tools.tool import MAX_DESCRIPTION, MAX_TOOLS, Choice, Tool, read_choice, read_tools

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
OPENAI = {
    "type": "function",
    "function": {"name": "f", "description": "Does it.", "parameters": SCHEMA, "strict": True},
}


def function(**fields):
    return {"type": "function", "function": {"name": "f", **fields}}


@pytest.mark.parametrize(
    "given",
    [
        OPENAI,
        {"type": "function", "name": "f", "description": "Does it.", "parameters": SCHEMA, "strict": True},
        Tool("f", "Does it.", SCHEMA, strict=True),
    ],
)
def test_openais_shapes_are_read(given):
    assert read_tools([given]) == (Tool("f", "Does it.", SCHEMA, strict=True),)


@pytest.mark.parametrize("kind", [{}, {"type": "custom"}])
def test_anthropics_shape_is_read(kind):
    given = kind | {
        "name": "f",
        "description": "Does it.",
        "input_schema": SCHEMA,
        "cache_control": {"type": "ephemeral"},
    }
    assert read_tools([given]) == (Tool("f", "Does it.", SCHEMA),)


def test_null_is_as_good_as_absent():
    assert read_tools(None) == ()
    assert read_tools([function(description=None, parameters=None, strict=None)]) == (Tool("f"),)
    assert Tool("f").schema == {"type": "object", "properties": {}}


@pytest.mark.parametrize("kind", ["web_search", "namespace", "web_search_20250305", "custom"])
def test_tools_of_unknown_types_are_skipped(kind):
    assert [tool.name for tool in read_tools([{"type": kind, "name": "x"}, OPENAI])] == ["f"]


def test_a_schema_is_kept_as_it_was_given_and_is_the_tools_own():
    schema = {"properties": {"b": {"enum": [{"additionalProperties": 1}]}, "a": {}}, "type": "object"}
    (tool,) = read_tools([function(parameters=schema)])
    assert tool.parameters == schema and list(tool.parameters) == ["properties", "type"]
    schema["properties"]["c"] = {}
    assert "c" not in tool.parameters["properties"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("f", "tools must be a list"),
        ({"name": "f"}, "tools must be a list"),
        ([7], r"tools\[0\] must be an object"),
        ([{"name": "f"}], r"tools\[0\] must be"),
        ([{"type": "function", "function": 7}], r"tools\[0\].function must be an object"),
        ([{"type": "function", "function": {}}], r"tools\[0\].name must be a text"),
        ([function(name="no spaces")], "letters, digits"),
        ([function(name="x" * 129)], "1 to 128"),
        ([function(name="<|im_end|>")], "letters, digits"),
        ([function(description=7)], "description must be a text"),
        ([function(description="x" * (MAX_DESCRIPTION + 1))], "at most 32768 characters"),
        ([function(strict="yes")], "strict must be true or false"),
        ([function(parameters=[])], "must be a JSON schema of an object"),
        ([function(parameters={"type": "string"})], r'parameters.type must be "object"'),
        ([function(parameters={"properties": []})], "properties must be an object"),
        ([function(parameters={"x": object()})], "must be JSON"),
        ([function(parameters={"x": float("nan")})], "must be JSON"),
        ([function(parameters={"x": "\udc00"})], "must be JSON"),
        ([function(parameters={"x": "y" * 140_000})], "at most 131072 bytes"),
        ([function(name=f"f{n}", parameters={"x": "y" * 100_000}) for n in range(6)], "at most 524288 bytes"),
        ([OPENAI, OPENAI], "different names"),
        (({**OPENAI, "function": {"name": f"f{n}"}} for n in range(10**9)), f"at most {MAX_TOOLS} tools"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_in_one_line(given, words):
    with pytest.raises(RequestError, match=words) as error:
        read_tools(given)
    assert error.value.param.startswith("tools") and "\n" not in str(error.value) and len(str(error.value)) < 400


def test_a_schema_without_an_end_is_refused():
    deep: dict = {}
    for _ in range(10_000):
        deep = {"items": deep}
    with pytest.raises(RequestError, match="nested at most 32 deep"):
        read_tools([function(parameters={"properties": {"x": deep}})])


TOOLS = read_tools([OPENAI, function(name="g")])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, Choice("auto")),
        ("auto", Choice("auto")),
        ("none", Choice("none")),
        ("required", Choice("required")),
        ({"type": "any"}, Choice("required")),
        ({"type": "auto", "disable_parallel_tool_use": True}, Choice("auto", parallel=False)),
        ({"type": "function", "function": {"name": "g"}}, Choice("named", "g", parallel=False)),
        ({"type": "function", "name": "g"}, Choice("named", "g", parallel=False)),
        ({"type": "tool", "name": "f"}, Choice("named", "f", parallel=False)),
        (Choice("named", "f"), Choice("named", "f", parallel=False)),
    ],
)
def test_every_clients_choice_is_read(given, expected):
    assert read_choice(given, TOOLS) == expected


def test_parallel_calls_can_be_switched_off():
    assert read_choice("auto", TOOLS, parallel=False) == Choice("auto", parallel=False)
    assert read_choice("auto", TOOLS, parallel=None).parallel


def test_without_tools_there_is_nothing_to_choose():
    assert read_choice("auto", ()) == read_choice(None, ()) == Choice("none")


@pytest.mark.parametrize(
    ("given", "tools", "words"),
    [
        ("always", TOOLS, '"auto", "required", "none"'),
        (7, TOOLS, "an object that names a function"),
        ([], TOOLS, "an object that names a function"),
        ({"type": "allowed_tools"}, TOOLS, "an object that names a function"),
        ({"type": ["auto"]}, TOOLS, "an object that names a function"),
        ({"type": "function", "function": {"name": "h"}}, TOOLS, r"a declared tool \(f, g\), got 'h'"),
        ({"type": "tool"}, TOOLS, "got None"),
        ("required", (), "without tools"),
        ({"type": "tool", "name": "f"}, (), "there is none"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(given, tools, words):
    with pytest.raises(RequestError, match=words) as error:
        read_choice(given, tools)
    assert error.value.param == "tool_choice"
