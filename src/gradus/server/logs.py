"""One log format, on stderr, for both processes of a server."""

import logging

QUIET = ("uvicorn.error", "uvicorn.access", "asyncio")  # their messages appear only when debugging


def set_up(level: str) -> None:
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in QUIET:
        logging.getLogger(name).setLevel("DEBUG" if level == "debug" else "WARNING")
