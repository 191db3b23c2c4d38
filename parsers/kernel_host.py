"""Kernel text about the host: memory, stuck tasks, crashes, storage, network file systems, lost log lines.

    oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0-1,oom_memcg=/a,task_memcg=/a/b,task=…
    INFO: task kworker/u8:3:1177 blocked for more than 120 seconds.

Sources: mm/oom_kill.c, kernel/hung_task.c, kernel/watchdog.c, kernel/rcu, drivers/nvme and the file systems of
Linux 3.10 to 6.17, Lustre 2.10 to 2.16. A process name may hold colons and brackets: it ends at the last one.
"""

import re

from parsers.kernel_rules import Fields, Rule, rule
from parsers.slurm_ids import cgroup_fields


def _oom(found: "re.Match[str]", fields: Fields, flags: set[str]) -> None:  # noqa: ARG001 - Rule.read
    if found["_constraint"]:
        fields["oom_scope"] = "memcg" if found["_constraint"] == "MEMCG" else "global"
    if cgroup := fields.get("task_cgroup") or fields.get("oom_cgroup"):
        fields.update(cgroup_fields(cgroup))


def _killed(found: "re.Match[str]", fields: Fields, flags: set[str]) -> None:  # noqa: ARG001 - Rule.read
    if found["_scope"]:
        fields["oom_scope"] = "memcg" if found["_scope"].startswith("Memory cgroup") else "global"
    if uid := re.search(r"\bUID[: ](\d{1,10})\b", found[0], re.ASCII):
        fields["uid"] = int(uid[1])
    if rss := re.search(r"\banon-rss:(\d{1,18})kB", found["_sizes"], re.ASCII):
        fields["anon_rss_kb"] = int(rss[1])


def _lustre(found: "re.Match[str]", fields: Fields, flags: set[str]) -> None:  # noqa: ARG001 - Rule.read
    text = found.string
    for name, pattern in _LUSTRE.items():
        if match := pattern.search(text):
            fields[name] = int(match[1]) if name == "return_code" else match[1]
    if place := _LUSTRE_PLACE.search(text):
        fields |= {"pid": int(place[1]), "src_file": place[2], "src_line": int(place[3]), "src_func": place[4]}
    if _LUSTRE_RECOVERED.search(text):
        fields["event"] = None


_LUSTRE = {
    "lustre_target": re.compile(r"\b([\w.]+-(?:MDT|OST)[0-9a-fA-F]{4})\b", re.ASCII),
    "peer": re.compile(r"\b([\w.:-]+@(?:o2ib|tcp|gni|kfi|efa|lo)\d*)\b", re.ASCII),
    "return_code": re.compile(r"\brc(?: = |=| )(-?\d{1,6})\b(?!/)", re.ASCII),
}
# `4242:0:(client.c:2289:ptlrpc_expire_one_request())`: pid, extra pid, place
_LUSTRE_PLACE = re.compile(r"\b(\d{1,10}):\d+:\((\w[\w.-]*\.c):(\d{1,6}):(\w+)\(\)\)", re.ASCII)
_LUSTRE_RECOVERED = re.compile(r"Connection restored to|recovery complete", re.ASCII)

TASKS: tuple[Rule, ...] = (
    rule("oom_invoked", "invoked oom-killer", r"(?P<process>\S.*?) invoked oom-killer: "),
    rule(
        "oom_kill",
        "oom-kill:constraint=",
        r"oom-kill:constraint=CONSTRAINT_(?P<_constraint>\w+),(?:.*?\boom_memcg=(?P<oom_cgroup>.*?)(?=,task_memcg=|,task=|$))?"
        r"(?:.*?\btask_memcg=(?P<task_cgroup>.*?)(?=,task=|$))?(?:.*?,task=(?P<process>.*),pid=(?P<pid>\d+)(?:,uid=(?P<uid>\d+))?)?",
        _oom,
    ),
    rule(
        "oom_kill",
        "ill process |illed process ",
        r"(?:(?P<_scope>Memory cgroup out of memory|Out of memory)\b.*?: )?Kill(?:ed)? process (?P<pid>\d+)"
        r"(?:, UID \d+,)? \((?P<process>.+?)\)(?P<_sizes>,? (?:total-vm|score |UID|in same|sharing).*|\s*$)",
        _killed,
    ),
    rule(
        "oom_kill",
        "killed as a result of limit of ",
        r"Task in (?P<task_cgroup>\S+) killed as a result of limit of (?P<oom_cgroup>\S+)(?P<_constraint>)",
        _oom,
        oom_scope="memcg",
    ),
    rule(
        "oom_reaped",
        "oom_reaper: reaped process",
        r"oom_reaper: reaped process (?P<pid>\d+) \((?P<process>.+?)\)(?:, now anon-rss:(?P<anon_rss_kb>\d+)kB|,|$)",
    ),
    rule(
        "hung_task",
        "blocked for more than|blocked in I/O wait for more than",
        r"INFO: task (?P<process>.+):(?P<pid>\d+) blocked (?:in I/O wait )?for more than (?P<seconds>\d+) seconds",
    ),
    rule(
        "hung_task",
        "likely owned by",
        r"INFO: task (?P<process>.+?):(?P<pid>\d+)(?: <\w+>)? (?:is )?blocked on an? .*likely owned by",
    ),
    rule("log_suppressed", "Future hung task reports are suppressed", r"Future hung task reports are suppressed"),
    rule(
        "soft_lockup",
        "soft lockup - CPU#",
        r"soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<seconds>\d+)s!(?: \[(?P<process>.+):(?P<pid>\d+)\])?",
    ),
    rule("hard_lockup", "hard LOCKUP on cpu", r"hard LOCKUP on cpu (?P<cpu>\d+)"),
    rule(
        "rcu_stall",
        "self-detected stall on CPU",
        r"rcu\w* self-detected (?:expedited )?stall on CPU(?: \{ *(?P<cpu>\d+))?",
    ),
    rule("rcu_stall", "stalls on CPUs/tasks", r"rcu\w* detected (?:expedited )?stalls on CPUs/tasks"),
    rule("rcu_stall", "kthread starved for", r"rcu\w* kthread starved for \d+ jiffies"),
    rule("segfault", "segfault at ", r"(?P<process>[^\s].*)\[(?P<pid>\d+)\]: segfault at "),
    rule(
        "segfault",
        "traps: ",
        r"traps: (?P<process>.+)\[(?P<pid>\d+)\]:? "
        r"(?:general protection|trap (?:divide error|invalid opcode|stack segment|bounds))",
    ),
    rule("kernel_panic", "Kernel panic - not syncing", r"(?<!end )Kernel panic - not syncing:? ?(?P<reason>[^\n]*)"),
    rule(
        None,
        " Comm: ",
        r"CPU: (?P<cpu>\d+) (?:UID: (?P<uid>\d+) )?PID: (?P<pid>\d+) "
        r"Comm: (?P<process>.+?)(?= (?:Not tainted|Tainted:|Kdump:)|$)",
    ),
)

STORAGE: tuple[Rule, ...] = (
    rule(
        "nvme_timeout",
        " timeout, ",
        r"nvme (?P<nvme_controller>nvme\d+): I/O .*\bQID (?P<qid>\d+) timeout, (?P<io_outcome>\w+)",
    ),
    rule(
        "nvme_timeout",
        "controller is down",
        r"nvme (?P<nvme_controller>nvme\d+): controller is down; (?P<io_outcome>will reset)?",
    ),
    rule(
        "io_error",
        "Removing after probe failure|Disabling device after reset failure|Device not ready; aborting",
        r"nvme (?P<nvme_controller>nvme\d+): (?:Removing after|Disabling device|Device not ready)",
    ),
    rule(None, "nvme nvme", r"nvme (?P<nvme_controller>nvme\d+): "),
    rule("io_error", "I/O Error (sct ", r"(?P<nvme_controller>nvme\d+)\w*: .*I/O Error \(sct "),
    rule("io_error", "failing I/O", r"block (?P<nvme_controller>nvme\d+)\w*: no .*failing I/O"),
    rule("filesystem_error", "I/O error", r"(?:XFS|BTRFS|JBD2|EXT4-fs)\b.*I/O error"),
    rule("io_error", "I/O error", r"I/O error(?:, dev| on dev(?:ice)?) (?P<nvme_controller>nvme\d+)?"),
    rule(
        "io_error",
        "critical ",
        r"critical (?:medium|target|space allocation|nexus) error, dev (?P<nvme_controller>nvme\d+)?",
    ),
    rule(
        "filesystem_error",
        "EXT4-fs |EXT3-fs |EXT2-fs ",
        r"EXT[234]-fs (?:error|\((?P<_device>\S+)\): (?:Remounting filesystem read-only|error|failed to convert))"
        r"(?: \(device [^)]*\)(?: in)?:? (?P<src_func>\w+):(?P<src_line>\d+):(?:.*?\bcomm (?P<process>.+?): )?)?",
    ),
    rule(
        "filesystem_error",
        "XFS (",
        r"XFS \([^)]*\): .*(?:[Ee]rror|shut ?down|[Cc]orrupt|failed|xfs_do_force_shutdown)",
    ),
    rule("filesystem_error", "BTRFS", r"BTRFS:? (?:error|critical)"),
    rule("filesystem_error", "borting journal", r"Aborting journal"),
    rule("filesystem_error", "md/raid", r"md/raid\w*:\w+: (?:Disk failure|.*(?:[Ff]ailed|not enough|[Cc]annot))"),
    rule("filesystem_error", "attempt to access beyond end of device", r"attempt to access beyond end of device"),
    rule("filesystem_error", "VFS: file-max limit", r"VFS: file-max limit \d+ reached"),
    rule("nfs_unresponsive", "not responding, ", r"(?:nfs|lockd|rpcbind): server (?P<server>\S+) not responding, "),
    rule("nfs_recovered", ": server ", r"(?:nfs|lockd|rpcbind): server (?P<server>\S+) OK\b"),
    rule("filesystem_error", "NFS: ", r"NFS: (?:(?P<src_func>nfs\w+): )?.*(?:failed|error)"),
    rule("log_suppressed", "Skipped ", r"Skipped (?P<suppressed>\d+) previous similar message"),
    rule("lustre_error", "LustreError: |LNetError: ", r"(?:LustreError|LNetError): ", _lustre),
    rule(
        "lustre_error",
        "Lustre: |LNet: ",
        r"(?:Lustre|LNet): .*(?:was lost|evicted|timed out|Timed out|Connection restored|network error|failed)",
        _lustre,
    ),
)

LOSS: tuple[Rule, ...] = (
    rule("log_loss", "kernel messages", r"Missed (?P<lost>\d+) kernel messages"),
    rule("log_loss", "/dev/kmsg buffer overrun", r"/dev/kmsg buffer overrun"),
    rule("log_loss", "Suppressed ", r"Suppressed (?P<lost>\d+) messages from "),
    rule("log_loss", "printk messages dropped", r"(?P<lost>\d+) printk messages dropped"),
    rule("log_suppressed", "suppressed", r"\b(?P<suppressed>\d+) (?:callbacks|messages) suppressed"),
)
