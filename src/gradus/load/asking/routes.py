"""How a request is written, and which events of its stream hold tokens: ours, and OpenAI's two of any server.

A stream is read without parsing JSON, so that clients cost little: a pattern finds what an event with tokens has and
others lack. Quotes inside a JSON text are escaped, so no generated text can look like a field's name.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradus.errors import ConfigError
from gradus.load.jobs.job import Job
from gradus.load.jobs.mix import as_text

GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True)
class Route:
    """A protocol. token: matches once in each event with tokens. takes_ids: whether a prompt may be token ids."""

    token: "re.Pattern[bytes]"
    takes_ids: bool
    needs_model: bool


ROUTES = {
    GENERATE: Route(re.compile(rb'"token_ids": ?\[\d'), takes_ids=True, needs_model=False),
    # an event whose text is empty counts, as its token may be a part of a character
    COMPLETIONS: Route(re.compile(rb'"choices": ?\[\{'), takes_ids=True, needs_model=True),
    # the first event only says who speaks, and the last only why the answer ended
    CHAT: Route(
        re.compile(rb'"(?:content|reasoning_content|reasoning|arguments)": ?"(?!")'), takes_ids=False, needs_model=True
    ),
}

BACKENDS = {
    "gradus": GENERATE,
    "vllm": COMPLETIONS,
    "openai": COMPLETIONS,
    "openai-chat": CHAT,
    "llama.cpp": COMPLETIONS,
}
"""Names of servers and protocols, as vLLM's `--backend` has them → routes."""


def route_at(path: str) -> Route:
    """Find the route of a path, which may have a beginning of its own (/proxy/v1/completions). Raises ConfigError."""
    for known, route in ROUTES.items():
        if path.endswith(known) and path.startswith("/"):
            return route
    raise ConfigError(f"--endpoint must be {', '.join(ROUTES)}, or end so, got {path[:100]}")


@dataclass(frozen=True)
class Writing:
    """Everything that a load's requests have in common. exact: the end-of-sequence token is ignored."""

    path: str
    model: str = ""
    temperature: float = 0.0
    exact: bool = True
    text: bool = False
    host: str = "127.0.0.1"
    headers: Mapping[str, str] | None = None

    @property
    def route(self) -> Route:
        return route_at(self.path)

    def request(self, job: Job) -> bytes:
        """Write the whole HTTP request, whose answer is a stream that ends with its usage."""
        return post(self.path, self.host, self.body(job), self.headers or {})

    def body(self, job: Job) -> dict[str, Any]:
        body: dict[str, Any] = {"max_tokens": job.output, "temperature": self.temperature, "stream": True}
        if self.route.needs_model:
            body |= {"model": self.model, "stream_options": {"include_usage": True}}
        if self.exact:
            body |= {"ignore_eos": True}
        if self.path.endswith(CHAT):
            return body | {"messages": [{"role": "user", "content": as_text(job.prompt)}]}
        return body | {"prompt": as_text(job.prompt) if self.text or isinstance(job.prompt, str) else list(job.prompt)}


def post(path: str, host: str, body: Any, headers: Mapping[str, str]) -> bytes:
    """Write a request with a JSON body."""
    content = json.dumps(body, separators=(",", ":")).encode()
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()] + [f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content
