r"""Reads the regular expressions that every automaton can follow, with the meaning that Python's `re` gives them:

    a \. \n \x41 \u00e9      a character           .  [a-z_]  [^"]   one of a class ( . is all but a line break)
    ab  a|b  (ab)  (?:ab)    order, choice, group  \d \w \s \D \W \S  ASCII digits, word characters, blanks, all others
    * + ? {3} {2,} {2,5}     repetition

The whole answer must match, so there are no anchors. Back references and look-around need more than an automaton. They
are refused, like everything that is not in this list.
"""

import re
from typing import NoReturn

from gradus.errors import RequestError
from phases.p11_structured_output.characters import CLASSES, NO_BREAK, Ranges, single, without
from phases.p11_structured_output.expression import Characters, Either, Expression, InOrder, Repeat

MOST_REPEATS = 1000
DEEPEST = 50
CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
REPETITION = re.compile(r"([*+?])|\{(\d{1,4})(?:(,)(\d{1,4})?)?\}")
CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")


class Parser:
    """Reads from left to right, with a method for each kind of part. Raises RequestError."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = self.depth = 0

    def whole(self) -> Expression:
        node = self.either()
        if self.place < len(self.text):
            self.refuse("a ) without its (")
        return node

    def either(self) -> Expression:
        parts = [self.in_order()]
        while self.take("|"):
            parts.append(self.in_order())
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def in_order(self) -> Expression:
        parts = []
        while self.next not in ("", "|", ")"):
            parts.append(self.repeated(self.one()))
        return InOrder(tuple(parts))

    def repeated(self, part: Expression) -> Expression:
        found = REPETITION.match(self.text, self.place)
        if found is None:
            return part
        self.place = found.end()
        sign, low, comma, high = found.groups()
        least = int(low) if low else int(sign == "+")
        most = int(high) if high else least if low and not comma else 1 if sign == "?" else None
        if max(least, most or 0) > MOST_REPEATS or (most is not None and most < least):
            self.refuse(f"a repetition that does not go from a number to a larger one, {MOST_REPEATS} at most")
        if REPETITION.match(self.text, self.place):
            self.refuse("a second repetition of the same part (lazy and possessive ones are not in the subset)")
        return Repeat(part, least, most)

    def one(self) -> Expression:
        if self.take("("):
            return self.group()
        if self.take("["):
            return Characters(self.character_class())
        if self.take("."):
            return Characters(NO_BREAK)
        if self.next in "*+?{}]^$":
            self.refuse(f"a {self.next} in this place (for the character itself, write \\{self.next})")
        return Characters(self.character())

    def group(self) -> Expression:
        if self.next == "?" and not self.take("?:"):
            self.refuse("(? that is not (?:")
        self.depth += 1
        if self.depth > DEEPEST:
            self.refuse(f"more than {DEEPEST} groups inside each other")
        node = self.either()
        if not self.take(")"):
            self.refuse("a ( without its )")
        self.depth -= 1
        return node

    def character_class(self) -> Ranges:
        negated = self.take("^")
        found: list[tuple[int, int]] = []
        while not self.take("]"):
            low = self.character()
            if self.next == "-" and not self.text.startswith("-]", self.place):
                self.take("-")
                low = self.range_of(low, self.character())
            found += low
        ranges = without(tuple(found)) if negated else without(without(tuple(found)))  # sorted, and only characters
        if not found or not ranges:
            self.refuse("a class without a character")
        return ranges

    def range_of(self, low: Ranges, high: Ranges) -> Ranges:
        if len(low) > 1 or len(high) > 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1] or high < low:
            self.refuse("a range that does not go from a character to a later one")
        return ((low[0][0], high[0][1]),)

    def character(self) -> Ranges:
        r"""A character, or a class that is written like one: \d."""
        if self.take("\\"):
            return self.escaped()
        return single(self.taken())

    def escaped(self) -> Ranges:
        if code := CODE.match(self.text, self.place):
            self.place = code.end()
            return without(without(single(chr(int(code[1] or code[2], 16))))) or self.refuse("half a surrogate pair")
        letter = self.taken()
        if letter in CLASSES:
            return CLASSES[letter]
        if letter not in CONTROLS and letter.isalnum():
            self.refuse(f"\\{letter}")
        return single(CONTROLS.get(letter, letter))

    # -- the text ------------------------------------------------------------------------------------------------------

    @property
    def next(self) -> str:
        return self.text[self.place : self.place + 1]

    def take(self, expected: str) -> bool:
        """Step over these characters, if they come next."""
        found = self.text.startswith(expected, self.place)
        self.place += len(expected) * found
        return found

    def taken(self) -> str:
        """Step over the next character, whatever it is."""
        if not self.next:
            self.refuse("an end in the middle of a class or an escape")
        self.place += 1
        return self.text[self.place - 1]

    def refuse(self, what: str) -> NoReturn:
        limit = "of the subset that this phase reads"
        raise RequestError(
            f"structured.regex must be {limit}, got {what} at character {self.place}",
            param="structured.regex",
            limit=limit,
            got=what,
        )
