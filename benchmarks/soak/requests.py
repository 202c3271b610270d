"""The requests of a soak. The n-th request of a load is of the same kind and length in every cycle, so that cycles can
be compared; only its prompt differs. The shares of kinds are in KINDS.
"""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from gradus.load.asking.routes import CHAT, COMPLETIONS, GENERATE, post
from gradus.load.jobs.lengths import Lengths
from gradus.load.jobs.mix import as_text

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
PATHS = (GENERATE, COMPLETIONS, CHAT, RESPONSES, MESSAGES)
LEAVERS = 0.2  # of the requests that are not malformed
LEAVE_S = 0.15  # mean time until a client that leaves does so
KINDS = {
    "plain": 46,
    "shared": 14,
    "long": 6,
    "grammar": 9,
    "several": 7,
    "logprobs": 4,
    "slow": 5,
    "stuck": 1,
    "late": 3,
    "malformed": 5,
}
"""Kinds and their shares in percent. shared: begins like others. several: n > 1. slow: reads its answer slowly.
stuck: does not read for longer than the server waits, which then cuts the connection if the system's buffers do not
hold the answer. late: its time is too short."""

GRAMMARS: tuple[dict[str, Any], ...] = (
    {"regex": "[a-f]{3,12}"},
    {"choice": ["yes", "no", "perhaps"]},
    {"json_schema": {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}},
)
SERVED = frozenset({200, 503})  # 503: the queue is full, which `client.py` checks
REFUSED = frozenset(range(400, 500)) | {503}
HEAD = "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
MALFORMED = (
    HEAD.encode() + b'Content-Length: 12\r\n\r\n{"prompt": 1',
    HEAD.encode() + b"Content-Length: 2\r\n\r\n{}",
    HEAD.encode() + b"Content-Length: 99999999999\r\n\r\n{",
    HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    HEAD.encode() + b"X: " + b"y" * 40_000 + b"\r\n\r\n",
    post(GENERATE, "localhost", {"prompt": "a", "max_tokens": 10**9}, {}),
    post(GENERATE, "localhost", {"prompt": "a", "temprature": 1}, {}),
    post(GENERATE, "localhost", {"prompt": "a", "structured": {"regex": "a("}}, {}),
    post(CHAT, "localhost", {"messages": "hello"}, {}),
    b"GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as bytes, and what may become of it.

    meant: the statuses that it may be answered with. leaves: seconds after which its client leaves; None: it stays.
    reset: by RST. samples: that it generates.
    """

    kind: str
    path: str
    raw: bytes
    stream: bool
    meant: frozenset[int]
    leaves: float | None = None
    reset: bool = False
    samples: int = 1


@dataclass(frozen=True, slots=True)
class Served:
    """What requests depend on: the model's name, its vocabulary and its context in tokens."""

    model: str
    vocab_size: int
    context: int


def asked(served: Served, load: str, cycle: int, number: int) -> Asked:
    """Draw a load's request of this number."""
    same, own = Random(f"{load} {number}"), Random(f"{cycle} {load} {number}")
    (kind,) = same.choices(list(KINDS), list(KINDS.values()))
    if kind == "malformed":
        return Asked(kind, "", same.choice(MALFORMED), False, REFUSED)
    path = same.choice(PATHS if kind in ("plain", "shared", "long", "slow") else PATHS[:1])
    if kind in ("grammar", "several"):
        path = same.choice((GENERATE, COMPLETIONS, CHAT))
    stream = kind in ("slow", "stuck") or same.random() < 0.7
    body, samples = _body(served, kind, path, same, own)
    leaves = same.expovariate(1 / LEAVE_S) if same.random() < LEAVERS else None
    meant = SERVED | {504} if kind == "late" else SERVED
    raw = post(path, "localhost", body | ({"stream": True} if stream else {}), {})
    return Asked(kind, path, raw, stream, meant, leaves, same.random() < 0.5, samples)


def _body(served: Served, kind: str, path: str, same: Random, own: Random) -> tuple[dict[str, Any], int]:
    output = Lengths(4, max(8, served.context // 6), max(8, served.context // 24), 2).draw(same)
    fields: dict[str, Any] = {"temperature": same.choice((0, 0.8))}
    samples = 1
    match kind:
        case "grammar":
            output = max(output, 24)
            fields |= _grammar(path, same)
        case "several":
            samples = same.randint(2, 4)
            fields["n"] = samples
        case "logprobs":
            fields["logprobs"] = same.randint(1, 20)
        case "stuck":
            samples, output = 4, served.context // 4
            fields |= {"n": samples, "logprobs": 20, "ignore_eos": True}
        case "late":
            fields["timeout"] = same.choice((0.005, 0.05))
    fields["max_output_tokens" if path == RESPONSES else "max_tokens"] = output
    if path != GENERATE:
        fields["model"] = served.model
    return fields | _prompt(served, kind, path, same, own), samples


def _grammar(path: str, same: Random) -> dict[str, Any]:
    grammar = same.choice(GRAMMARS)
    return {"structured": grammar} if path == GENERATE else {"structured_outputs": _as_vllm(grammar)}


def _as_vllm(grammar: dict[str, Any]) -> dict[str, Any]:
    """vLLM's name of a schema is `json`; the others are ours."""
    return {"json" if name == "json_schema" else name: value for name, value in grammar.items()}


def _prompt(served: Served, kind: str, path: str, same: Random, own: Random) -> dict[str, Any]:
    """A prompt as token ids, or as words. A byte-level vocabulary may need six tokens for a word."""
    in_words = path not in (GENERATE, COMPLETIONS)
    room = served.context // 8 if in_words else served.context
    length = room * 3 // 4 if kind == "long" else Lengths(2, room // 3, max(2, room // 16), 2.5).draw(same)
    ids = [own.randrange(served.vocab_size) for _ in range(length)]
    if kind == "shared":
        beginning = Random(f"beginning {same.randrange(4)}")
        ids = [beginning.randrange(served.vocab_size) for _ in range(room // 4)] + ids
    if not in_words:
        return {"prompt": ids}
    text = as_text(tuple(ids))
    return {"input": text} if path == RESPONSES else {"messages": [{"role": "user", "content": text}]}


def described() -> dict[str, Any]:
    """The shares, for the record."""
    return {"kinds": KINDS, "leavers": LEAVERS, "malformed": len(MALFORMED), "grammars": json.dumps(GRAMMARS)}
