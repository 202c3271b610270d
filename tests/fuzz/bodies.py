"""A valid body for every route that takes one, with every part that its protocol has: the fuzzer changes them."""

from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "ß", None]}},
    "required": ["a"],
    "additionalProperties": False,
}
FUNCTION = {"name": "look_up", "description": "d", "parameters": SCHEMA, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"a": 1}'}}
SAMPLING = {
    "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.01, "presence_penalty": 0.1, "frequency_penalty": 0.1,
    "repetition_penalty": 1.1, "logit_bias": {"5": 1.5}, "n": 2, "seed": 7, "stop": ["zz", "ß"], "stop_token_ids": [9],
    "min_tokens": 1, "ignore_eos": False, "priority": 1, "cache_salt": "s", "deadline": 5.0, "timeout": 2.0,
}  # fmt: skip
STREAM = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
CONVERSATION = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "r"},
    {"role": "tool", "tool_call_id": "call_1", "content": "4"},
    {"role": "user", "content": "go"},
]
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "tool_use", "id": "t1", "name": "look_up", "input": {"a": 1}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "4"}], "is_error": False},
            {"type": "text", "text": "go"},
        ],
    },
]
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "r"}], "encrypted_content": "e"},
    {
        "type": "function_call",
        "call_id": "c",
        "name": "look_up",
        "arguments": '{"a": 1}',
        "id": "fc",
        "status": "completed",
    },
    {"type": "function_call_output", "call_id": "c", "output": "4"},
    {"role": "user", "content": "go"},
]

SEEDS: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"prompt": "hi", "max_tokens": 3, **SAMPLING, "logprobs": 2, "prompt_logprobs": 1, "stream": True}),
    (
        "/generate",
        {"prompt": [1, 2, 3], "max_tokens": 8, "structured": {"json_schema": SCHEMA, "whitespace": "compact"}},
    ),
    (
        "/generate",
        {"prompt": "x", "max_tokens": 6, "structured": {"regex": "[a-f]{2,5}\\d?"}, "seed": 3, "temperature": 1},
    ),
    ("/generate", {"prompt": "x", "max_tokens": 6, "structured": {"grammar": 'start: "a" start | "b"'}}),
    ("/generate", {"prompt": "x", "max_tokens": 6, "structured": {"choice": ["yes", "no", "ß"]}, "n": 3}),
    ("/v1/completions", {"prompt": ["a", "bc"], "max_tokens": 3, **SAMPLING, "echo": True, "logprobs": 2, **STREAM}),
    ("/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 8, "response_format": FORMAT, "suffix": None}),
    (
        "/v1/chat/completions",
        {
            "messages": CONVERSATION,
            "max_tokens": 4,
            **SAMPLING,
            "tools": [TOOL],
            "tool_choice": "auto",
            **STREAM,
            "parallel_tool_calls": False,
            "logprobs": True,
            "top_logprobs": 2,
            "chat_template_kwargs": {"enable_thinking": False},
        },
    ),
    ("/v1/chat/completions", {"messages": CONVERSATION[:2], "max_tokens": 12, "response_format": FORMAT}),
    (
        "/v1/chat/completions",
        {
            "messages": CONVERSATION[-1:],
            "max_completion_tokens": 12,
            "tools": [TOOL],
            "reasoning_effort": "low",
            "tool_choice": {"type": "function", "function": {"name": "look_up"}},
        },
    ),
    ("/v1/chat/completions", {"messages": CONVERSATION[-1:], "max_tokens": 6, "structured_outputs": {"regex": "a+b?"}}),
    (
        "/v1/responses",
        {
            "input": ITEMS,
            "instructions": "i",
            "max_output_tokens": 4,
            "tools": [{"type": "function", **FUNCTION}],
            "stream": True,
            "tool_choice": "auto",
            "reasoning": {"effort": "low", "summary": "auto"},
            "include": ["reasoning.encrypted_content"],
            "text": {"format": {"type": "text"}, "verbosity": "low"},
            "store": False,
            "metadata": {"a": "b"},
            "temperature": 1,
        },
    ),
    (
        "/v1/responses",
        {
            "input": "hi",
            "max_output_tokens": 9,
            "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        },
    ),
    (
        "/v1/messages",
        {
            "messages": BLOCKS,
            "max_tokens": 4,
            "system": [{"type": "text", "text": "s"}],
            "stop_sequences": ["zz"],
            "stream": True,
            "tools": [{"name": "look_up", "description": "d", "input_schema": SCHEMA}],
            "tool_choice": {"type": "auto"},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "metadata": {"user_id": "u"},
            "top_k": 3,
            "top_p": 0.9,
        },
    ),
    (
        "/v1/messages",
        {
            "messages": BLOCKS[:1],
            "max_tokens": 9,
            "tools": [{"name": "look_up", "input_schema": SCHEMA}],
            "tool_choice": {"type": "tool", "name": "look_up", "disable_parallel_tool_use": True},
        },
    ),
    (
        "/v1/messages/count_tokens",
        {"messages": BLOCKS, "system": "s", "tools": [{"name": "f", "input_schema": SCHEMA}]},
    ),
    ("/tokenize", {"messages": CONVERSATION, "tools": [TOOL], "add_generation_prompt": True}),
    ("/tokenize", {"prompt": "hi", "add_special_tokens": True, "return_token_strs": True}),
    ("/detokenize", {"tokens": [1, 2, 257]}),
]
