"""The items of an output, one after another, and the events that announce them.

    item         added ── part added ── delta… ── done ── part done ── item done
    reasoning           reasoning_part         reasoning_text
    message             content_part           output_text
    function_call       (no part)              function_call_arguments

One object writes an item's events and the item itself, so a stream and a whole answer cannot differ, and only opened
items are closed.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gradus.engine.logprobs import TokenLogprob
from gradus.server.api.responses.history import Names
from gradus.text.tools.events import Event, Reasoning, Text, ToolArguments, ToolEnd, ToolStart

Frame = dict[str, Any]
"""An event of the protocol, without its number."""

Show = Callable[[Iterable[TokenLogprob]], Any]
"""Writes log-probabilities as JSON."""


class Items:
    """The items of one response. names: of functions in namespaces. show: writes log-probabilities.

    output: the closed items.
    """

    def __init__(self, names: Names, show: Show) -> None:
        self.output: list[Frame] = []
        self._names, self._show = names, show
        self._open: _Open | None = None
        self._logprobs: list[TokenLogprob] = []  # of tokens whose text has not arrived

    def add(self, event: Event) -> Iterator[Frame]:
        """Write an event. Text continues a message, reasoning a reasoning item; a call is an item of its own."""
        match event:
            case Text(text):
                yield from self._begin("message")
                yield from self._more(text)
            case Reasoning(text):
                yield from self._begin("reasoning")
                yield from self._more(text)
            case ToolStart(_, identifier, name):
                yield from self.close("completed")
                yield from self._begin("function_call", call_id=identifier, **self._named(name))
            case ToolArguments(_, text):
                yield from self._more(text)
            case ToolEnd(_, complete):
                yield from self.close("completed" if complete else "incomplete")

    def heard(self, logprobs: Iterable[TokenLogprob]) -> None:
        """Keep the log-probabilities of new tokens for the text that comes next."""
        self._logprobs += logprobs

    def end(self, complete: bool) -> Iterator[Frame]:
        """Close the open item. A complete response has a message or a call, even if the model wrote nothing."""
        yield from self.close("completed" if complete else "incomplete")
        if complete and not any(item["type"] in ("message", "function_call") for item in self.output):
            yield from self._begin("message")
            yield from self.close("completed")

    def close(self, status: str) -> Iterator[Frame]:
        """Close the open item, if any."""
        if self._open is not None:
            yield from self._open.close(status)
            self.output.append(self._open.item)
            if self._open.kind == "function_call":
                self._logprobs = []  # the call's; text after it has its own
        self._open = None

    def _begin(self, kind: str, **fields: Any) -> Iterator[Frame]:
        """Open an item, unless one of its kind is open. A call always opens a new one."""
        if self._open is not None and self._open.kind == kind != "function_call":
            return
        yield from self.close("completed")
        if kind != "message":
            self._logprobs = []
        self._open = _KINDS[kind](len(self.output), fields, self._show)
        yield from self._open.begin()

    def _more(self, text: str) -> Iterator[Frame]:
        if self._open is not None:
            logprobs, self._logprobs = self._logprobs, []
            yield from self._open.more(text, logprobs)

    def _named(self, name: str) -> Frame:
        """Name a function as the client declared it: clients look it up by both of its names."""
        if name not in self._names:
            return {"name": name}
        namespace, inner = self._names[name]
        return {"name": inner, "namespace": namespace}


class _Open:
    """An unfinished item. index: its place in the output. show: writes log-probabilities."""

    kind: str
    prefix: str  # of its id

    def __init__(self, index: int, fields: Frame, show: Show) -> None:
        self._show = show
        identifier = f"{self.prefix}_{secrets.token_hex(12)}"
        self.item: Frame = {"type": self.kind, "id": identifier, **self._empty(), **fields}
        self._place = {"item_id": self.item["id"], "output_index": index}
        self._texts: list[str] = []

    def _empty(self) -> Frame:
        raise NotImplementedError

    def begin(self) -> Iterator[Frame]:
        yield self._whole("added", "in_progress")

    def more(self, text: str, logprobs: list[TokenLogprob]) -> Iterator[Frame]:
        raise NotImplementedError

    def close(self, status: str) -> Iterator[Frame]:
        self.item["status"] = status
        yield self._whole("done", status)

    def _whole(self, what: str, status: str) -> Frame:
        item = {**self.item, "status": status}
        return {"type": f"response.output_item.{what}", "output_index": self._place["output_index"], "item": item}

    def _event(self, kind: str, **fields: Any) -> Frame:
        return {"type": f"response.{kind}", **self._place, **fields}


class _InParts(_Open):
    """An item with its text in one part."""

    part_event: str
    text_event: str

    def begin(self) -> Iterator[Frame]:
        yield from super().begin()
        yield self._event(f"{self.part_event}.added", content_index=0, part=self._part("", []))

    def close(self, status: str) -> Iterator[Frame]:
        text, logprobs = "".join(self._texts), self._all_logprobs()
        yield self._event(f"{self.text_event}.done", content_index=0, text=text, **self._shown(logprobs))
        part = self._part(text, logprobs)
        yield self._event(f"{self.part_event}.done", content_index=0, part=part)
        self.item["content"] = [part]
        yield from super().close(status)

    def more(self, text: str, logprobs: list[TokenLogprob]) -> Iterator[Frame]:
        self._texts.append(text)
        yield self._event(f"{self.text_event}.delta", content_index=0, delta=text, **self._shown(logprobs))

    def _part(self, text: str, logprobs: list[TokenLogprob]) -> Frame:
        raise NotImplementedError

    def _shown(self, logprobs: list[TokenLogprob]) -> Frame:
        return {}

    def _all_logprobs(self) -> list[TokenLogprob]:
        return []


class _Message(_InParts):
    kind, prefix = "message", "msg"
    part_event, text_event = "content_part", "output_text"

    def __init__(self, index: int, fields: Frame, show: Show) -> None:
        super().__init__(index, fields, show)
        self._logprobs: list[TokenLogprob] = []

    def _empty(self) -> Frame:
        return {"role": "assistant", "content": []}

    def more(self, text: str, logprobs: list[TokenLogprob]) -> Iterator[Frame]:
        self._logprobs += logprobs
        yield from super().more(text, logprobs)

    def _part(self, text: str, logprobs: list[TokenLogprob]) -> Frame:
        return {"type": "output_text", "text": text, "annotations": [], **self._shown(logprobs)}

    def _shown(self, logprobs: list[TokenLogprob]) -> Frame:
        return {"logprobs": self._show(logprobs) if logprobs else []}

    def _all_logprobs(self) -> list[TokenLogprob]:
        return self._logprobs


class _Reasoning(_InParts):
    kind, prefix = "reasoning", "rs"
    part_event, text_event = "reasoning_part", "reasoning_text"

    def _empty(self) -> Frame:
        return {"summary": [], "content": [], "encrypted_content": None}

    def _part(self, text: str, logprobs: list[TokenLogprob]) -> Frame:
        return {"type": "reasoning_text", "text": text}


class _Call(_Open):
    kind, prefix = "function_call", "fc"

    def _empty(self) -> Frame:
        return {"arguments": ""}

    def more(self, text: str, logprobs: list[TokenLogprob]) -> Iterator[Frame]:
        self._texts.append(text)
        yield self._event("function_call_arguments.delta", delta=text)

    def close(self, status: str) -> Iterator[Frame]:
        self.item["arguments"] = arguments = "".join(self._texts)
        yield self._event("function_call_arguments.done", name=self.item["name"], arguments=arguments)
        yield from super().close(status)


_KINDS: dict[str, type[_Open]] = {each.kind: each for each in (_Message, _Reasoning, _Call)}
