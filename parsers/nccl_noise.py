"""Which NCCL lines are noise: ordered rules from data/nccl_rules.json.

WARN and ABORT are never noise, nor INFO that a `keep` rule finds; then the first `noise` rule names the
id; unknown text is kept. `closed` are the shapes of texts that can only end where they end (as far as
their transports are known), in the common language of RE2 and Python.
"""

import json
import re
from pathlib import Path
from typing import Any

RULES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "nccl_rules.json").read_text(encoding="utf-8"))

CLOSED: dict[str, str] = {rule["id"]: rule["re"] for rule in RULES["closed"]}

_KEEP = re.compile("|".join(f"(?:{rule['re']})" for rule in RULES["keep"]))
_NOISE = re.compile("|".join(f"(?P<{rule['id']}>{rule['re']})" for rule in RULES["noise"]))


def noise_id(message: str, level_raw: str) -> str | None:
    """Noise id of the text of one NCCL record; None when it is kept."""
    if level_raw in ("CALL", "TRACE"):
        return "N25"
    if level_raw != "INFO" or _KEEP.search(message):
        return None
    found = _NOISE.match(message)
    return found.lastgroup if found else None
