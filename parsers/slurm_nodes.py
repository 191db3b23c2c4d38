"""Rules for nodes, power saving, generic resources and daemons. Sample texts are in tests/parsers/test_slurm.py.

Source: SchedMD/slurm, branches 16.05 to 26.11: src/slurmctld/{node_mgr,ping_nodes,power_save,backup,controller}.c,
src/interfaces/gres.c (src/common/gres.c up to 22.05), src/slurmd/slurmd/slurmd.c.
"""

from parsers.slurm_rules import controller_only, rule

_NODE = r"\b[Nn]odes? (?P<nodes>{H}) "
_CALLER = r"^(?:[^\s:]+: )*"
_SETTING = _CALLER + r"[Ss]etting nodes? (?P<nodes>{H}) state to "
_LOWER = r"(?:gres/)?(?P<gres>\S+) count .*\((?P<gres_found>{N}) < (?P<gres_configured>{N})\)"
_REASON = rf"(?P<reason>(?:{_LOWER})?.*)"
_COUNT = r"\((?P<gres_found>{N}) != (?P<gres_configured>{N})\)"
_GRES = r"gres/(?P<gres>\w+):? [Cc]ount "

NODE_RULES = (
    *controller_only(
        # Free text of operators comes first: nothing that follows in the line is taken for something else.
        rule("node_reason", " reason set to: ", _NODE + r"reason set to: (?P<reason>.*)"),
        rule("node_invalid", " state to INVAL", _SETTING + rf"(?P<state>INVAL)(?: with reason:{_REASON})?"),
        rule("node_state", "etting node", _SETTING + r"(?P<state>[A-Z]+\S*)(?: with reason:(?P<reason>.*))?"),
        rule("node_state", " state set to ", _NODE + r"state set to (?P<state>\S+)"),
        rule("controller_failover", "taking over", _CALLER + r"[A-Za-z]*[Cc]ontrol(?:ler|Machine)\S* .*taking over"),
        rule("node_down", " not responding", _NODE + r"not responding, setting DOWN", action="set_node_down"),
        rule("node_not_responding", " not responding", _NODE + r"not responding"),
        rule("node_responding", " now responding", _NODE + r"now responding"),
        rule("node_returned", " returned to service", _NODE + r"returned to service"),
        rule("node_responding", "node_did_resp", r"^node_did_resp:? (?:node )?(?P<nodes>{H})$"),
        rule(
            "node_rebooted", "unexpectedly rebooted",
            _NODE + r"unexpectedly rebooted(?: boot_time=(?P<boot_time>\d{1,11}))?"
            r"(?: last response=(?P<last_response>\d{1,11}))?",
        ),
        rule(
            "node_resume_timeout", "ResumeTimeout(",
            _NODE + r"not resumed by ResumeTimeout\((?P<timeout_s>{N})\)", action="set_node_down",
        ),
        rule("node_power", "powering ", r"\bpowering (?:up|down) nodes? (?P<nodes>{H})$"),
        rule("node_power", "ing nodes ", r"\b(?:suspending|resuming|waking) nodes (?P<nodes>{H})"),
        rule(None, "reboot request queued", r"reboot request queued for nodes? (?P<nodes>{H})"),
        rule("gres_mismatch", "ount changed on node", _GRES + r"changed on node (?P<nodes>{H}) " + _COUNT),
        rule("gres_mismatch", "ount changed on node", _GRES + r"changed on node (?P<nodes>{H}) to (?P<gres_found>{N})"),
        rule(
            "gres_mismatch", "inconsistent with slurmctld",
            _GRES + r"on node (?P<nodes>{H}) inconsistent with slurmctld count " + _COUNT,
        ),
        rule(None, "underflow", r"gres/(?P<gres>\w+): job \S+ dealloc node (?P<nodes>{H}) "),
    ),
    rule(
        "gres_config", "Gres Name=",
        r"^Gres Name=(?P<gres>\S+)(?=(?:.* Type=(?P<gres_type>\S+))?)(?=(?:.* Count=(?P<gres_count>{N}))?)"
        r"(?=(?:.* File=(?P<gres_file>\S+))?)(?=(?:.* Links=(?P<gres_links>\S+))?)",
    ),
    rule("daemon_started", "started", r"^slurm(?:ctld|d|dbd|restd)\S* (?:version \S+ )?started\b"),
)  # fmt: skip
