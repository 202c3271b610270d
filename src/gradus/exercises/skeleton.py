"""The student's starting point: the reference with some functions' bodies cut out.

Only the bodies are removed. Signatures, docstrings, comments and everything else remain verbatim, and the
reference needs no markers: the syntax tree says where a body begins and ends. So a skeleton always matches its
reference.
"""

import ast
from collections.abc import Iterable, Iterator


def cut(source: str, names: Iterable[str], phase: str) -> str:
    """Replace the bodies of the functions called `names` by a NotImplementedError that names them.

    names: "function" or "Class.method". Raises KeyError for a function that does not exist.
    """
    found = functions(source)
    lines = source.splitlines(keepends=True)
    # from the last function up, so that earlier line numbers stay valid
    for name, function in sorted(((name, found[name]) for name in names), key=lambda pair: -pair[1].lineno):
        first, column, last = _body(function, lines)
        before = lines[first - 1][:column]
        lines[first - 1 : last] = [f'{before}raise NotImplementedError("{phase}: {name}")\n']
    return "".join(lines)


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(source: str) -> dict[str, Function]:
    """Find every function of the file by its qualified name. Raises SyntaxError if the file does not parse."""
    return dict(_functions(ast.parse(source).body, prefix=""))


def _functions(body: Iterable[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
    for node in body:
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


def unwritten(source: str, names: Iterable[str]) -> list[str]:
    """List the functions that are still as `cut` left them."""
    found = functions(source)
    return [name for name in names if name in found and _is_cut(found[name], name)]


def _is_cut(function: Function, name: str) -> bool:
    last = function.body[-1]
    if not isinstance(last, ast.Raise) or not isinstance(last.exc, ast.Call) or not last.exc.args:
        return False
    message = last.exc.args[0]
    return isinstance(message, ast.Constant) and str(message.value).endswith(f": {name}")


def _body(function: Function, lines: list[str]) -> tuple[int, int, int]:
    """Find the first line (from 1) and column of the body without its docstring, and the body's last line."""
    documented = ast.get_docstring(function, clean=False) is not None
    statements = function.body[1:] if documented else function.body
    first, column = statements[0].lineno, statements[0].col_offset
    if lines[first - 1][:column].strip():  # `def name(): return 1`
        return first, column, statements[-1].end_lineno or first
    floor = (function.body[0].end_lineno or 0) if documented else function.lineno
    while first - 1 > floor and lines[first - 2].strip().startswith("#"):  # comments that open the body belong to it
        first -= 1
    last = statements[-1].end_lineno or first
    while last < len(lines) and _is_comment(lines[last], deeper_than=function.col_offset):  # and comments that end it
        last += 1
    return first, column, last


def _is_comment(line: str, deeper_than: int) -> bool:
    text = line.lstrip()
    return text.startswith("#") and len(line) - len(text) > deeper_than
