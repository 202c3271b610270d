"""Structured output: a request lists the answers that it accepts, and a grammar says which tokens may come next.

Compiling one tries every token of the vocabulary in every state, so grammars are kept: those that were used last. The
"model" wants to say what the request's field `wish` holds. Where the grammar forbids that, it takes the first token
that is allowed: those of the first choice come first, since clients list their favorite at the top.

One client sent the same form all day. Every answer began as late as the first.
"""

import json
from collections import OrderedDict
from dataclasses import dataclass
from itertools import product
from time import perf_counter

LETTERS = "abcdefghijklmnopqrstuvwxyz "
VOCABULARY = [*LETTERS, *map("".join, product(LETTERS, repeat=2))]
COLORS = ["light green", "dark green", "light blue", "dark blue", "orange", "yellow", "violet", "red"]


@dataclass(eq=False)  # a key of a dict needs a hash
class Schema:
    """The answers that a request accepts: `prefix`, followed by one of `choices`."""

    choices: list[str]
    prefix: str = ""


class Grammar:
    """allowed: state → the tokens that may follow. A state is the answer so far."""

    def __init__(self, schema: Schema, vocabulary: list[str]) -> None:
        self.answers = [schema.prefix + choice for choice in schema.choices]
        states = {answer[:end] for answer in self.answers for end in range(len(answer))}
        self.allowed = {state: self.mask(state, vocabulary) for state in states}

    def mask(self, state: str, vocabulary: list[str]) -> list[str]:
        rests = [answer[len(state) :] for answer in self.answers if answer.startswith(state)]
        fit = [token for token in vocabulary if any(rest.startswith(token) for rest in rests)]
        return sorted(fit, key=lambda token: [rest.startswith(token) for rest in rests].index(True))


class Engine:
    """grammars: the `kept` grammars that were used last, the newest at the end."""

    def __init__(self, vocabulary: list[str] = VOCABULARY, kept: int = 32) -> None:
        self.vocabulary = vocabulary
        self.kept = kept
        self.grammars: OrderedDict[Schema, Grammar] = OrderedDict()

    def answer(self, body: str) -> str:
        """Answer the body of a request: JSON with the fields choices, prefix and wish."""
        request = json.loads(body)
        grammar = self.grammar(Schema(request["choices"], request.get("prefix", "")))
        said = ""
        while said not in grammar.answers:
            allowed = grammar.allowed[said]
            said += next((token for token in allowed if request["wish"].startswith(said + token)), allowed[0])
        return said

    def grammar(self, schema: Schema) -> Grammar:
        """Take the schema's grammar from those kept, or compile it and drop the one that was not used for longest."""
        if schema not in self.grammars:
            self.grammars[schema] = Grammar(schema, self.vocabulary)
            if len(self.grammars) > self.kept:
                self.grammars.popitem(last=False)
        self.grammars.move_to_end(schema)
        return self.grammars[schema]


def show() -> None:
    engine = Engine()
    body = json.dumps({"choices": COLORS, "prefix": "the color is ", "wish": "the color is red"})
    print(f"{'request':<12}{'answer':<22}{'ms':>8}")
    for number in range(1, 21):
        start = perf_counter()
        answer = engine.answer(body)
        if number in (1, 2, 20):
            print(f"{number:<12}{answer:<22}{(perf_counter() - start) * 1000:>8.2f}")


if __name__ == "__main__":
    show()
