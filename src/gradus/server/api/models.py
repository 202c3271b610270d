"""/v1/models: the one model, in OpenAI's form."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradus.server.client import EngineClient


def described(client: "EngineClient", created: int) -> dict[str, Any]:
    """Describe the model. created: when this server began, in seconds. Raises Unavailable while the model loads.

    max_model_len, which routers and chat interfaces read, limits prompt and answer together.
    """
    return {
        "id": client.model,
        "object": "model",
        "created": created,
        "owned_by": "gradus",
        "root": client.model,
        "parent": None,
        "max_model_len": client.front_end.limits.context_length,
    }
