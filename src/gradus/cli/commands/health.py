"""`gradus doctor`: describe this machine, check what works on it, and say how to fix the rest; or examine a model."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from gradus.cli import options, terminal

if TYPE_CHECKING:
    from gradus.doctor.finding import Finding

MARKS = {"ok": "✓", "note": "·", "warning": "!", "failed": "✗"}


def doctor(
    model: Annotated[
        str | None,
        Argument(help="A folder, a config.json, a .gguf file, a hub id in its cache, or a shape; none: this machine."),
    ] = None,
    json: options.Json = False,
) -> int:
    """Check what works on this machine, and say how to fix the rest; or say whether a model would load.

    Every check of the machine is really run. The exit code is 1 if a check fails that Gradus
    requires. Of a model only the configuration and the tokenizer are read, and nothing is
    downloaded: the exit code is 1 if it would not load, and every reason has a line.

    Examples:

      gradus doctor
      gradus doctor --json > report.json    # to attach to a bug report
      gradus doctor ./config.json           # would this model load, and what does it cost?
      gradus doctor random:smollm3-3b
    """
    if model is not None:
        return _examine(model, json)
    from gradus.doctor.machine import examine

    report = examine()
    if json:
        terminal.print_json(asdict(report) | {"healthy": report.healthy})
    else:
        terminal.print_table(["hardware", ""], [[name, value] for name, value in report.hardware.items()])
        print()
        terminal.print_table(["version", ""], [[name, value] for name, value in report.versions.items()])
        print()
        _print(report.findings)
    return 0 if report.healthy else 1


def _examine(model: str, json: bool) -> int:
    from gradus.doctor.finding import FAILED
    from gradus.doctor.model import examine_model

    findings = examine_model(model)
    loads = all(finding.status != FAILED for finding in findings)
    if json:
        terminal.print_json({"model": model, "loads": loads, "findings": [asdict(finding) for finding in findings]})
    else:
        _print(findings)
    return 0 if loads else 1


def _print(findings: "Sequence[Finding]") -> None:
    terminal.print_table(
        ["check", "", "found", "what to do"],
        [[each.name, MARKS[each.status], each.detail, each.advice] for each in findings],
    )
