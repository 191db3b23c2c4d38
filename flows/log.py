"""Our own log: one JSON object per event on standard error, never one per record."""

import json
import logging
import sys
import time
from typing import TextIO

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """`{"ts", "level", "event", …}`; what is passed as `extra` becomes keys."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "ts": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        event |= {key: value for key, value in vars(record).items() if key not in _PLAIN}
        if record.exc_info and record.exc_info[1] is not None:
            event["error"] = repr(record.exc_info[1])
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str, ensure_ascii=False)


def setup(level: str = "INFO", stream: TextIO | None = None) -> logging.Logger:
    """Send the `tailrace` loggers to `stream`, or else to standard error, as JSON lines."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("tailrace")
    logger.handlers = [handler]
    logger.setLevel(level)
    logger.propagate = False
    return logger
