"""The log, on stderr, as text or as JSON. No line holds a prompt, an answer or an API key."""

import json
import logging
import sys
import time
from typing import Any

from gradus.server.config import ServerConfig

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """Formats a line as an object. A record's `fields` (see `gradus.server.http.record`) become its members."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        content: dict[str, Any] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, "fields", None)
        content |= {"message": record.getMessage()} if fields is None else {"event": "request", **fields}
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False, default=str)


def set_up(config: ServerConfig) -> None:
    """Send all lines to stderr: uvicorn's own only when debugging, and its access log, which has URLs, never."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if config.log_format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler])
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel("DEBUG" if config.log_level == "debug" else "WARNING")
