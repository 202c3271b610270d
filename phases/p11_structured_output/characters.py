"""Sets of characters, as ranges of code points. A class of an expression is one of them."""

Ranges = tuple[tuple[int, int], ...]  # first and last code point of each
LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)  # code points that are no character of any text


def single(character: str) -> Ranges:
    return ((ord(character), ord(character)),)


def without(ranges: Ranges) -> Ranges:
    """All other characters."""
    others, start = [], 0
    for low, high in sorted((*ranges, SURROGATES)):
        if start < low:
            others.append((start, low - 1))
        start = max(start, high + 1)
    return (*others, (start, LAST)) if start <= LAST else tuple(others)


DIGITS: Ranges = ((0x30, 0x39),)
WORD: Ranges = (*DIGITS, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
BLANKS: Ranges = ((0x09, 0x0D), (0x20, 0x20))
NO_BREAK: Ranges = without(((0x0A, 0x0A),))
CLASSES = {"d": DIGITS, "w": WORD, "s": BLANKS, "D": without(DIGITS), "W": without(WORD), "S": without(BLANKS)}
