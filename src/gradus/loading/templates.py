"""Choose among a checkpoint's chat templates: `default` for conversations, `tool_use` when tools are given.

Most checkpoints have one template. Others name several, and `transformers` then shows tools with the one called
`tool_use`. Templates with other names are for purposes of their own, such as documents: no request selects them.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gradus.errors import CheckpointError
from gradus.loading.chat import ChatTemplate
from gradus.loading.quoting import quoted

log = logging.getLogger(__name__)

USED = DEFAULT, TOOL_USE = "default", "tool_use"


class Source(NamedTuple):
    """A template as its file has it. where: for messages. text: untrusted, perhaps no text at all."""

    where: str
    text: object


@dataclass(frozen=True, slots=True)
class ChatTemplates:
    """The templates that requests use.

    default: for conversations without tools; None if only conversations with tools can be rendered, or none at all.
    tool_use: for conversations with tools; None if the default one renders those too.
    """

    default: ChatTemplate | None = None
    tool_use: ChatTemplate | None = None

    def choose(self, has_tools: bool) -> ChatTemplate | None:
        """Return the template of a conversation with or without tools; None if there is none."""
        return self.tool_use if has_tools and self.tool_use is not None else self.default

    @property
    def used(self) -> tuple[ChatTemplate, ...]:
        return tuple(each for each in (self.default, self.tool_use) if each is not None)

    @property
    def variables(self) -> frozenset[str]:
        """The names that any of them takes from outside."""
        return frozenset().union(*(each.variables for each in self.used))


def read_templates(named: Mapping[str, Source], label: str) -> ChatTemplates:
    """Parse the templates that requests use, and log the names of the others.

    label: the checkpoint, for messages. Raises CheckpointError for a template that is not a text or does not parse.
    """
    found = {name: _template(*named[name]) for name in USED if name in named and named[name].text not in (None, "")}
    unused = sorted(named.keys() - set(USED))
    if unused:
        log.warning("%s: no request uses its chat templates %s", label, quoted(", ".join(unused)))
    if named and DEFAULT not in found and (found or unused):
        cannot = "without tools cannot" if found else "cannot"
        log.warning("%s: has no chat template named %r, so conversations %s be rendered", label, DEFAULT, cannot)
    return ChatTemplates(found.get(DEFAULT), found.get(TOOL_USE))


def _template(where: str, text: object) -> ChatTemplate:
    if not isinstance(text, str):
        raise CheckpointError(f"{where} must be a text, or a list of named ones, got {quoted(text)}")
    return ChatTemplate(text, where)
