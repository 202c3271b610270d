"""Grammars that answers obey, and the tokens that they allow next. No torch here.

Read `library.py` (llguidance, imported at the first use), then `vocabulary.py` (a tokenizer as it sees it), `bounds.py`
and `lark.py` (what is refused before it costs anything), `schema.py` and `patterns.py` (a schema in words that it keeps
exactly), `source.py` (a constraint as llguidance's grammar), `matcher.py` (one answer's place in its grammar),
`lazy.py` (in an answer that is free otherwise), `grammars.py` (compiling, and the cache) and `threads.py` (rows of
legal tokens for many answers at once). docs/design/p11.md has the reasons.
"""

from gradus.structured.grammars import Grammars, begin_index, grammars_of
from gradus.structured.matcher import Matcher
from gradus.structured.threads import Job, MaskThreads

__all__ = ["Grammars", "Job", "MaskThreads", "Matcher", "begin_index", "grammars_of"]
