"""What makes one fault of several kernel lines, seen from one line: whose fault it is, and how often it happened.

A function of the record alone, so that neither order nor batches matter. What needs several lines is left to
counting: lines of one key within `fold_s` (the lines of an Xid 13, the burst of an Xid 45, kmsg and syslog).
"""

from typing import NamedTuple

from flows.detect.episodes import CARRIERS
from parsers.gpu_catalogue import sxid_meaning, xid_meaning

# Fields of a record that decide; all as text, empty where not known.
INPUTS = ("event", "xid", "sxid", "severity", "caused_by_xid", "repeat", "suppressed", "kind", "message_head")

# Events that count as others once it is known what they belong to.
BELONGS = {"log_suppressed": ("lustre_error",)}

LOST_XID = "79"  # what "GPU has fallen off the bus" is when a number is given (leptonai/gpud#1209)
HEAD = 12  # characters of the message that tell Lustre's "Skipped" lines from others
_LUSTRE = ("LustreError:", "Lustre: ", "LNetError: ", "LNet: ")

# Only these kinds' daemons know of these events; in any other file anybody may have written the line
# (a job's notice stands in slurmd.log: SchedMD/slurm, slurmstepd/req.c, _handle_notify_job).
TRUSTED = {
    event: frozenset({"slurmctld"})
    for event in (
        "node_not_responding", "node_down", "node_responding", "node_returned", "node_reason", "node_state",
        "node_invalid", "node_rebooted", "node_resume_timeout", "node_power",
    )
}  # fmt: skip


class Folded(NamedTuple):
    """How a record counts. `weight`: occurrences it stands for."""

    event: str
    xid: str
    severity: str
    meaning: str
    weight: int
    follower: bool


def fold(
    event: str,
    xid: str,
    sxid: str,
    severity: str,
    caused_by: str,
    repeat: str,
    suppressed: str,
    kind: str,
    head: str,
) -> Folded:
    """How a record counts.

    - Xid 45 "caused by previous Xid N" follows the fault N of the same GPU.
    - A GPU that has fallen off the bus without a number counts as Xid 79.
    - Lines with the flag `companion` follow theirs (the caller sees to it).
    - "Skipped 24 previous similar messages" is 24 more of the Lustre errors of its node.
    - "message repeated 3 times: […]" of a syslog daemon stands for 3, Ray's "[repeated 7x across cluster]" for the
      line itself and 7 more.
    """
    weight, follower = 1, False
    if event == "gpu_lost":
        xid = LOST_XID
    elif event == "gpu_xid" and xid == "45" and caused_by:
        xid, follower = caused_by, True
        known = xid_meaning(int(caused_by))
        severity = known.severity if known else severity
    elif event == "log_suppressed" and suppressed and head.startswith(_LUSTRE):
        event, weight = "lustre_error", int(suppressed)
    if repeat:
        weight = int(repeat) + (kind not in CARRIERS)
    meaning = xid_meaning(int(xid)) if xid else sxid_meaning(int(sxid)) if sxid else None
    return Folded(event, xid, severity, meaning.name if meaning else "", weight, follower)
