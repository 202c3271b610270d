"""The options of `gradus serve`, which commands in images and units are compared with."""

from functools import cache

import typer

from gradus.cli import app


@cache
def options():
    """{option: whether it takes a value}."""
    command = typer.main.get_command(app).commands["serve"]
    return {name: not each.is_flag for each in command.params for name in (*each.opts, *each.secondary_opts)}


def unknown(arguments):
    """Arguments that `gradus serve` would refuse: no option of its own, or a value without one."""
    wrong, at, known = [], 0, options()
    while at < len(arguments):
        name, _, value = arguments[at].partition("=")
        if name not in known:
            wrong.append(arguments[at])
        elif known[name] and not value:
            at += 1
            if at >= len(arguments) or arguments[at].startswith("--"):
                wrong.append(name)
                continue
        at += 1
    return wrong
