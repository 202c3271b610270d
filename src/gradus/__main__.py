"""`python -m gradus` is the same command as `gradus`, which begins here too."""

import sys


def main() -> int:
    """Run the command, and return the exit code. Ctrl-C ends it quietly even while it is being imported."""
    try:
        from gradus.cli import main as command

        return command()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
