"""A proxy between an agent and the server: it forwards bodies unchanged and notes the calls in them.

It reads requests and answers of three protocols (OpenAI's chats and responses, Anthropic's messages), streamed or
whole: the calls, whether their arguments obey the schemas of the tools that were sent, the text, and the prompt's
length.
"""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

ROUTES = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
SIGNS = ('"arguments"', '"parameters"', "<tool_call>")
"""Signs of a call that could not be read: an answer without calls contains one of them."""
NOT_FORWARDED = ("host", "connection", "accept-encoding", "transfer-encoding", "content-length")

Json = dict[str, Any]


@dataclass
class Answer:
    """One answer of the model. calls: (name, arguments as text). prompt_tokens: 0 if the answer does not say.
    first_call: when its first call had begun to arrive (time.monotonic), or None."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int = 0
    first_call: float | None = None

    def looks_like_a_call(self) -> bool:
        return not self.calls and any(sign in self.text for sign in SIGNS)


@dataclass
class Turn:
    """A request for an answer: the body from the agent, and the answer."""

    body: Json
    began: float
    status: int = 0
    answer: Answer = field(default_factory=Answer)

    def invalid_calls(self) -> int:
        schemas = declared(self.body)
        return sum(not obeys(arguments, schemas.get(name)) for name, arguments in self.answer.calls)

    def results(self) -> int:
        """The results of calls that the agent has sent with this request."""
        return sum(map(_results, self.body.get("messages") or self.body.get("input") or ()))


def _results(message: Any) -> int:
    if not isinstance(message, dict):
        return 0
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    own = message.get("role") == "tool" or message.get("type") == "function_call_output"
    return own + sum(isinstance(block, dict) and block.get("type") == "tool_result" for block in blocks)


# -- calls and their schemas ---------------------------------------------------------------------------------------


def declared(body: Json) -> dict[str, Json]:
    """The schemas of a request's tools, by name, in any of the three protocols."""
    tools = [tool.get("function", tool) for tool in body.get("tools") or () if isinstance(tool, dict)]
    return {
        tool["name"]: tool.get("parameters") or tool.get("input_schema") or {}
        for tool in tools
        if "name" in tool and tool.get("type") != "namespace"
    } | {name: schema for tool in tools if tool.get("type") == "namespace" for name, schema in declared(tool).items()}


def obeys(arguments: str, schema: Json | None) -> bool:
    """Whether a call's arguments are an object that obeys the tool's schema. schema: None of an unknown tool."""
    if schema is None:
        return False
    try:
        value = json.loads(arguments)
        return isinstance(value, dict) and Draft202012Validator(schema).is_valid(value)
    except (ValueError, SchemaError):
        return False


# -- reading answers -----------------------------------------------------------------------------------------------


def read(pieces: list[tuple[float, bytes]]) -> Answer:
    """Read an answer from its bytes and the times when they came."""
    answer, calls = Answer(), dict[Any, list[str]]()
    for at, event in _events(pieces):
        before = len(calls)
        for part in (_chat, _responses, _messages):
            part(event, answer, calls)
        if len(calls) > before and answer.first_call is None:
            answer.first_call = at
    answer.calls = [(name, arguments or "{}") for name, arguments in calls.values()]
    return answer


def _events(pieces: list[tuple[float, bytes]]) -> Iterator[tuple[float, Json]]:
    """The events of a stream, each with the time of its last byte; of a whole answer the body is the one event."""
    whole = b"".join(piece for _, piece in pieces)
    if not whole.lstrip().startswith((b"data:", b"event:", b":")):
        with contextlib.suppress(ValueError):
            found = json.loads(whole)
            if isinstance(found, dict):
                yield pieces[-1][0], found
        return
    pending = b""
    for at, piece in pieces:
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):  # [DONE], and lines that name an event
                yield at, json.loads(line.removeprefix(b"data:"))


def _chat(event: Json, answer: Answer, calls: dict[Any, list[str]]) -> None:
    for choice in event.get("choices") or ():
        said = choice.get("delta") or choice.get("message") or {}
        answer.text += said.get("content") or ""
        for number, call in enumerate(said.get("tool_calls") or ()):
            found = calls.setdefault(call.get("index", number), ["", ""])
            found[0] += call["function"].get("name") or ""
            found[1] += call["function"].get("arguments") or ""
    answer.prompt_tokens = (event.get("usage") or {}).get("prompt_tokens") or answer.prompt_tokens


def _responses(event: Json, answer: Answer, calls: dict[Any, list[str]]) -> None:
    kind = event.get("type", "")
    if kind == "response.output_text.delta":
        answer.text += event["delta"]
    if kind in ("response.output_item.added", "response.output_item.done"):
        _item(event["item"], calls)
    whole = event if event.get("object") == "response" else event.get("response") or {}
    for item in whole.get("output") or ():
        _item(item, calls)
        if whole is event:
            answer.text += "".join(part.get("text", "") for part in item.get("content") or ())
    answer.prompt_tokens = (whole.get("usage") or {}).get("input_tokens") or answer.prompt_tokens


def _item(item: Json, calls: dict[Any, list[str]]) -> None:
    if item.get("type") == "function_call":
        calls[item["id"]] = [item["name"], item.get("arguments") or ""]


def _messages(event: Json, answer: Answer, calls: dict[Any, list[str]]) -> None:
    kind, index = event.get("type"), event.get("index")
    blocks = enumerate(event.get("content") or ()) if kind == "message" else ()
    for number, block in [*blocks, *([(index, event["content_block"])] if kind == "content_block_start" else [])]:
        answer.text += block.get("text") or ""
        if block.get("type") == "tool_use":
            calls[number] = [block["name"], json.dumps(block["input"]) if block.get("input") else ""]
    if kind == "content_block_delta":
        answer.text += event["delta"].get("text") or ""
        if "partial_json" in event["delta"]:
            calls[index][1] += event["delta"]["partial_json"]
    if kind in ("message", "message_start"):
        usage = (event if kind == "message" else event["message"])["usage"]
        parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        answer.prompt_tokens = sum(usage.get(part) or 0 for part in parts)


# -- the proxy -----------------------------------------------------------------------------------------------------


class Recorder:
    """Forwards to the server at 127.0.0.1:port from `address`. turns: grows as requests arrive.

    Closing it ends the answers that are under way, so that the server stops generating them.
    """

    def __init__(self, port: int) -> None:
        self.turns: list[Turn] = []
        self._port = port
        self._open: set[http.client.HTTPConnection] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        self._server.daemon_threads = False  # so that closing waits for them: their turns are then complete
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        for upstream in [*self._open]:
            if upstream.sock is not None:
                with contextlib.suppress(OSError):
                    upstream.sock.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    def forward(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        turn = Turn(_parsed(body), time.monotonic())
        if handler.command == "POST" and handler.path.partition("?")[0] in ROUTES:
            self.turns.append(turn)
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in NOT_FORWARDED}
        upstream = http.client.HTTPConnection("127.0.0.1", self._port, timeout=3600)
        self._open.add(upstream)
        pieces: list[tuple[float, bytes]] = []
        try:
            upstream.request(handler.command, handler.path, body or None, headers)
            answer = upstream.getresponse()
            turn.status = answer.status
            _begin(handler, answer)
            while piece := answer.read1(1 << 16):
                pieces.append((time.monotonic(), piece))
                handler.wfile.write(piece)
                handler.wfile.flush()
        except (OSError, http.client.HTTPException):
            handler.close_connection = True  # the agent has left, or this recorder closes
        finally:
            self._open.discard(upstream)
            upstream.close()
            if pieces:
                turn.answer = read(pieces)


def _begin(handler: BaseHTTPRequestHandler, answer: http.client.HTTPResponse) -> None:
    handler.send_response_only(answer.status)
    for name, value in answer.getheaders():
        if name.lower() not in ("connection", "transfer-encoding"):
            handler.send_header(name, value)
    handler.send_header("Connection", "close")  # a stream has no length: it ends with the connection
    handler.end_headers()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, recorder: Recorder, *arguments: Any) -> None:
        self._recorder = recorder
        super().__init__(*arguments)

    def do_POST(self) -> None:
        self._recorder.forward(self)

    do_GET = do_HEAD = do_DELETE = do_OPTIONS = do_POST

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: the session's record says it."""


def _parsed(body: bytes) -> Json:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
