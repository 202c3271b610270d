"""A runner written from docs/design/remote.md alone: it shares no line with Gradus. Run as a program, or by a test.

    python minimal.py SOCKET '{"page_size": 4, …}'      the sizes of its hello

Its model has no weights: keys and values are the tokens themselves, and the next token is a hash of all that a query
sees through the block tables, and of the seed. It has no drafts, log-probabilities and grammars, which its hello says.
"""

import hashlib
import json
import os
import socket
import struct
import sys

import msgspec  # any library of MessagePack

read, write = msgspec.msgpack.decode, msgspec.msgpack.encode
GOLDEN = 0x9E3779B97F4A7C15


class Wrong(Exception):
    """The engine has broken the protocol."""


def need(true: bool, line: str) -> None:
    if not true:
        raise Wrong(line)


def integers(packed: bytes, size: int) -> list[int]:
    need(len(packed) % size == 0, "a column is cut off")
    return list(struct.unpack(f"<{len(packed) // size}{'i' if size == 4 else 'q'}", packed))


def frame(kind: bytes, payload: bytes) -> bytes:
    return struct.pack("<Ic", len(payload), kind) + payload


def receive(end: socket.socket, most: int) -> tuple[bytes, bytes]:
    length, kind = struct.unpack("<Ic", exactly(end, 5))
    need(length <= most, f"a payload of {length} bytes")
    return kind, exactly(end, length)


def exactly(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = end.recv(min(size - len(data), 1 << 20))
        if not more:
            raise ConnectionError("the engine has gone")
        data += more
    return data


class Slot:
    """A running sequence. length: its tokens, the newest included; 0 until one was drawn."""

    def __init__(self, seed: int, known: list[int], groups: int) -> None:
        self.seed, self.known = seed, known
        self.tables: list[list[int]] = [[] for _ in range(groups)]
        self.length = self.newest = 0


class Runner:
    def __init__(self, hello: dict) -> None:
        self.hello, self.windows = hello, hello.get("windows", [None])
        self.page_size = hello["page_size"]
        self.slots: dict[int, Slot] = {}
        self.memory: dict[tuple[int, int], int] = {}  # (page, place) → token

    def run(self, payload: bytes) -> bytes:
        need(payload[:6] == b"gplan7", "this is no plan")
        decodes, spans, admissions, wiped = read(payload[6:])
        for each in admissions:
            self.admit(*each)
        for page in wiped:
            need(1 <= page <= self.hello["pages"], f"page {page} is wiped")
            self.memory = {place: token for place, token in self.memory.items() if place[0] != page}
        for slot, change in decodes["pages"]:
            self.update(slot, change)
        columns = [integers(decodes[name], 8) for name in ("slots", "starts", "limits")]
        need(len({*map(len, columns)}) == 1, "columns differ in length")
        used = columns[0] + [span[0] for span in spans]
        need(len(used) == len(set(used)), "a slot is there twice")
        tokens = [self.decode(*row) for row in zip(*columns, strict=True)]
        for span in spans:
            tokens += self.span(*span)
        rows = len(columns[0]) + sum(span[2] for span in spans)
        need(rows <= (self.hello.get("token_budget") or rows), "more tokens than the budget")
        sampled = {"tokens": struct.pack(f"<{len(tokens)}q", *tokens), "counts": [span[4] for span in spans]}
        return write([rows, sampled])

    def admit(self, slot: int, index: int, request: dict, generated: bytes) -> None:
        need(0 <= slot < self.hello["max_sequences"], f"slot {slot} does not exist")
        prompt = integers(request["packed"], 4)
        need(len(prompt) > 0, "an empty prompt")
        seed = (request["seed"] + index * GOLDEN) % 2**64
        self.slots[slot] = Slot(seed, prompt + integers(generated, 4), len(self.windows))

    def slot(self, number: int) -> Slot:
        need(number in self.slots, f"slot {number} has no owner")
        return self.slots[number]

    def update(self, number: int, change: list) -> None:
        (kept, groups), slot = change, self.slot(number)
        need(len(groups) == len(self.windows) and len({*map(len, groups)}) == 1, "groups differ")
        need(0 <= kept <= len(slot.tables[0]), "more pages are kept than there are")
        need(all(0 <= page <= self.hello["pages"] for pages in groups for page in pages), "a page does not exist")
        slot.tables = [table[:kept] + pages for table, pages in zip(slot.tables, groups, strict=True)]

    def span(self, number: int, start: int, count: int, tokens: bytes | None, logits: int, change, scores) -> list[int]:
        if change is not None:
            self.update(number, change)
        slot = self.slot(number)
        run = slot.known[start : start + count] if tokens is None else integers(tokens, 4)
        need(len(run) == count >= 1 and start >= 0 and logits in (0, 1) and scores is None, "a wrong span")
        need(start + count <= len(slot.tables[0]) * self.page_size, "a position without a page")
        for position, token in enumerate(run, start):
            self.store(slot, position, token)
        return [self.draw(slot, start + count)] if logits else []

    def decode(self, number: int, start: int, limit: int) -> int:
        slot = self.slot(number)
        need(slot.length > 0, "it decodes before its prompt has run")
        if slot.length > min(limit, len(slot.tables[0]) * self.page_size):
            return -3
        need(slot.length - 1 >= start, "it is shorter than the plan takes it for")
        self.store(slot, slot.length - 1, slot.newest)
        return self.draw(slot, slot.length)

    def store(self, slot: Slot, position: int, token: int) -> None:
        need(0 <= token < self.hello["vocab_size"], f"token {token} does not exist")
        for table in slot.tables:
            self.memory[table[position // self.page_size], position % self.page_size] = token

    def draw(self, slot: Slot, length: int) -> int:
        """The model and the sampler: a token that depends on all that the layers of each group see."""
        seen = [self.read(slot, group, length) for group in range(len(self.windows))]
        longest = max(seen, key=len)
        need(all(longest[len(longest) - len(each) :] == each for each in seen), "groups have stored different tokens")
        parts = repr((slot.seed, *longest)).encode()
        token = int.from_bytes(hashlib.blake2b(parts, digest_size=4).digest(), "big") % self.hello["vocab_size"]
        slot.newest, slot.length = token, length + 1
        return token

    def read(self, slot: Slot, group: int, length: int) -> list[int]:
        window, table = self.windows[group], slot.tables[group]
        first = 0 if window is None else max(0, length - window)
        return [self.memory[table[p // self.page_size], p % self.page_size] for p in range(first, length)]


def serve(end: socket.socket, hello: dict) -> None:
    runner = Runner(hello)  # a new one: nothing of the engine before remains
    try:
        end.sendall(frame(b"H", write(hello)))
        kind, payload = receive(end, 1 << 16)
        need(kind == b"B" and read(payload).get("protocol") == 1, "another protocol")
        while True:
            kind, payload = receive(end, 64 << 20)
            need(kind == b"P", "a plan was expected")
            end.sendall(frame(b"R", runner.run(payload)))
    except OSError:
        return  # it has gone
    except Exception as error:  # in particular Wrong, and whatever MessagePack of another shape leads to
        end.sendall(frame(b"F", f"{type(error).__name__}: {error}".replace("\n", " ")[:1000].encode()))


def main(path: str, sizes: dict) -> None:
    hello = {"protocol": 1, "plans": "gplan7", **sizes}
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.umask(0o177)
    listening.bind(path)
    listening.listen()
    print("ready", flush=True)
    while True:
        end, _ = listening.accept()
        with end:
            serve(end, hello)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
