"""/v1/models: the one model, in OpenAI's form."""

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradus.server.client import EngineClient


def listed(client: "EngineClient") -> dict[str, Any]:
    """List the model. Raises Unavailable while it loads."""
    return {"object": "list", "data": [described(client)]}


def described(client: "EngineClient") -> dict[str, Any]:
    """Describe the model. created: when this server began. Raises Unavailable while the model loads.

    max_model_len: most tokens of prompt and answer together. Routers and chat interfaces read it.
    """
    return {
        "id": client.model,
        "object": "model",
        "created": round(time.time() - (time.monotonic() - client.started)),
        "owned_by": "gradus",
        "root": client.model,
        "parent": None,
        "max_model_len": client.front_end.limits.context_length,
    }
