"""Rules for jobs, steps, tasks, prolog and epilog. Sample texts are in tests/parsers/test_slurm.py.

Source: SchedMD/slurm, branches 16.05 to 26.11: src/slurmctld/{job_mgr,job_scheduler,proc_req,node_mgr}.c,
src/slurmd/slurmd/req.c, src/slurmd/slurmstepd/{req,mgr,step_terminate_monitor}.c, src/plugins/launch/slurm,
src/srun/{launch,allocate,task_state}.c, src/api/step_launch.c, src/salloc/salloc.c,
src/plugins/{prep/script,task/cgroup,jobacct_gather}. Order matters: the first rule that fits wins. Patterns
that look ahead with `.*` are anchored, so that no line, however long or forged, costs more than linear time.
"""

from parsers.slurm_rules import controller_only, rule

# `JOB 70011`, `STEP 70011.0`, `STEP 70020.0+1`, `EXTERN STEP FOR 70011`. Up to 2.5 no node was named.
_BANNER = (
    r"^\*\*\* (?:JOB (?P<batch_job>\d{1,10})|(?P<special>EXTERN|INTERACTIVE) STEP FOR (?P<special_job>\d{1,10})\S*|"
    r"STEP (?:StepId=)?(?P<step_job>\d{1,10})\.(?P<step_id>\w+)(?:\+(?P<het_component>{S}))?)"
    r"(?: SLUID=\S+)?(?: STEPD TERMINATED)?(?: ON (?P<nodes>{H}))?"
)
# The time may have blanks in it (SLURM_TIME_FORMAT=relative). Only the signal's cause is written with a small `to`.
_CANCELLED = _BANNER + r" CANCELLED AT .*? DUE [Tt][Oo] "
_CALLER = r"^(?:[^\s:]+: )*"  # `_slurm_rpc_submit_batch_job: `, `sched/backfill: _start_job: `
_DONE = r"^_?job_complete: "
_STATUS = r"-?(?P<exit_code>{S}):(?P<signal>{S})"
# How run_script() and run_command() report a script, by a literal that stands in each form.
_SCRIPT_ENDS = {
    " failed: rc:": r" failed: rc:(?P<exit_code>-?{S})",
    "killed by signal ": r" (?:failed: )?killed by signal (?P<signal>{S})",
    "didn't run: status:": r" didn't run: status:-?\d+ reason:(?P<reason>.*)",
}
_SCRIPTS = {
    "prolog_failed": r"^(?:[Tt]ask_?[Pp]rolog|(?:spank )?prolog)",
    "epilog_failed": r"^(?:[Tt]ask_?[Ee]pilog|(?:spank )?epilog)",
    "health_check_failed": r"^health_check",
}
_TASK = r"^task (?P<task>{S}) \((?P<pid>{S})\)"
# bit_fmt() of the tasks is cut at 2048 characters; the list is then malformed. `Unknown` stands for the nodes of steps
# with more than 100,000 tasks.
_TASKS = r"(?P<tasks>[\d,-]+|\[[\d,-]+\])"
_ON_NODES = r"^(?:launch/slurm: |_task_finish: )*(?:Unknown|(?P<nodes>{H})): (?:StepId=\S+ )?"
_SRUN = rf"{_ON_NODES}tasks? {_TASKS}: "
_LAUNCH = (
    r"^Task launch (?:for (?:StepId=\S+|(?P<job_id>\d{1,10})\.(?P<step_id>\w+)) )?failed on node (?P<nodes>{H})"
    r"(?:\(\d+\))?: "
)

_CONTROLLER = controller_only(
    rule("job_submit", "_slurm_rpc_submit_batch_", r"^_slurm_rpc_submit_batch_\w*job:? Job"),
    # Interactive and not started at once.
    rule("job_submit", "NodeList=(null)", r"^_slurm_rpc_\w*allocate\w*:? Job\S+ .*NodeList=\(null\)"),
    rule("job_allocate", "NodeList=", _CALLER + r"(?:Allocate|_slurm_rpc_\w*allocate\w*:?) Job\S+.* NodeList="),
    rule("job_start", "Started Job", _CALLER + r"Started Job\S+ in (?P<partition>\S+) on (?P<nodes>{H})"),
    rule("job_exit", "WEXITSTATUS ", r"WEXITSTATUS (?P<exit_code>{S})"),
    rule("job_exit", "WTERMSIG ", r"WTERMSIG (?P<signal>{S})"),
    rule("job_oom", " OOM failure", _DONE + r".* OOM failure", cause="oom"),
    rule("job_cancelled", " cancelled ", _DONE + r".* cancelled by node failure", cause="node_failure"),
    rule("job_cancelled", " cancelled ", _DONE + r".* cancelled (?:by|from) interactive user", cause="user"),
    rule("job_requeue", "requeue ", r"^requeue job .*due to failure of node (?P<nodes>{H})", cause="node_failure"),
    rule("job_requeue", "requeue ", _DONE + r"requeue Job.* due to node failure", cause="node_failure"),
    rule("job_requeue", "requeue ", _DONE + r"requeue Job.* per user/system request", cause="user"),
    rule("job_requeue", "requeue ", r"^(?:_?job_complete: )?requeue (?:job )?Job"),
    rule("job_done", "job_complete: ", _DONE + r".*\bdone$"),
    rule("job_timeout", "ime limit exhausted for", r"^Time limit exhausted for ", cause="time_limit"),
    rule("job_cancel_request", "REQUEST_KILL_JOB", _CALLER + r"REQUEST_KILL_JOB .*\buid (?P<uid>\d{1,10})"),
    rule("job_killed", " on failed node ", r"^Killing [Jj]ob.* on failed node (?P<nodes>{H})", cause="node_failure"),
    # Old versions count nodes: `missing from node 0`.
    rule("job_lost", " missing from ", r"^Batch [Jj]ob.* missing from (?:batch node (?P<nodes>{H})|node )"),
    rule("prolog_failed", "PrologSlurmctld exit", rf"PrologSlurmctld exit status {_STATUS}"),
    rule(
        "prolog_failed", "env setup failure on",
        r"Prolog or job env setup failure on node (?P<nodes>{H}), draining", action="drain_node",
    ),
    rule("prolog_failed", "Prolog failed on node", r"Prolog failed on node (?P<nodes>{H})"),
    rule("epilog_failed", "EpilogSlurmctld exit", rf"EpilogSlurmctld exit status {_STATUS}"),
    rule("epilog_failed", "pilog error on ", r"[Ee]pilog error on (?P<nodes>{H}), drain", action="drain_node"),
    rule(
        "epilog_failed", "pilog failure on host",
        r"[Ee]pilog failure on host (?P<nodes>{H}), setting DOWN", action="set_node_down",
    ),
)  # fmt: skip

JOB_RULES = (
    *_CONTROLLER,
    # --- slurmd and slurmstepd
    rule("batch_launch", "Launching batch", r"^Launching batch [Jj]ob.* for UID (?P<uid>\d{1,10})"),
    rule(
        "step_launch", "launch task",
        r"^launch tasks? .*request from UID:(?P<uid>\d{1,10}) GID:(?P<gid>\d{1,10}) "
        r"HOST:(?P<peer>\S+) PORT:(?P<peer_port>{S})",
    ),
    rule(
        "step_launch", "launch task",
        r"^launch tasks? .*request from (?P<uid>\d{1,10})\.(?P<gid>\d{1,10})@(?P<peer>\S+) \(port (?P<peer_port>{S})\)",
    ),
    rule("step_done", "done with ", r"^done with (?:step|job)\b(?:.*?\bstep_rc: (?P<wait_status>{S}))?"),
    rule("step_done", "completed with slurm_rc", r"completed with slurm_rc = -?\d+, job_rc = (?P<wait_status>{S})"),
    *(rule(event, word, head + end) for event, head in _SCRIPTS.items() for word, end in _SCRIPT_ENDS.items()),
    rule("prolog_failed", "rolog failed status=", rf"prolog failed status={_STATUS}"),
    rule("prolog_failed", "rolog failed status=", r"^(?:TaskProlog|--task-prolog) failed status="),
    rule("epilog_failed", "pilog failed status=", rf"epilog failed status={_STATUS}"),
    rule("unkillable_step", "STEPD TERMINATED", _BANNER + r" AT .* DUE TO JOB NOT "),
    rule("job_cancelled", " CANCELLED AT ", _CANCELLED + r"TIME LIMIT", cause="time_limit"),
    rule("job_cancelled", " CANCELLED AT ", _CANCELLED + r"PREEMPTION", cause="preemption"),
    rule("job_cancelled", " CANCELLED AT ", _CANCELLED + r"NODE FAILURE", cause="node_failure"),
    rule("job_cancelled", " CANCELLED AT ", _CANCELLED + r"JOB REQUEUE", cause="requeue"),
    rule("job_cancelled", " CANCELLED AT ", _CANCELLED + r"TASK FAILURE", cause="task_failure"),
    rule("job_cancelled", " CANCELLED AT ", _CANCELLED + r"SIGNAL (?P<signal_name>.*?) \*\*\*", cause="signal"),
    rule("job_cancelled", " CANCELLED AT ", _BANNER + r" CANCELLED AT "),
    rule("job_failed", " FAILED (", _BANNER + r" FAILED \("),
    rule(None, "*** REASON: ", r"^\*\*\* REASON: (?P<reason>.*) \*\*\*"),
    rule("step_oom", "kill event", r"Detected (?P<oom_count>{S}) oom[-_]kill event", cause="oom"),
    rule(
        "step_oom", "memory limit",
        r"exceeded (?:virtual )?memory limit \((?P<memory_used_bytes>{N}) ?> ?(?P<memory_limit_bytes>{N})\)",
        cause="oom",
    ),
    rule("step_oom", "memory limit", r"exceeded (?P<limit_kb>{N}) KB (?:virtual )?memory limit", cause="oom"),
    rule("step_oom", "memory limit", r"^Exceeded (?:step|job) memory limit", cause="oom"),
    rule("task_exit", "exited with exit code", _TASK + r" exited with exit code (?P<exit_code>{S})"),
    rule(
        "task_exit", "Killed by signal",
        _TASK + r" exited\. Killed by signal (?P<signal>{S})(?P<core> \(core dumped\))?",
    ),
    rule("task_exit", "Out Of Memory", _TASK + r".*Out Of Memory", cause="oom"),
    # --- srun
    rule("task_exit", ": task", _SRUN + r"Exited with exit code (?P<exit_code>{S})"),
    rule("task_exit", ": task", _SRUN + r"Out Of Memory", cause="oom"),
    rule("task_exit", ": task", _SRUN + r"Completed"),
    rule("task_exit", ": task", _SRUN + r"(?P<signal_name>[A-Z][^()]*?)(?P<core> \(core dumped\))?$"),
    rule("task_launch_failed", "ask launch ", _LAUNCH + r"(?P<reason>.*[Pp]rolog fail.*)", cause="prolog_failed"),
    rule("task_launch_failed", "ask launch ", _LAUNCH + r"(?P<reason>.*)"),
    rule("task_launch_failed", " launch failed: ", r"^task (?P<task>{S}) launch failed: (?P<reason>.*)"),
    rule("task_launch_failed", "pplication launch ", r"^Application launch (?:add )?failed: (?P<reason>.*)"),
    rule("prolog_failed", "Prolog hung on node", r"^Prolog hung on node (?P<nodes>{H})"),
    rule("node_failure", "Node failure on", r"^Node failure on (?P<nodes>{H})"),
    rule("step_abort_wait", "ob step aborted", r"^Job step aborted(?:: Waiting up to (?P<seconds>{S}) sec)?"),
    rule("step_terminating", "Terminat", r"^(?:Force )?Terminat(?:ing|ed) (?:StepId=|JobId=|job )"),
    rule("step_terminating", "forcing job termination", r"^forcing job termination"),
    rule(None, "unable to claim reserved port", rf"{_ON_NODES}tasks {_TASKS} unable to claim"),
    rule(None, "launching ", rf"^launching \S+ on host (?P<nodes>{{H}}), \d+ tasks: {_TASKS}"),
    rule(None, " tasks started", r"^Node (?P<nodes>{H}), \d+ tasks started"),
    rule(None, "StepId=", rf"^StepId=\S+ tasks? {_TASKS}: [a-z ]+$"),
    # --- salloc, sbatch, and srun outside an allocation
    rule("job_timeout", "exceeded its time limit", r"^Job \d+ has exceeded its time limit", cause="time_limit"),
    rule(None, "submission failed: ", r"^Batch job submission failed: (?P<reason>.*)"),
    rule(None, "allocate failed: ", r"^Job submit/allocate failed: (?P<reason>.*)"),
    rule(None, "allocate resources: ", r"^(?:Unable|Failed) to allocate resources: (?P<reason>.*)"),
    rule(
        None, "Unable to c",
        r"^Unable to (?:create (?:job )?step|confirm allocation)(?: for [^:]+)?: (?P<reason>.*)",
    ),
    rule(None, "are ready for job", r"^Nodes (?P<nodes>{H}) are ready for job"),
    rule(None, "are still not ready", r"^Nodes (?P<nodes>{H}) are still not ready"),
)  # fmt: skip
