"""The filters that metering puts into templates. Nothing here runs more often, so short texts come first."""

import threading
from collections.abc import Callable
from typing import Any

import jinja2

from gradus.loading.sandbox import operations
from gradus.loading.sandbox.budget import SHORT, room, size_of
from gradus.loading.sandbox.metering import ADD, JOIN, PAY, READ, SEARCH, SLICED, WRITE

Filters = dict[str, Callable[..., Any]]


def payments(current: threading.local) -> Filters:
    """Return them by name. current.budget: of this thread's rendering."""

    def pay(work: int) -> None:
        budget = current.budget
        budget.work -= work
        if budget.work < 0 or budget.memory < 0:
            budget.extend()

    return {PAY: pay, **_passes(current), **_texts(current)}


def _passes(current: threading.local) -> Filters:
    """Payments for a value that is read, in place of the value itself."""

    def read(value: Any) -> Any:
        kind = type(value)
        if kind is str:
            if len(value) >= SHORT:
                current.budget.spend(len(value) >> 5)
        elif kind is not int and kind is not bool:
            operations.check_items(value)
            current.budget.read(value)
        return value

    def search(value: Any) -> Any:
        operations.check_items(value)
        budget = current.budget
        budget.spend(budget.weigh(value) >> 1)
        return value

    def sliced(value: Any) -> Any:
        if isinstance(value, str):
            current.budget.create(size_of(value))
        elif isinstance(value, (list, tuple)):
            operations.to_list(current.budget, value)
        return value

    return {READ: read, SEARCH: search, SLICED: sliced}


def _texts(current: threading.local) -> Filters:
    """Payments for texts that are made and written, twice: what a macro writes is copied once more."""

    def add(*values: Any) -> Any:
        size = 0
        for value in values:
            if type(value) is not str:
                return add_one_by_one(*values)
            size += len(value)
        budget = current.budget
        if size >= SHORT:
            budget.create(2 * size_of(*values))
            return "".join(values)
        text = "".join(values)
        budget.memory -= 2 * room(text)
        if budget.memory < 0:
            budget.extend()
        return text

    def add_one_by_one(first: Any, *others: Any) -> Any:
        for other in others:
            operations.operate(current.budget, "+", first, other)
            first = first + other
        return first

    def join(*values: Any) -> str:
        texts = [value if isinstance(value, str) else operations.str_of(current.budget, value) for value in values]
        current.budget.create(2 * size_of(*texts))
        return "".join(texts)

    def write(value: Any) -> Any:
        budget = current.budget
        if type(value) is str:
            budget.memory -= room(value)
            if budget.memory < 0 or len(value) >= SHORT:
                budget.spend(len(value) >> 9)
        elif value is not None and not isinstance(value, jinja2.Undefined):
            operations.spell(budget, value)
        return value

    return {ADD: add, JOIN: join, WRITE: write}
