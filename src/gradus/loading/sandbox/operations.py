"""All operations on values that a template has, each with its price, which is paid before the operation runs.

An operation that reads its inputs once costs their weight, and one that makes a text costs the text's size, which
follows from the inputs: `'x' * n`, `|indent(n)` and `'%nd' % 1` make texts of n characters. An operation without a
price does not exist for a template.
"""

import functools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jinja2.filters
import jinja2.runtime
import jinja2.tests
from jinja2.exceptions import SecurityError
from markupsafe import Markup

from gradus.loading.sandbox.budget import NODE, SHORT, Budget, size_of

Price = Callable[..., object]

SMALL = 1 << 60  # numbers that take one unit of work
MOST_BITS = 1024  # of a number
MOST_DIGITS = 6  # of a width in a format
MOST_LAYOUT = 16  # characters of indentation and of separators, in JSON
MOST_TIMES = 100
PIECE = 64  # bytes that Python takes for a short text
ESCAPED, ENCODED, SPELLED = 6, 12, 10  # characters for one: `&quot;`, `%F0%9F%98%80`, `\U0001f600`
BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def forbid(what: str) -> NoReturn:
    raise SecurityError(f"{what} is not supported")


def check_items(value: Any) -> None:
    """Refuse a loop as a list of its items: taking them is not paid for. All other iterators pay for each item."""
    if isinstance(value, jinja2.runtime.LoopContext):
        forbid("a loop as a value")


# -- prices ------------------------------------------------------------------------------------------------------------


def spell(budget: Budget, value: Any, growth: int = 1) -> None:
    """Pay for a value's text, and for one that is `growth` times as long."""
    if isinstance(value, str):
        budget.create(growth * size_of(value))
        budget.spend(len(value) >> 5)
    else:  # lists and objects are written with escapes
        characters = SPELLED * budget.weigh(value)
        budget.create(growth * 4 * characters)
        budget.spend(characters >> 3)


def free(budget: Budget, *args: Any, **kwargs: Any) -> None:
    budget.spend(2 + len(args))


def read(budget: Budget, *args: Any, **kwargs: Any) -> None:
    budget.read(*args, *kwargs.values())


def copy(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    budget.read(*args, *kwargs.values())
    spell(budget, value)


def strip(budget: Budget, value: Any, characters: Any = None) -> None:
    """Each character at the ends is sought in those to remove."""
    copy(budget, value, characters)
    if isinstance(characters, str):
        budget.spend(budget.weigh(value) * len(characters) >> 8)


def search(budget: Budget, text: Any, sought: Any = None, *args: Any) -> None:
    """Python compares some beginnings several times, of up to MOST_TIMES characters."""
    times = min(len(sought), MOST_TIMES) if isinstance(sought, str) else MOST_TIMES
    budget.read(sought)
    budget.spend(budget.weigh(text) * (8 + times) >> 8)


def search_backwards(budget: Budget, text: Any, sought: Any = None, *args: Any) -> None:
    """Here Python has no such bound."""
    copy(budget, text, sought)
    budget.spend(budget.weigh(text) * budget.weigh(sought) >> 8)


def change(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    """Letters may become several: ß is SS in upper case."""
    copy(budget, value, *args, **kwargs)
    spell(budget, value, 1 if isinstance(value, str) and value.isascii() else 3)


def word_by_word(budget: Budget, value: Any) -> None:
    change(budget, value)
    if isinstance(value, str):
        budget.create(PIECE * len(value) // 2)
        budget.spend(len(value) >> 1)


def escape(budget: Budget, value: Any) -> None:
    spell(budget, value, ESCAPED)


def encode(budget: Budget, value: Any) -> None:
    spell(budget, value, ENCODED)
    budget.spend(budget.weigh(value))


def replace(budget: Budget, value: Any, old: Any, new: Any, count: Any = None) -> None:
    for each in (value, old, new):
        spell(budget, each)
    text, found, put = str(value), str(old), str(new)
    search(budget, text, found)
    times = text.count(found) if found else len(text) + 1
    growth = ESCAPED if any(isinstance(each, Markup) for each in (value, old, new)) else 1
    budget.create(growth * size_of(text, put, characters=len(text) + times * len(put)))


def pad(budget: Budget, value: Any, width: Any = 80, fill: Any = " ") -> None:
    spell(budget, value)
    budget.create(4 * max(_whole(width, "a width"), 0))


def indent(budget: Budget, value: Any, width: Any = 4, first: Any = False, blank: Any = False) -> None:
    spell(budget, value, 2)
    margin = len(width) if isinstance(width, str) else _whole(width, "a width")
    lines = breaks(str(value)) + 1
    budget.create(lines * (PIECE + 4 * max(margin, 0)))


def expand_tabs(budget: Budget, value: str, size: Any = 8) -> None:
    copy(budget, value)
    budget.create(4 * value.count("\t") * max(_whole(size, "a width"), 0))


def split(budget: Budget, value: str, separator: str | None = None, most: int = -1) -> None:
    copy(budget, value)
    search(budget, value, separator or "")
    spaces = " \t\n\v\f\r" if value.isascii() else ""
    if separator:
        pieces = value.count(separator) + 1
    else:
        pieces = sum(map(value.count, spaces)) + 1 if spaces else len(value) // 2 + 1
    budget.create(PIECE * pieces)


def split_backwards(budget: Budget, value: str, separator: str | None = None, most: int = -1) -> None:
    search_backwards(budget, value, separator)
    split(budget, value, separator)


def split_lines(budget: Budget, value: str, keepends: Any = False) -> None:
    copy(budget, value)
    budget.create(PIECE * (breaks(value) + 1))


def breaks(text: str) -> int:
    return sum(map(text.count, BREAKS))


def to_list(budget: Budget, value: Any) -> None:
    if isinstance(value, str):
        budget.create(PIECE * len(value))
    else:
        budget.create(NODE * (budget.weigh(value) // NODE))


def batch(budget: Budget, value: Any, linecount: Any, fill_with: Any = None) -> None:
    budget.read(value)
    if fill_with is not None:
        budget.create(NODE * max(_whole(linecount, "a line"), 0))


def order(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    """Sorting compares each item with some others, perhaps in lower case."""
    weight = budget.weigh(value)
    budget.create(4 * weight)
    budget.spend((weight >> 2) * (1 + weight.bit_length()))


def join(budget: Budget, value: Any, d: Any = "", attribute: Any = None) -> None:
    spell(budget, d)
    join_text(budget, str(d), value)


def join_text(budget: Budget, separator: str, items: Any) -> None:
    """Items that are no texts are written as such."""
    weights = [len(item) if isinstance(item, str) else SPELLED * budget.weigh(item) for item in items]
    texts = [item for item in items if isinstance(item, str)]
    budget.create(size_of(separator, *texts, characters=sum(weights) + len(separator) * len(weights)))
    budget.spend(len(weights))


def whole(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    """Digits of base 16 may be many."""
    if isinstance(value, str) and len(value) > MOST_BITS:
        forbid(f"a number of more than {MOST_BITS} digits")


def attribute(budget: Budget, value: Any, name: Any) -> None:
    spell(budget, name)


def add_up(budget: Budget, value: Any, attribute: Any = None, start: Any = 0) -> None:
    _number(start, "a sum of something else than numbers")
    budget.read(value)


def round_off(budget: Budget, value: Any, precision: Any = 0, method: Any = "common") -> None:
    _number(value, "rounding something else than a number")
    if abs(_whole(precision, "a precision")) > 30:
        forbid("a precision of more than 30 digits")


def of_number(budget: Budget, value: Any, *args: Any) -> None:
    _number(value, "a test of something else than a number")


# -- operators ---------------------------------------------------------------------------------------------------------


def operate(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Pay for `left operator right`."""
    if type(left) is int and type(right) is int and abs(left) < SMALL and abs(right) < SMALL and operator != "**":
        return
    if isinstance(left, str) or isinstance(right, str):
        _operate_on_text(budget, operator, left, right)
    elif operator == "+" and isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        budget.create(NODE * (len(left) + len(right)))
    elif operator == "*" and (isinstance(left, (list, tuple)) or isinstance(right, (list, tuple))):
        items, times = (left, right) if isinstance(left, (list, tuple)) else (right, left)
        budget.create(NODE * len(items) * _whole(times, "a number of times"))
    else:
        for side in (left, right):
            if isinstance(side, int) and side.bit_length() > MOST_BITS:
                forbid(f"a number of more than {MOST_BITS} bits")
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            _bits(left.bit_length() * max(right, 0))
        budget.read(left, right)


def _operate_on_text(budget: Budget, operator: str, left: Any, right: Any) -> None:
    growth = ESCAPED if isinstance(left, Markup) or isinstance(right, Markup) else 1
    if operator == "+" and isinstance(left, str) and isinstance(right, str):
        budget.create(growth * size_of(left, right))
    elif operator == "*":
        text, times = (left, right) if isinstance(left, str) else (right, left)
        budget.create(size_of(text) * max(_whole(times, "a number of times"), 0))
    elif operator == "%" and isinstance(left, str):
        percent(budget, left, right)


def percent(budget: Budget, text: str, values: Any) -> None:
    """Pay for `text % values`: for each directive, its width and all values."""
    growth = ESCAPED if isinstance(text, Markup) else 1
    budget.spend(len(text) >> 1)
    if re.search(rf"%[^a-zA-Z%]*[0-9]{{{MOST_DIGITS},}}", text) or re.search(r"%[^a-zA-Z%]*\*", text):
        forbid(f"a width of {MOST_DIGITS} digits, or of *,")
    widths = sum(int(found) for found in re.findall(r"[0-9]+", text) if len(found) < MOST_DIGITS)
    each = SPELLED * budget.weigh(values) + MOST_BITS
    budget.create(growth * 4 * (len(text) + widths + text.count("%") * each))


def _bits(count: int) -> None:
    if count > MOST_BITS:
        raise SecurityError("a result of ** is too large")


def _whole(value: Any, what: str) -> int:
    if not isinstance(value, int) or value.bit_length() > MOST_BITS:
        raise TypeError(f"{what} must be a whole number")
    return int(value)


def _number(value: Any, what: str) -> None:
    if not isinstance(value, (int, float)):
        forbid(what)


# -- filters -----------------------------------------------------------------------------------------------------------

FILTERS: dict[str, Price] = {
    **dict.fromkeys(("abs", "count", "d", "default", "first", "items", "last", "length"), free),
    **dict.fromkeys(("map", "reject", "rejectattr", "select", "selectattr", "slice"), free),  # paid for by the item
    **dict.fromkeys(("filesizeformat", "reverse"), read),
    **dict.fromkeys(("float", "int"), whole),
    **dict.fromkeys(("safe", "string", "truncate"), copy),
    **dict.fromkeys(("capitalize", "lower", "upper"), change),
    **dict.fromkeys(("title", "wordcount"), word_by_word),
    **dict.fromkeys(("e", "escape", "forceescape"), escape),
    **dict.fromkeys(("dictsort", "groupby", "max", "min", "sort", "unique"), order),
    "attr": attribute,
    "batch": batch,
    "center": pad,
    "indent": indent,
    "join": join,
    "list": to_list,
    "replace": replace,
    "round": round_off,
    "sum": add_up,
    "trim": strip,
    "urlencode": encode,
}
ALL = ("batch", "groupby", "join", "list", "max", "min", "sort", "sum", "unique")  # they begin by taking all items


def filters(current: Callable[[], Budget]) -> dict[str, Callable[..., Any]]:
    """Return Jinja's filters, each paying from the current rendering's budget."""
    found = {name: _paying(jinja2.filters.FILTERS[name], price, current, name) for name, price in FILTERS.items()}
    return found | {
        "tojson": lambda value, *args, **layout: to_json(current(), value, *args, **layout),
        "format": lambda value, *args, **kwargs: format_percent(current(), value, args, kwargs),
    }


def tests(current: Callable[[], Budget]) -> dict[str, Callable[..., Any]]:
    """Return Jinja's tests. Most look at a value's type alone."""
    compared = "== eq equalto != ne > gt greaterthan >= ge < lt lessthan <= le"
    prices = dict.fromkeys(compared.split(), read) | dict.fromkeys(("lower", "upper"), copy)
    prices["in"] = lambda budget, value, where: search(budget, where, value)
    prices |= dict.fromkeys(("odd", "even", "divisibleby"), of_number)
    found: dict[str, Any] = {**jinja2.tests.TESTS}
    return found | {name: _paying(found[name], price, current, name) for name, price in prices.items()}


def _paying(function: Callable[..., Any], price: Price, current: Callable[[], Budget], name: str) -> Callable[..., Any]:
    """Return a filter or a test that pays its price. Items that it yields are paid for one by one."""
    at = 1 if hasattr(function, "jinja_pass_arg") else 0  # where Jinja passes the context first
    quick = at == 0 and price in (free, read, copy, strip, change, escape)

    @functools.wraps(function)
    def paying(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        if quick and len(args) == 1 and type(args[0]) is str and len(args[0]) < SHORT and not kwargs:
            budget.take(args[0])
            return function(args[0])
        for each in args[at:]:
            check_items(each)
        budget.read(*args[at + 1 :], *kwargs.values())
        if name in ALL:
            if isinstance(args[at], Iterator):
                args = (*args[:at], list(args[at]), *args[at + 1 :])
            path = sum(len(each) for each in (*args[at + 1 :], *kwargs.values()) if isinstance(each, str))
            budget.spend(path * (budget.weigh(args[at]) // NODE))  # of attributes, looked up in each item
        price(budget, *args[at:], **kwargs)
        result = function(*args, **kwargs)
        if isinstance(result, Iterator):
            return _paced(budget, result, 4 + sum(map(budget.weigh, (*args[at + 1 :], *kwargs.values()))))
        return result

    return paying


def _paced(budget: Budget, items: Iterator[Any], cost: int) -> Iterator[Any]:
    for item in items:
        budget.spend(cost + (budget.weigh(item) >> 5))
        yield item


def str_of(budget: Budget, value: Any) -> str:
    """Write a value as a text."""
    spell(budget, value)
    return str(value)


def to_json(budget: Budget, value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    """Jinja's own tojson escapes for HTML; this is the one of `transformers`."""
    allowed = {key: layout[key] for key in ("indent", "separators", "sort_keys") if key in layout}
    margin = allowed.get("indent")
    long = [part for part in allowed.get("separators") or () if len(part) > MOST_LAYOUT]
    if long or (len(margin) if isinstance(margin, str) else _whole(margin or 0, "an indentation")) > MOST_LAYOUT:
        forbid(f"JSON with more than {MOST_LAYOUT} characters of indentation or between values")
    budget.spend(budget.weigh(value) >> (3 if margin is None else 1))
    budget.create((ENCODED if ensure_ascii else ESCAPED) * budget.weigh(value))
    if margin is None:
        return json.dumps(value, ensure_ascii=ensure_ascii, **allowed)
    pieces = []
    for piece in json.JSONEncoder(ensure_ascii=ensure_ascii, **allowed).iterencode(
        value
    ):  # deep values grow by margins
        budget.create(size_of(piece))
        pieces.append(piece)
    return "".join(pieces)


def format_percent(budget: Budget, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if args and kwargs:
        raise TypeError("can't handle positional and keyword arguments at the same time")
    text = value if isinstance(value, str) else str(value)
    percent(budget, text, kwargs or args)
    return text % (kwargs or args)


# -- methods -----------------------------------------------------------------------------------------------------------

_LOOKS = (
    "endswith isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle "
    "isupper startswith"
)
METHODS: dict[type, dict[str, Price]] = {
    str: {
        **dict.fromkeys(_LOOKS.split(), read),
        **dict.fromkeys(("removeprefix", "removesuffix"), copy),
        **dict.fromkeys(("lstrip", "rstrip", "strip"), strip),
        **dict.fromkeys(("count", "find", "index"), search),
        **dict.fromkeys(("rfind", "rindex", "rpartition"), search_backwards),
        **dict.fromkeys(("capitalize", "casefold", "lower", "swapcase", "title", "upper"), change),
        **dict.fromkeys(("center", "ljust", "rjust", "zfill"), pad),
        "split": split,
        "rsplit": split_backwards,
        "partition": split,
        "expandtabs": expand_tabs,
        "join": join_text,
        "replace": replace,
        "splitlines": split_lines,
    },
    dict: {"copy": to_list, "get": lambda budget, _, *args: budget.read(*args)}
    | dict.fromkeys(("items", "keys", "values"), free),
    list: {"copy": to_list, "count": read, "index": read},
    tuple: {"count": read, "index": read},
    int: {"bit_length": free, "is_integer": free},
    float: {"is_integer": free},
}


QUICK = frozenset(name for name, price in METHODS[str].items() if price in (read, copy, strip, change, search))
"""Methods of texts whose results are at most QUICK_GROWTH times as long."""


def pay_method(budget: Budget, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Pay for a method of one of Python's values. Returns its arguments, with an iterator replaced by its items."""
    kind = next((kind for kind in METHODS if isinstance(owner, kind)), None)
    price = None if kind is None else METHODS[kind].get(name)
    if price is None:
        forbid(f"the method {name} of {type(owner).__name__}")
    for each in args:
        check_items(each)
    if name == "join" and args and isinstance(args[0], Iterator):
        args = (list(args[0]), *args[1:])
    if isinstance(owner, Markup):  # its methods escape what they put in
        spell(budget, owner, ESCAPED)
        budget.create(ESCAPED * 4 * sum(map(budget.weigh, args)))
    price(budget, owner, *args, **kwargs)
    return args
