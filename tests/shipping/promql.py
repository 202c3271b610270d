"""Prometheus's query language, as far as this repository's rules and dashboards use it: read, checked, evaluated.

There is no Prometheus where the tests run. An expression is read into a tree, so that its metrics and labels can be
compared with those of a real server, and computed from a recording of a server's metrics. A rate is the growth between
the first and the last sample over the time between them: Prometheus extrapolates to the range's ends.
"""

import math
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter

LOOKBACK_S = 300.0  # an instant query takes the newest sample that is no older
GRAFANA = {"$__rate_interval": 300.0, "$__interval": 60.0, "$__range": 3600.0}
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

TOKEN = re.compile(
    r"""\s*(?:(?P<duration>\d+(?:ms|[smhd])\b|\$__\w+)|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<string>"(?:[^"\\]|\\.)*")|(?P<name>[a-zA-Z_:][\w:]*)
    |(?P<symbol>=~|!~|!=|==|>=|<=|[-+*/%^(){}\[\],=<>]))""",
    re.VERBOSE,
)
AGGREGATIONS = {
    "sum": sum,
    "avg": lambda found: sum(found) / len(found),
    "min": min,
    "max": max,
    "count": len,
}
PRECEDENCE = [("or",), ("and", "unless"), ("==", "!=", ">", "<", ">=", "<="), ("+", "-"), ("*", "/", "%")]


def duration(text):
    """Seconds of a duration such as 5m, or of one of Grafana's variables."""
    if text in GRAFANA:
        return GRAFANA[text]
    amount, unit = re.fullmatch(r"(\d+)(ms|[smhd])", text).groups()
    return int(amount) * UNITS[unit]


# -- the tree ----------------------------------------------------------------------------------------------------------


@dataclass
class Number:
    value: float


@dataclass
class Selector:
    """name: "" for matchers alone. matchers: (label, operator, value). range_s: None for an instant."""

    name: str
    matchers: list = field(default_factory=list)
    range_s: float | None = None
    offset_s: float = 0.0

    def matches(self, labels):
        tests = {"=": str.__eq__, "!=": str.__ne__}
        for label, operator, wanted in self.matchers:
            found = labels.get(label, "")
            if operator in tests:
                if not tests[operator](found, wanted):
                    return False
            elif (re.fullmatch(wanted, found) is None) == (operator == "=~"):
                return False
        return True


@dataclass
class Call:
    function: str
    arguments: list


@dataclass
class Aggregate:
    """labels: those kept; with `without`, those dropped."""

    operator: str
    labels: list
    without: bool
    body: object


@dataclass
class Binary:
    """labels: those that pairs share; None for all. ignoring: all but these."""

    operator: str
    left: object
    right: object
    boolean: bool = False
    labels: list | None = None
    ignoring: bool = False


class Reader:
    """Reads one expression. Raises ValueError with the place of a mistake."""

    def __init__(self, text):
        self.tokens, at = [], 0
        while text[at:].strip():
            found = TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"unknown character at {text[at:][:20]!r}")
            self.tokens.append((found.lastgroup, found.group(found.lastgroup)))
            at = found.end()
        self.at = 0

    def whole(self):
        tree = self.binary(0)
        if self.at < len(self.tokens):
            raise ValueError(f"left over: {self.tokens[self.at][1]!r}")
        return tree

    def peek(self, *texts):
        return self.at < len(self.tokens) and self.tokens[self.at][1] in texts

    def take(self, *texts):
        if self.at >= len(self.tokens):
            raise ValueError(f"ends where {texts or 'more'} is expected")
        kind, text = self.tokens[self.at]
        if texts and text not in texts:
            raise ValueError(f"{text!r} where {texts} is expected")
        self.at += 1
        return kind, text

    def binary(self, level):
        if level == len(PRECEDENCE):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek(*PRECEDENCE[level]):
            operator = self.take()[1]
            node = Binary(operator, left, None)
            if self.peek("bool"):
                self.take()
                node.boolean = True
            if self.peek("on", "ignoring"):
                node.ignoring = self.take()[1] == "ignoring"
                node.labels = self.names()
            if self.peek("group_left", "group_right"):
                self.take()
                if self.peek("("):
                    self.names()
            node.right = self.binary(level + 1)
            left = node
        return left

    def unary(self):
        if self.peek("-"):
            self.take()
            return Binary("*", Number(-1.0), self.unary())
        return self.primary()

    def primary(self):
        kind, text = self.take()
        if kind == "number":
            return Number(float(text))
        if text == "(":
            inner = self.binary(0)
            self.take(")")
            return inner
        if text in AGGREGATIONS:
            return self.aggregate(text)
        if kind == "name" and self.peek("("):
            if text not in FUNCTIONS:
                raise ValueError(f"unknown function {text!r}")
            return Call(text, self.arguments())
        if kind != "name" and text != "{":
            raise ValueError(f"{text!r} begins no expression")
        if text == "{":
            self.at -= 1
        return self.selector("" if text == "{" else text)

    def aggregate(self, operator):
        labels, without = [], True
        if grouped := self.peek("by", "without"):
            without = self.take()[1] == "without"
            labels = self.names()
        (body,) = self.arguments()
        if not grouped:
            without = False
            if self.peek("by", "without"):
                without = self.take()[1] == "without"
                labels = self.names()
        return Aggregate(operator, labels, without, body)

    def arguments(self):
        self.take("(")
        found = []
        while not self.peek(")"):
            found.append(self.binary(0))
            if not self.peek(")"):
                self.take(",")
        self.take(")")
        return found

    def names(self):
        self.take("(")
        found = []
        while not self.peek(")"):
            found.append(self.take()[1])
            if not self.peek(")"):
                self.take(",")
        self.take(")")
        return found

    def selector(self, name):
        node = Selector(name)
        if self.peek("{"):
            self.take()
            while not self.peek("}"):
                label, operator = self.take()[1], self.take("=", "!=", "=~", "!~")[1]
                node.matchers.append((label, operator, self.take()[1][1:-1]))
                if not self.peek("}"):
                    self.take(",")
            self.take("}")
        if self.peek("["):
            self.take()
            node.range_s = duration(self.take()[1])
            self.take("]")
        if self.peek("offset"):
            self.take()
            node.offset_s = duration(self.take()[1])
        return node


def read(text):
    return Reader(text).whole()


def nodes(tree):
    """All nodes of a tree."""
    yield tree
    for child in [tree.left, tree.right] if isinstance(tree, Binary) else getattr(tree, "arguments", []):
        yield from nodes(child)
    if isinstance(tree, Aggregate):
        yield from nodes(tree.body)


# -- evaluation --------------------------------------------------------------------------------------------------------


class Recording:
    """Samples of series, in order of time: {(name, labels as a frozenset of pairs): [(seconds, value), …]}."""

    def __init__(self, series):
        self.series = series

    def select(self, selector, now):
        """The samples of each series in the range, or the newest one."""
        end = now - selector.offset_s
        start = end - (LOOKBACK_S if selector.range_s is None else selector.range_s)
        for (name, labels), samples in self.series.items():
            if selector.name in ("", name) and selector.matches(dict(labels)):
                first, last = (bisect_right(samples, time, key=itemgetter(0)) for time in (start, end))
                if found := samples[first:last]:
                    yield labels, found

    def evaluate(self, tree, now):
        """A number, or {labels: value}."""
        match tree:
            case Number():
                return tree.value
            case Selector():
                assert tree.range_s is None, "a range is an argument of a function"
                return {labels: found[-1][1] for labels, found in self.select(tree, now)}
            case Call():
                return FUNCTIONS[tree.function](self, now, *tree.arguments)
            case Aggregate():
                return self.aggregate(tree, now)
            case Binary():
                return self.combine(tree, now)

    def aggregate(self, tree, now):
        groups = {}
        for labels, value in self.evaluate(tree.body, now).items():
            kept = frozenset(pair for pair in labels if (pair[0] in tree.labels) != tree.without)
            groups.setdefault(kept, []).append(value)
        return {labels: AGGREGATIONS[tree.operator](values) for labels, values in groups.items()}

    def combine(self, tree, now):
        left, right = self.evaluate(tree.left, now), self.evaluate(tree.right, now)
        if not isinstance(left, dict) and not isinstance(right, dict):
            return float(compute(tree.operator, left, right))

        def key(labels):
            if tree.labels is None:
                return labels
            return frozenset(pair for pair in labels if (pair[0] in tree.labels) != tree.ignoring)

        others = {key(labels): value for labels, value in right.items()} if isinstance(right, dict) else {}
        if tree.operator in ("and", "unless"):
            return {
                labels: value for labels, value in left.items() if (key(labels) in others) == (tree.operator == "and")
            }
        if tree.operator == "or":
            mine = {key(labels) for labels in left}
            return left | {labels: value for labels, value in right.items() if key(labels) not in mine}
        if not isinstance(left, dict):
            pairs = {labels: (left, value, value) for labels, value in right.items()}
        elif not isinstance(right, dict):
            pairs = {labels: (value, right, value) for labels, value in left.items()}
        else:
            pairs = {
                labels: (value, others[key(labels)], value) for labels, value in left.items() if key(labels) in others
            }
        compares = tree.operator in PRECEDENCE[2]
        if compares and not tree.boolean:
            return {labels: kept for labels, (a, b, kept) in pairs.items() if compute(tree.operator, a, b)}
        return {labels: float(compute(tree.operator, a, b)) for labels, (a, b, _) in pairs.items()}


def compute(operator, a, b):
    match operator:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "/":
            return a / b if b else math.nan if not a else math.copysign(math.inf, a)
        case "%":
            return math.fmod(a, b)
        case "==":
            return a == b
        case "!=":
            return a != b
        case ">":
            return a > b
        case "<":
            return a < b
        case ">=":
            return a >= b
        case "<=":
            return a <= b
    raise AssertionError(operator)


def over_time(compute_one, least=1):
    """A function of the samples in a range; series with fewer than `least` have no value."""

    def function(recording, now, selector):
        found = recording.select(selector, now)
        return {labels: compute_one(samples) for labels, samples in found if len(samples) >= least}

    return function


def increase(samples):
    """The growth of a counter, which begins again at 0 after a restart."""
    values = [value for _, value in samples]
    return sum(b - a if b >= a else b for a, b in pairwise(values))


def slope(samples):
    """The slope of the line through all samples, by least squares."""
    mean_t = sum(t for t, _ in samples) / len(samples)
    mean_v = sum(v for _, v in samples) / len(samples)
    return sum((t - mean_t) * (v - mean_v) for t, v in samples) / sum((t - mean_t) ** 2 for t, _ in samples)


def quantile(recording, now, share, body):
    """histogram_quantile: linear within the bucket that holds the share."""
    groups = {}
    for labels, count in recording.evaluate(body, now).items():
        rest = frozenset(pair for pair in labels if pair[0] != "le")
        groups.setdefault(rest, []).append((float(dict(labels)["le"]), count))
    return {labels: within(sorted(buckets), recording.evaluate(share, now)) for labels, buckets in groups.items()}


def within(buckets, share):
    total = buckets[-1][1]
    if not total:
        return math.nan
    lower, before = 0.0, 0.0
    for upper, count in buckets:
        if count >= share * total:
            if math.isinf(upper):
                return lower
            return lower + (upper - lower) * (share * total - before) / (count - before)
        lower, before = upper, count
    raise AssertionError("the last bucket has all")


def absent(recording, now, selector):
    if recording.evaluate(selector, now):
        return {}
    return {frozenset((label, value) for label, operator, value in selector.matchers if operator == "="): 1.0}


FUNCTIONS = {
    "absent": absent,
    "avg_over_time": over_time(lambda samples: sum(value for _, value in samples) / len(samples)),
    "changes": over_time(
        lambda samples: sum(a[1] != b[1] for a, b in pairwise(samples)),
    ),
    "deriv": over_time(slope, least=2),
    "histogram_quantile": quantile,
    "increase": over_time(increase, least=2),
    "max_over_time": over_time(lambda samples: max(value for _, value in samples)),
    "min_over_time": over_time(lambda samples: min(value for _, value in samples)),
    "rate": over_time(lambda samples: increase(samples) / (samples[-1][0] - samples[0][0]), least=2),
    "time": lambda recording, now: now,
    "vector": lambda recording, now, body: {frozenset(): recording.evaluate(body, now)},
}
