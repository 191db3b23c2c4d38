"""Recorded cases of parsing: kind, options, input, and the records that are expected of it."""

import base64
import json
from pathlib import Path
from typing import Any

_LINES = [
    line for file in sorted((Path(__file__).parent / "cases").glob("*.jsonl")) for line in file.open(encoding="utf-8")
]
# The other files of the directory hold scenarios in words and cascades over several nodes.
CASES: list[dict[str, Any]] = [case for case in map(json.loads, _LINES) if "kind" in case]


def data(case: dict[str, Any]) -> bytes:
    """The file that a case is about."""
    return base64.b64decode(case["input_b64"]) if "input_b64" in case else case["input"].encode()
