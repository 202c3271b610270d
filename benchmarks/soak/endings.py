"""What a whole answer ends with, protocol by protocol. A stream that was cut or ends with an error has a fault."""

import json
from typing import Any

DONE = ("/generate", "/v1/completions", "/v1/chat/completions")
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
ENDED = {"response.completed", "response.incomplete"}


def fault_of(path: str, stream: bool, body: bytes) -> str:
    """Say in one line what is wrong with a 200's body; "" if it is whole."""
    try:
        if not stream:
            return _object(path, json.loads(body))
        if not body.endswith(b"\n\n"):
            return f"the stream ends within an event: {body[-80:]!r}"
        events = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
        return _events(path, events)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return f"{type(error).__name__}: {error}: {body[-80:]!r}"


def _object(path: str, found: dict[str, Any]) -> str:
    if path == RESPONSES:
        return "" if found["status"] in ("completed", "incomplete") else f"status {found['status']}"
    if path == MESSAGES:
        return "" if found["stop_reason"] else "no stop_reason"
    choices = found.get("choices", [found])
    return "" if all(choice["finish_reason"] not in (None, "error") for choice in choices) else "a choice has no end"


def _events(path: str, events: list[str]) -> str:
    if path in DONE:
        if events.pop() != "[DONE]":
            return "no [DONE]"
        return _samples([json.loads(event) for event in events])
    found = [json.loads(event) for event in events]
    last = found[-1]["type"]
    if path == RESPONSES:
        order = [event["sequence_number"] for event in found]
        if order != list(range(len(order))):
            return "sequence numbers with a gap"
        return "" if last in ENDED else f"the last event is {last}"
    return "" if last == "message_stop" else f"the last event is {last}"


def _samples(frames: list[dict[str, Any]]) -> str:
    """Every sample that began has exactly one end, and nothing comes after it."""
    ended: dict[int, bool] = {}
    for frame in frames:
        if "error" in frame:
            return f"error: {json.dumps(frame['error'])[:200]}"
        for choice in frame.get("choices", [frame]):
            if ended.get(choice["index"]):
                return f"sample {choice['index']} goes on after its end"
            ended[choice["index"]] = choice.get("finish_reason") is not None
            if choice.get("finish_reason") == "error":
                return f"sample {choice['index']} failed"
    return "" if ended and all(ended.values()) else "a sample has no end"
