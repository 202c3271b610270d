"""A prompt's beginning as hashes of its blocks, and which of them a replica served recently.

Hash i covers blocks 0 to i, so one equal hash means an equal beginning. The blocks are characters of the request's
JSON, not tokens, since the front has no tokenizer. The fields of a prompt are hashed in the order in which a chat
template uses them. A replica publishes the prompts that it served, not the pages that its engine still holds: if the
engine's cache is small, some published prefixes are gone.

The hashes are keyed by a secret of the deployment, and depend on the API key and `cache_salt`. So a published hash
reveals nothing about a prompt, and no request is routed by what another key has sent.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence

BLOCK = 256  # characters, about 64 tokens of English
MOST_BLOCKS = 256  # of a prompt: later blocks do not affect the choice
MOST_HASHES = 8192  # that a replica publishes, of 8 bytes each

LARGEST_BODY = 1 << 20  # bytes, about 250,000 tokens of English
MOST_ITEMS = 1 << 15  # lists, objects and commas, in texts too: within both limits, parsing takes about 10 ms at most

PROMPT_FIELDS = ("model", "tools", "system", "instructions", "messages", "input", "prompt")
"""The fields that make a prompt, in any protocol, in the order of the prompt's text."""


def prompt_hashes(body: bytes, secret: bytes, salt: str = "") -> tuple[int, ...]:
    """Hash the beginning of the prompt in a JSON body.

    Empty for a short prompt, for anything but an object, and for a body that would hold up the front's other
    connections while it is parsed: load alone then decides where the request goes.

    secret: of the deployment, at most 64 bytes. salt: separates senders who must not learn of each other.
    """
    if len(body) > LARGEST_BODY or sum(map(body.count, (b"[", b"{", b","))) > MOST_ITEMS:
        return ()
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):  # the replica answers with the reason
        return ()
    if not isinstance(fields, dict):
        return ()
    salt = json.dumps([salt, fields.get("cache_salt")])
    texts = (f"{name}={json.dumps(fields[name], ensure_ascii=False)}" for name in PROMPT_FIELDS if name in fields)
    return block_hashes("\n".join(texts), secret, salt)


def block_hashes(text: str, secret: bytes, salt: str = "") -> tuple[int, ...]:
    """Hash every whole block of the text, each together with all blocks before it."""
    running = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), key=secret, digest_size=8)
    running.update(b"\0")
    hashes = []
    for end in range(BLOCK, min(len(text), BLOCK * MOST_BLOCKS) + 1, BLOCK):
        running.update(text[end - BLOCK : end].encode("utf-8", "surrogatepass"))
        hashes.append(int.from_bytes(running.digest(), "big"))
    return tuple(hashes)


class RecentPrefixes:
    """The hashes that were served most recently, at most `most` of them."""

    def __init__(self, most: int = MOST_HASHES) -> None:
        self._most = most
        self._hashes: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, hash_: int) -> bool:
        return hash_ in self._hashes

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, hashes: Iterable[int]) -> None:
        """Make a prompt the most recent one. Its last blocks are forgotten before its first."""
        for each in reversed(tuple(hashes)):
            self._hashes[each] = None
            self._hashes.move_to_end(each)
        while len(self._hashes) > self._most:
            self._hashes.popitem(last=False)

    def matched(self, hashes: Sequence[int]) -> int:
        """Count the blocks of the longest beginning that is known."""
        return next((index for index, each in enumerate(hashes) if each not in self._hashes), len(hashes))

    def published(self) -> list[int]:
        """List the hashes, the oldest first."""
        return list(self._hashes)
