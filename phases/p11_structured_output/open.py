"""The open task: the same automaton in half of the time.

A server compiles a grammar while a request waits. What is timed is the way from an expression to its automaton, by this
process's own clock, and in turns with p11's. The automaton must take the same texts as p11's, in as many states at
most, and be complete: one that is built while it is used would only hide the time.
"""

import time
from collections import deque
from random import Random
from string import ascii_lowercase
from typing import Any

from gradus.course.open.declaration import Open, Refused, Trial
from gradus.course.open.judge import again
from phases.p11_structured_output.dfa import Dfa, dfa_of
from phases.p11_structured_output.expression import Expression
from phases.p11_structured_output.parsing import Parser

START = '''"""p11's open task. So far this is p11 itself, which scores 1.00."""

from phases.p11_structured_output.dfa import Dfa, subsets
from phases.p11_structured_output.expression import Expression
from phases.p11_structured_output.nfa import nfa_of


def dfa_of(node: Expression) -> Dfa:
    """Build the automaton of an expression: a list with a dict of bytes for each state, and which states accept."""
    nfa, last = nfa_of(node)
    return subsets(nfa, last)
'''


def expressions(seed: int) -> list[Expression]:
    """Words to choose from, a date, bounded text in any script, a quoted string, a record: with names from the seed."""
    random = Random(seed)
    words = ["".join(random.choices(ascii_lowercase, k=random.randint(3, 12))) for _ in range(60)]
    texts = [
        "|".join(words),
        r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
        rf"[^\n{random.choice(ascii_lowercase)}]{{0,{random.randint(30, 50)}}}",
        r'"([^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"',
        rf'\{{"{words[0]}": "[A-Z][a-z]{{1,{random.randint(12, 20)}}}", "{words[1]}": (\d+|true|false|null)\}}',
        rf"\w+@\w+(\.\w+)+ ({words[2]}|{words[3]}|[^x]{{2,8}})",
    ]
    return [Parser(text).whole() for text in texts]


def compare(mine: Any, wanted: Dfa) -> None:
    """Walk both automata at once. Raises Refused where one takes a text that the other does not take."""
    if type(mine.steps) is not list or any(type(step) is not dict for step in mine.steps):
        raise Refused("the automaton must be complete when it is returned: `steps` is a list of dicts")
    seen, left = {(0, 0)}, deque([(0, 0, b"")])
    while left:
        one, other, text = left.popleft()
        steps, others = mine.steps[one], wanted.steps[other]
        if bool(mine.accepting[one]) != wanted.accepting[other] or steps.keys() != others.keys():
            raise Refused(f"behind {text!r}, the automaton is not the expression's")
        for byte, state in steps.items():
            pair = state, others[byte]
            if pair not in seen:
                seen.add(pair)
                left.append((*pair, text + bytes([byte])))


def trial(yours: Any, seed: int) -> Trial:
    seconds, states = 0.0, 0
    fresh = again(yours)  # nothing that an earlier trial has kept is in it
    for expression in expressions(seed):
        start = time.process_time()  # of all threads
        automaton = fresh.dfa_of(expression)
        seconds += time.process_time() - start
        compare(automaton, dfa_of(expression))
        states += len(automaton.steps)
    return {"compiling": 1e3 * seconds, "states": states}


TASK = Open(
    goal="Compile the same automaton, in no more states, in half of p11's time or less.",
    counts="compiling",
    unit="ms for six expressions",
    reach=0.5,
    bounds={"states": 1.0},
    trial=trial,
    start=START,
    trials=7,
    clocked=True,
)
