"""The environment that `transformers` gives to chat templates, because they are written for it, with prices on all.

Python code can reach a value's operations in six ways: by an operator, a filter, a test, a call, a subscript, or by
writing it. Each leads to one place here or in the syntax tree (see metering.py), and each place asks `operations` for
the price.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
from markupsafe import Markup

from gradus.loading.sandbox import operations
from gradus.loading.sandbox.budget import SHORT, Budget, Exhausted
from gradus.loading.sandbox.metering import metered
from gradus.loading.sandbox.payments import payments

OWN = (jinja2.runtime.LoopContext, jinja2.utils.Cycler, jinja2.utils.Joiner)  # whose methods are the library's
SCOPES = ("_loop_vars", "_block_vars")  # of functions that are passed the context, which no template has here
BYTES_PER_WEIGHT = 8  # of a copied object: some 128 for a key and a value
MOST_STRFTIME = 256  # Python's limit of a date's size, in the pattern's


class Program:
    """A template that has been compiled. variables: the names that it takes from outside, such as "tools".

    Raises jinja2.TemplateError, SyntaxError and others if `source` is no template, and CheckpointError if it is one
    that is not supported.
    """

    def __init__(self, source: str) -> None:
        self._environment = _Sandbox(trim_blocks=True, lstrip_blocks=True)
        tree = self._environment.parse(source)
        self.variables = frozenset(jinja2.meta.find_undeclared_variables(metered(tree)))
        code = self._environment.compile(tree)
        self._template = jinja2.Template.from_code(self._environment, code, self._environment.make_globals(None))

    def run(self, variables: Mapping[str, Any], inputs: Sequence[object], longest: int) -> str:
        """Return the text. inputs: those of the variables that the budget grows with (see `Budget`).

        Raises Exhausted at the budget's end and for more than `longest` characters, and whatever else an operation of
        the template raises.
        """
        pieces, length = [], 0
        self._environment.current.budget = Budget(*inputs)
        try:
            for piece in self._template.generate(**variables):
                pieces.append(piece)
                length += len(piece)
                if length > longest:
                    raise Exhausted(f"{longest} characters of text")
        finally:
            del self._environment.current.budget
        return "".join(pieces)


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The library's sandbox, whose operations pay from the budget of this thread's rendering.

    Without one, as when the library would compute constants while it compiles, they fail, and it does not compute them.
    """

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self, **settings: Any) -> None:
        self.current = threading.local()
        super().__init__(extensions=[_Generation, jinja2.ext.loopcontrols], optimized=False, **settings)
        self.filters = operations.filters(self._budget) | payments(self.current)
        self.tests.clear()
        self.tests.update(operations.tests(self._budget))
        self.globals |= {
            "lipsum": _no_lipsum,
            "namespace": _Namespace,
            "raise_exception": _raise,
            "strftime_now": self._date,
        }
        self._functions = frozenset(self.globals.values())

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        operations.operate(self.current.budget, operator, left, right)
        return self.binop_table[operator](left, right)

    def call(__self, __context: jinja2.runtime.Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = __self.current.budget
        if (
            type(__obj) is BuiltinMethodType
            and __obj.__name__ in operations.QUICK
            and _are_short(__obj.__self__, *args)
        ):
            budget.take(__obj.__self__)
            return __obj(*args)
        budget.spend(4 + len(args))
        for name in SCOPES:
            kwargs.pop(name, None)
        owner = getattr(__obj, "__self__", None)
        if type(__obj) is BuiltinMethodType or (isinstance(__obj, MethodType) and isinstance(owner, Markup)):
            args = operations.pay_method(budget, owner, __obj.__name__, args, kwargs)
            return __obj(*args, **kwargs)
        if isinstance(__obj, MethodType) and isinstance(owner, OWN):
            budget.read(*args)
        elif isinstance(__obj, (jinja2.runtime.Macro, jinja2.runtime.Undefined, _Format, *OWN)):
            pass  # their own blocks and fields pay
        elif __obj in __self._functions:
            for value in (*args, *kwargs.values()):
                operations.check_items(value)
                budget.create(BYTES_PER_WEIGHT * budget.weigh(value))
        else:
            operations.forbid(f"a call of {type(__obj).__name__}")
        return super().call(__context, __obj, *args, **kwargs)

    def call_filter(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Apply a filter that a template names by a text. The payments have names that only a text can spell."""
        if " " in name:
            operations.forbid(f"the filter {name[:40]}")
        return super().call_filter(name, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        safe = super().wrap_str_format(value)
        return None if safe is None else _Format(self, value.__self__, is_map=value.__name__ == "format_map")

    def _budget(self) -> Budget:
        return self.current.budget

    def _date(self, pattern: str) -> str:
        self.current.budget.create(MOST_STRFTIME * len(pattern))
        return datetime.now().strftime(pattern)


def _are_short(text: object, *sought: object) -> bool:
    return (
        type(text) is str
        and len(text) < SHORT
        and all(type(each) is str and len(each) < operations.MOST_TIMES for each in sought)
    )


class _Format(jinja2.sandbox.SandboxedFormatter):
    """A text's method `format`, or `format_map`. Each field pays for its text, and for the width that it asks for."""

    def __init__(self, environment: _Sandbox, text: str, *, is_map: bool) -> None:
        super().__init__(environment)
        self._budget, self._text, self._is_map = environment.current.budget, text, is_map

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        if isinstance(self._text, Markup):
            operations.forbid("format of a text that is marked as safe")
        if self._is_map:
            (kwargs,), args = args, ()
        self._budget.read(self._text)
        return self.vformat(self._text, args, kwargs)

    def format_field(self, value: Any, format_spec: str) -> Any:
        operations.spell(self._budget, value, 2)
        operations.percent(self._budget, f"%{format_spec}s", 0)
        return super().format_field(value, format_spec)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        operations.spell(self._budget, value, operations.SPELLED)
        return super().convert_field(value, conversion)


class _Namespace(jinja2.utils.Namespace):
    def __repr__(self) -> str:
        return "<Namespace>"  # its contents can become anything, so its text has no price


class _Generation(jinja2.ext.Extension):
    """{% generation %} … {% endgeneration %} marks the assistant's words for training; here only its contents count."""

    tags = {"generation"}  # noqa: RUF012 - the library's own spelling of a class attribute

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _no_lipsum(*args: Any, **kwargs: Any) -> NoReturn:
    operations.forbid("lipsum")
