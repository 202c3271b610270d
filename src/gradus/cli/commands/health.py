"""`gradus doctor`: describe this machine, check what works on it, and say how to fix the rest."""

from dataclasses import asdict

from gradus.cli import options, terminal

MARKS = {"ok": "✓", "note": "·", "warning": "!", "failed": "✗"}


def doctor(json: options.Json = False) -> int:
    """Check what works on this machine, and say how to fix the rest.

    Every check is really run. The exit code is 1 if a check fails that Gradus requires.

    Examples:

      gradus doctor
      gradus doctor --json > report.json    # to attach to a bug report
    """
    from gradus.doctor import examine

    report = examine()
    if json:
        terminal.print_json(asdict(report) | {"healthy": report.healthy})
    else:
        terminal.print_table(["hardware", ""], [[name, value] for name, value in report.hardware.items()])
        print()
        terminal.print_table(["version", ""], [[name, value] for name, value in report.versions.items()])
        print()
        terminal.print_table(
            ["check", "", "found", "what to do"],
            [[f.name, MARKS[f.status], f.detail, f.advice] for f in report.findings],
        )
    return 0 if report.healthy else 1
