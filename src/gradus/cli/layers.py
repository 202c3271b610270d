"""Help at once, and in layers: `--help` shows the options that a first call needs, `--help-all` shows all."""

import sys
from collections.abc import Iterator
from types import ModuleType

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

ALL = "--help-all"

UNUSED = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
"""Modules that typer imports for help and our pages don't need: markup is rich's, and typer formats no traceback."""


class Group(TyperGroup):
    """The commands, with an overview that appears at once."""

    def get_help(self, ctx: typer.Context) -> str:  # type: ignore[override]
        import_help_pages()
        return super().get_help(ctx)


class Command(TyperCommand):
    """A command whose help appears at once, and whose lists may follow one option: `--served-model-name a b`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if not any(isinstance(one, TyperArgument) for one in self.params):  # else a value may be the argument
            args = list(self._repeated(args))
        return super().parse_args(ctx, args)

    def _repeated(self, args: list[str]) -> Iterator[str]:
        """Yield the arguments, with the option of a list before each of its values."""
        lists = {flag for one in self.params if isinstance(one, TyperOption) and one.multiple for flag in one.opts}
        option, values = "", 0
        for arg in args:
            if arg.startswith("-"):
                option, values = arg if arg in lists else "", 0
            else:
                if option and values:
                    yield option
                values += 1
            yield arg

    def get_help(self, ctx: typer.Context) -> str:  # type: ignore[override]
        import_help_pages()
        return super().get_help(ctx)


def import_help_pages() -> None:
    """Import typer's module for help pages without the UNUSED modules, which take as long to import as all the rest.

    It finds empty modules in their places. These are removed again, so that other importers get the real ones.
    """
    absent = {name: kind for name, kind in UNUSED.items() if name not in sys.modules}
    for name, kind in absent.items():
        empty = ModuleType(name)
        setattr(empty, kind, None)
        sys.modules[name] = empty
    try:
        import typer.rich_utils  # noqa: F401
    finally:
        for name in absent:
            del sys.modules[name]


class Layered(Command):
    """A command that shows its usual options for `--help`, and all for `--help-all`."""

    usual: frozenset[str] = frozenset()

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if ALL in args[: args.index("--") if "--" in args else None]:
            print(super().get_help(ctx))
            ctx.exit()
        return super().parse_args(ctx, args)

    def get_help(self, ctx: typer.Context) -> str:  # type: ignore[override]
        rest = [one for one in self.params if isinstance(one, TyperOption) and one.name not in self.usual]
        for one in rest:
            one.hidden = True
        self.epilog = f"{len(rest)} more options: {ctx.command_path} {ALL}"
        try:
            return super().get_help(ctx)
        finally:
            self.epilog = None
            for one in rest:
                one.hidden = False


def layered(*usual: str) -> type[Layered]:
    """Make a class of commands that shows these options first. usual: names of parameters."""
    return type("Layered", (Layered,), {"usual": frozenset(usual)})
