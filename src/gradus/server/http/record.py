"""One HTTP request's id, sender and outcome, for the log and the metrics. Never its text.

Ids are made here. A client's own `X-Request-Id` names nothing inside the server (in other engines it became a cache key
and cancelled strangers' requests): it is a label in the log, if it is short and plain.
"""

import json
import logging
import re
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradus.server.api.errors import Problem
from gradus.server.http.keys import PREFIX, Keys
from gradus.server.http.quotas import Account
from gradus.server.logs import printable
from gradus.server.measures import Tally
from gradus.server.metrics.meter import Meter

if TYPE_CHECKING:
    from gradus.server.traces.spans import RequestTrace

log = logging.getLogger("gradus.server.requests")

REQUEST_ID = "x-request-id"
LABEL = re.compile(r"[A-Za-z0-9._:-]{1,64}")
UNMATCHED = "(no route)"  # instead of a path that a client made up
PROBES = frozenset({"/health", "/health/live", "/health/ready", "/ping", "/metrics"})
"""Routes that something asks every few seconds: their lines would hide all others, and are written for debugging."""
LONGEST = {"path": 100, "param": 100, "error": 200}  # characters in a line
MOST_MASKED, LONGEST_KEY = 1000, 200
WORD = re.compile(r"[\w+/=.~-]+", re.ASCII)
NUMBER = re.compile(r"[-+]?[0-9][0-9.e+-]*|True|False|None")


@dataclass(slots=True)
class Record:
    """One HTTP request.

    label: the client's own id; "" without one that can be logged. key: the API key's name; "" without one.
    account: the key's, if there is one. salt: keeps the key's cached prefixes apart; None without keys.
    best_priority: the lowest priority that the key's requests may have; None without keys.
    tally: counts its tokens; None if it generates nothing. started: seconds of `time.monotonic`.
    path: the client's own. problem: why it was refused, or failed before its answer began. trace: its span, if requests
    are traced. meter: of the model that it is for; None if it is for none.
    """

    id: str
    method: str
    label: str = ""
    key: str = ""
    account: Account | None = None
    salt: bytes | None = None
    best_priority: int | None = None
    route: str = UNMATCHED
    status: int = 0
    tally: Tally | None = None
    started: float = field(default_factory=time.monotonic)
    path: str = ""
    problem: Problem | None = None
    trace: "RequestTrace | None" = None
    meter: Meter | None = None

    def follow(self, tally: Tally) -> None:
        """Count the request's tokens, for the log and for its key."""
        self.tally = tally
        if self.account is not None:
            self.account.open(tally)

    def fields(self, meter: Meter) -> dict[str, Any]:
        """Collect the fields of its log line, leaving out those without a value."""
        found: dict[str, Any] = {
            "id": self.id,
            "client_id": self.label or None,
            "trace_id": self.trace and self.trace.trace_id,
            "method": self.method,
            "route": self.route,
            "status": self.status,
            "key": self.key or None,
            "seconds": round(time.monotonic() - self.started, 6),
        }
        if tally := self.tally:
            found |= {
                "samples": tally.samples,
                "finish_reasons": dict(tally.finished),
                "prompt_tokens": tally.prompt_tokens,
                "cached_tokens": tally.cached_tokens,
                "completion_tokens": tally.generated,
                "queued_s": tally.queued_s and round(tally.queued_s, 6),
                "ttft_s": tally.ttft_s and round(tally.ttft_s, 6),
                "device_s": round(tally.device_s, 6),
                "cost": meter.price_per_hour and round(meter.cost_of(tally.device_s), 9),
            }
        return {name: value for name, value in found.items() if value is not None}

    def refusal(self, keys: Keys) -> dict[str, Any]:
        """Say what the client did wrong, and where, if it did. A key that it put there is left out."""
        if not 400 <= self.status < 500:
            return {}
        found = {"path": self.path} if self.route == UNMATCHED else {}
        if self.problem is not None:
            found |= {"param": self.problem.param or "", "error": reason_of(self.problem)}
        return {name: printable(masked(text, keys), LONGEST[name]) for name, text in found.items() if text}


def masked(text: str, keys: Keys) -> str:
    """Leave out API keys: a client may send one in the wrong place. The environment's own may hold a slash.

    Looking a word up takes time, so only the first MOST_MASKED characters are kept, less a word that this may cut.
    """
    if len(text) > MOST_MASKED:
        text = text[:MOST_MASKED]
        last = re.split(r"[\s/]", text)[-1]
        text = text if len(last) > LONGEST_KEY else text[: len(text) - len(last)]
    words = {word.strip("/.") for word in WORD.findall(text)}
    for word in sorted(words.union(*(word.split("/") for word in words)), key=len, reverse=True):
        if word.startswith(PREFIX) or (word and keys.find(word)):
            text = text.replace(word, "…")
    return text


def reason_of(problem: Problem) -> str:
    """Return the reason of a refusal, without the value that came, which may be a part of a prompt: a number stays."""
    message, got = problem.message, str(problem.got)
    if not NUMBER.fullmatch(got):
        message = message.replace(f", got {got}", ", got …")
    return message


def record_of(scope: Scope) -> Record:
    """Return the record of the request being answered."""
    found: Record = scope["gradus.record"]
    return found


class Records:
    """Gives each request a record and its answer an id, and logs one line when the answer has ended."""

    def __init__(self, app: ASGIApp, meter: Meter, keys: Keys, *, lines: bool) -> None:
        self.app = app
        self.meter = meter
        self.keys = keys
        self.level = logging.INFO if lines else logging.DEBUG

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record = Record(f"req-{secrets.token_hex(12)}", scope["method"][:16], _label(scope), path=scope["path"])
        scope["gradus.record"] = record

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID.encode(), record.id.encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception:
            record.status = 500
            raise
        finally:
            self._end(record, scope)

    def _end(self, record: Record, scope: Scope) -> None:
        record.route = getattr(scope.get("route"), "path", UNMATCHED)
        (record.meter or self.meter).by_key.add(record.key, record.route, record.status, record.tally)
        if record.route not in PROBES:
            route = "none" if record.route == UNMATCHED else record.route
            self.meter.answered(route, record.method, record.status, time.monotonic() - record.started)
        asked = record.method in ("GET", "HEAD")
        level = logging.DEBUG if record.route in PROBES else self.level
        if record.status >= 500 and not (asked and record.status == 503):  # a question's normal answer while loading
            level = logging.WARNING
        if log.isEnabledFor(level):
            fields = record.fields(self.meter) | record.refusal(self.keys)
            log.log(
                level,
                "%s",
                " ".join(f"{name}={_shown(name, value)}" for name, value in fields.items()),
                extra=fields_of(fields),
            )


def fields_of(fields: dict[str, Any]) -> dict[str, Any]:
    """Attach fields to a line of the log, for its JSON form."""
    return {"fields": fields}


def _shown(name: str, value: Any) -> str:
    if name in ("path", "param", "error"):
        return json.dumps(value, ensure_ascii=False)
    return ",".join(f"{key}:{count}" for key, count in value.items()) if isinstance(value, dict) else str(value)


def _label(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == REQUEST_ID.encode():
            text = value.decode("latin-1")
            return text if LABEL.fullmatch(text) else ""
    return ""
