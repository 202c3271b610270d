"""Compile a request's field `structured` into the masks of an automaton, once for all samples and later requests."""

from collections import OrderedDict
from collections.abc import Sequence as Ordered

from gradus.engine.request import Request
from gradus.engine.structured import Structured
from gradus.errors import RequestError
from phases.p11_structured_output.dfa import dfa_of
from phases.p11_structured_output.expression import Either, Expression, literal
from phases.p11_structured_output.masks import TokenMasks, tree_of
from phases.p11_structured_output.matcher import Matcher
from phases.p11_structured_output.parsing import Parser

MOST_KEPT = 16  # automata, those that were asked for last


class Grammars:
    """vocabulary: the bytes of each token. ends: the model's end-of-sequence tokens."""

    def __init__(self, vocabulary: Ordered[bytes], ends: Ordered[int]) -> None:
        self.vocabulary, self.ends = vocabulary, ends
        self.tree = tree_of(vocabulary)
        self.compiled: OrderedDict[tuple[str, str], TokenMasks] = OrderedDict()

    def masks(self, structured: Structured) -> TokenMasks:
        """Raises RequestError for a kind that this phase does not read, and for an expression that it cannot follow."""
        name = structured.kind, structured.text
        if name not in self.compiled:
            self.compiled[name] = TokenMasks(dfa_of(expression_of(structured)), self.vocabulary, self.tree)
            if len(self.compiled) > MOST_KEPT:
                self.compiled.popitem(last=False)
        self.compiled.move_to_end(name)
        return self.compiled[name]

    def matcher(self, request: Request, answer: Ordered[int]) -> Matcher | None:
        """Make the matcher of a sequence whose answer has these tokens so far; None for an answer of any form."""
        if request.params.structured is None:
            return None
        matcher = Matcher(self.masks(request.params.structured), request.stop_ids, self.ends)
        for token in answer:
            matcher.advance(token)
        return matcher


def expression_of(structured: Structured) -> Expression:
    if structured.regex is not None:
        return Parser(structured.regex).whole()
    if structured.choice is not None:
        return Either(tuple(map(literal, structured.choice)))
    limit = "regex or choice in p11; the final engine takes json_schema, json and grammar too"
    raise RequestError.of("structured", limit, structured.kind, bare=True)
