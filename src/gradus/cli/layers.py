"""Help in layers: `--help` shows the options that a first call needs, `--help-all` shows all."""

import typer
from typer.core import TyperCommand, TyperOption

ALL = "--help-all"


class Layered(TyperCommand):
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
