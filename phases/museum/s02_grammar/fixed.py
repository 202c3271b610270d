"""Two schemas are equal if they say the same, so a schema that comes again finds its grammar."""

from dataclasses import dataclass

from phases.museum.s02_grammar import engine
from phases.museum.s02_grammar.engine import VOCABULARY as VOCABULARY
from phases.museum.s02_grammar.engine import Grammar as Grammar


@dataclass(frozen=True)  # equality and hash by what the fields hold: everything that the grammar is made of
class Schema:
    """The answers that a request accepts: `prefix`, followed by one of `choices`."""

    choices: tuple[str, ...]
    prefix: str = ""


class Engine(engine.Engine):
    """Looks grammars up by what a schema says."""

    def grammar(self, schema: engine.Schema) -> Grammar:
        """Take the schema's grammar from those kept, or compile it and drop the one that was not used for longest."""
        key = Schema(tuple(schema.choices), schema.prefix)
        return super().grammar(key)  # type: ignore[arg-type]
