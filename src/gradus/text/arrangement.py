"""The order of messages, as a model's chat template takes them.

A few short conversations, rendered once per model, show which shapes its template accepts. Those that it refuses, or
shows only in part, are brought into the nearest shape that it accepts.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradus.errors import RequestError
from gradus.text.conversation import BETWEEN, Message


@dataclass(frozen=True, slots=True)
class Takes:
    """The conversations that a template renders completely, without refusing them.

    system: a system message at the beginning. late_system: another one later, in its place. neighbors: consecutive
    messages of one role. user_after_results: a user's turn right after the results of calls. parallel_calls: several
    calls in one message. calls: calls at all; otherwise their message shows its content alone. late_results: a turn
    between calls and their results. stray_results: results of no call. unanswered_calls: calls without results.
    no_user_first: a conversation that begins with another turn than the user's, or has none.
    """

    system: bool = True
    late_system: bool = True
    neighbors: bool = True
    user_after_results: bool = True
    parallel_calls: bool = True
    calls: bool = True
    late_results: bool = True
    stray_results: bool = True
    unanswered_calls: bool = True
    no_user_first: bool = True


def takes(render: Callable[[list[Message]], str]) -> Takes:
    """Find out what a template accepts. render: renders a conversation, or raises RequestError.

    A shape that is refused counts as accepted if the one that replaces it is refused, too.
    """

    def shown(*turns: str) -> bool:
        messages, words = _example(turns)
        try:
            text = render(messages)
        except RequestError:
            return False
        places = [text.find(word) for word in words]
        return -1 not in places and places == sorted(places)

    system = shown("system", "user")
    called = shown("user", "call", "tool", "assistant")  # without, no shape of calls is any better
    first = [["assistant"], ["assistant", "user"], *([["system"]] if system else [])]
    return Takes(
        system=system,
        late_system=shown("user", "assistant", "system", "user"),
        neighbors=shown("user", "user", "assistant", "assistant", "user"),
        user_after_results=shown("user", "call", "tool", "user")
        or not shown("user", "call", "tool", "assistant", "user"),
        parallel_calls=shown("user", "calls", "tool", "tool", "assistant")
        or not shown("user", "call", "tool", "call", "tool", "assistant"),
        calls=called or not shown("user", "assistant", "tool", "assistant"),
        late_results=not called
        or (shown("user", "call", "user", "tool", "assistant") and shown("user", "call", "assistant", "tool", "user")),
        stray_results=not called or (shown("user", "assistant", "tool", "user") and shown("user", "tool", "user")),
        unanswered_calls=not called or shown("user", "call", "user"),
        no_user_first=all(shown(*turns) for turns in first) or not shown("nothing", "assistant", "user"),
    )


def _example(turns: Sequence[str]) -> tuple[list[Message], list[str]]:
    """Make a conversation of these turns, and list its words: a complete rendering shows them in this order."""
    messages: list[Message] = []
    words: list[str] = []
    unanswered = ["stray0000"]  # Mistral's templates insist on ids of nine characters
    for place, turn in enumerate(turns):
        word = f"{turn}{place}"
        match turn:
            case "call" | "calls":
                names = [word] if turn == "call" else [f"{word}a", f"{word}b"]
                unanswered = [f"{place}{name[-1]}".rjust(9, "0") for name in names]
                functions = [{"name": name, "arguments": {}} for name in names]
                calls = [
                    {"id": identifier, "type": "function", "function": function}
                    for identifier, function in zip(unanswered, functions, strict=True)
                ]
                messages.append({"role": "assistant", "content": "", "tool_calls": calls})
                words += names
            case "tool":
                messages.append({"role": turn, "content": word, "tool_call_id": unanswered.pop(0), "name": "f"})
                words.append(word)
            case "nothing":
                messages.append({"role": "user", "content": ""})
            case _:
                messages.append({"role": turn, "content": word})
                words.append(word)
    return messages, words


def arranged(messages: Sequence[Message], takes: Takes) -> list[Message]:
    """Arrange a conversation in a form that the template accepts.

    System messages at the beginning become one. Later ones, and the first one if the template has no place for it, join
    the next user's turn; after the last turn, they become a turn of their own. Results move behind their calls, each
    call in a message of its own if need be; results of no call become words of the user, and calls without results get
    empty ones. An empty user's turn is inserted at the beginning, and an empty assistant's turn between results and the
    user, if the template needs them.
    """
    found = _systems_placed(messages, takes)
    if not (takes.late_results and takes.parallel_calls):
        found = _results_placed(found, one_by_one=not takes.parallel_calls)
    if not takes.unanswered_calls:
        found = _calls_answered(found)
    if not takes.stray_results:
        found = _strays_said(found)
    if not takes.no_user_first:
        found = _user_first(found)
    if not takes.user_after_results:
        found = _results_answered(found)
    return found if takes.neighbors else _without_neighbors(found)


def _systems_placed(messages: Sequence[Message], takes: Takes) -> list[Message]:
    count = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    first = [message["content"] for message in messages[:count]]
    found: list[Message] = []
    waiting: list[str] = []
    if first and takes.system:
        found.append({"role": "system", "content": BETWEEN.join(first)})
    else:
        waiting = first
    for message in messages[count:]:
        if message["role"] == "system" and not takes.late_system:
            waiting.append(message["content"])
        elif message["role"] == "user" and waiting:
            found.append(message | {"content": BETWEEN.join([*waiting, message["content"]])})
            waiting = []
        else:
            found.append(message)
    return found + ([{"role": "user", "content": BETWEEN.join(waiting)}] if waiting else [])


def _results_placed(messages: Sequence[Message], *, one_by_one: bool) -> list[Message]:
    """Move results behind the message of their calls, in the calls' order. one_by_one: a message has one call at most.

    A result belongs to the last call before it with its id; one without a call stays where it is.
    """
    callers: dict[str, int] = {}  # index of the last message with a call of this id
    results: defaultdict[tuple[int, str], list[Message]] = defaultdict(list)
    others: list[tuple[int, Message]] = []
    for index, message in enumerate(messages):
        callers |= {call["id"]: index for call in message.get("tool_calls", ())}
        caller = callers.get(message["tool_call_id"]) if message["role"] == "tool" else None
        if caller is None:
            others.append((index, message))
        else:
            results[caller, message["tool_call_id"]].append(message)
    found: list[Message] = []
    for index, message in others:
        parts = _one_by_one(message) if one_by_one else [message]
        for part in parts:
            identifiers = dict.fromkeys(call["id"] for call in part.get("tool_calls", ()))
            found += [part, *(result for each in identifiers for result in results.pop((index, each), ()))]
    return found


def _one_by_one(message: Message) -> list[Message]:
    """Divide a message of several calls into messages of one. The first has the text and the reasoning."""
    calls = message.get("tool_calls", ())
    if len(calls) < 2:
        return [message]
    others: list[Message] = [{"role": "assistant", "content": "", "tool_calls": [call]} for call in calls[1:]]
    return [message | {"tool_calls": [calls[0]]}, *others]


def _calls_answered(messages: Sequence[Message]) -> list[Message]:
    """Insert empty results of calls that have none, unless they end the conversation."""
    answered = {message.get("tool_call_id") for message in messages}
    found: list[Message] = []
    for message in messages:
        found.append(message)
        missing = [call["id"] for call in message.get("tool_calls", ()) if call["id"] not in answered]
        if message is not messages[-1]:
            found += [{"role": "tool", "content": "", "tool_call_id": each} for each in missing]
    return found


def _strays_said(messages: Sequence[Message]) -> list[Message]:
    """Make results that follow no call words of the user."""
    found: list[Message] = []
    called: set[str] = set()  # ids of the calls of the last message that has any
    for message in messages:
        called = {call["id"] for call in message.get("tool_calls", ())} or called
        if message["role"] == "tool" and message["tool_call_id"] not in called:
            message = {
                "role": "user",
                "content": f"Result of {message.get('name', 'a function')}:\n{message['content']}",
            }
        found.append(message)
    return found


def _user_first(messages: Sequence[Message]) -> list[Message]:
    """Insert an empty turn of the user unless the first turn is the user's."""
    start = 1 if messages[0]["role"] == "system" else 0
    if any(message["role"] == "user" for message in messages[start : start + 1]):
        return list(messages)
    return [*messages[:start], {"role": "user", "content": ""}, *messages[start:]]


def _results_answered(messages: Sequence[Message]) -> list[Message]:
    found: list[Message] = []
    for message in messages:
        if message["role"] == "user" and found and found[-1]["role"] == "tool":
            found.append({"role": "assistant", "content": ""})
        found.append(message)
    return found


def _without_neighbors(messages: Sequence[Message]) -> list[Message]:
    """Join consecutive messages of one role. Results of calls stay separate: each has its id."""
    found: list[Message] = []
    for message in messages:
        if found and found[-1]["role"] == message["role"] in ("user", "assistant"):
            found[-1] = _joined(found[-1], message)
        else:
            found.append(message)
    return found


def _joined(first: Message, second: Message) -> Message:
    """Join two messages of one role: concatenate their texts and their calls."""
    joined = first | second
    for name in ("content", "reasoning_content"):
        if texts := [message[name] for message in (first, second) if message.get(name)]:
            joined[name] = BETWEEN.join(texts)
    if calls := [call for message in (first, second) for call in message.get("tool_calls", ())]:
        joined["tool_calls"] = calls
    return joined
