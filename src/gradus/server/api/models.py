"""/v1/models, for clients of OpenAI's and Anthropic's protocols at once; and the names that requests may use.

An entry has the fields of both, because a request does not show reliably which protocol its client speaks. Each name
of the model has an entry, and `root` is the model's own name.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gradus.server.api import openai
from gradus.server.api.fields import refuse
from gradus.server.exchange import Served
from gradus.server.failures import UnknownModel

MOST_LISTED = 1000  # Anthropic's greatest `limit`
MOST_IN_MESSAGE = 10  # names


def check_name(body: Any, served: Served) -> None:
    """Raise UnknownModel if a body names a model that is not served here. Without a name, it gets the one there is."""
    name = body.get("model") if isinstance(body, Mapping) else None
    if name is not None and name not in served.names and not served.config.takes_any_name:
        raise unknown(name, served.names)


def described(served: Served, name: str, created: int) -> dict[str, Any]:
    """Describe a model under one of its names. created: when this server began, in seconds.

    max_model_len, which routers and chat interfaces read, limits prompt and answer together. chat: whether it has a
    chat template; a model without one continues texts. These and the sampling are left out for a model that no request
    has loaded yet. Raises UnknownModel for a name that is not listed, Unavailable
    while the model loads.
    """
    if name not in served.names:
        raise unknown(name, served.names)
    described = {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "gradus",
        "parent": None,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "state": served.state,
    }
    return described if served.on_demand and served.info is None else described | _known(served)


def _known(served: Served) -> dict[str, Any]:
    """Describe what is only known of a model that was loaded. Raises Unavailable for one that was not."""
    context = served.front_end.limits.context_length
    assert served.info is not None  # it came with the front end
    sampling, sources = openai.in_force(served.info)
    return {
        "root": served.info.model,
        "max_model_len": context,
        "chat": served.front_end.chats,
        "default_sampling": sampling,
        "sampling_sources": sources,
    }


def listed(models: Iterable[Served], created: int, query: Mapping[str, str]) -> dict[str, Any]:
    """List the models, each under each of its names.

    query: Anthropic's `limit`, `after_id` and `before_id`, which cut the list. Raises RequestError, or Unavailable
    while the first model loads.
    """
    every = [described(served, name, created) for served in models for name in served.names]
    names = [one["id"] for one in every]
    page = every[_cut(query, "after_id", names, -1) + 1 : _cut(query, "before_id", names, len(every))]
    most = _limit(query.get("limit"))
    shown = page[-most:] if "before_id" in query else page[:most]
    return {
        "object": "list",
        "data": shown,
        "has_more": len(shown) < len(page),
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
    }


def _cut(query: Mapping[str, str], field: str, names: Sequence[str], without: int) -> int:
    name = query.get(field)
    if name is None:
        return without
    if name not in names:
        refuse(field, "the id of a model in the list", name)
    return names.index(name)


def _limit(text: str | None) -> int:
    if text is None:
        return MOST_LISTED
    limit = int(text) if text.isascii() and text.isdecimal() and len(text) <= 4 else 0
    if not 1 <= limit <= MOST_LISTED:
        refuse("limit", f"a whole number between 1 and {MOST_LISTED}", text)
    return limit


def unknown(name: Any, names: Sequence[str]) -> UnknownModel:
    """Describe a model that is not served here, and those that are."""
    shown = ", ".join(names[:MOST_IN_MESSAGE]) + (", …" if len(names) > MOST_IN_MESSAGE else "")
    return UnknownModel.of("model", f"one of {shown}", name)
