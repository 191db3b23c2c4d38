"""How many values a label may have, with a reason for each limit, and which names are never labels."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from flows.steps.kinds import JOBS

LEVELS = 8  # syslog's

_ENDLESS = "is a new value for nearly every {}; query it as structured metadata or in the line"
REFUSED = {
    "pod_uid": _ENDLESS.format("start of a pod") + ", and use pod",
    "container_id": _ENDLESS.format("start of a container") + ", and use container",
    "request_id": _ENDLESS.format("request"),
    "trace_id": _ENDLESS.format("request"),
    "span_id": _ENDLESS.format("request"),
    "user_id": _ENDLESS.format("user"),
    "step_id": _ENDLESS.format("job step"),
    "boot_id": _ENDLESS.format("boot"),
    "pid": _ENDLESS.format("process"),
    "rank": "multiplies the streams of a job by its ranks; query it as structured metadata",
    "path": "is free text with dates and ids in it; query it in the archive",
    "filename": "is free text with dates and ids in it; query it in the archive",
    "message": "is free text: every line would be a stream of its own; search it with |=",
    "event": "says what one line is about, not where it comes from; query it as structured metadata",
    "level": "says what one line is about; it is structured metadata, and of kernel lines the label priority",
    "xid": "says what one line is about, not where it comes from; query it as structured metadata",
    "ip": "changes with every restart; use node",
}


class LabelsConfig(BaseModel):
    """Distinct values of each label that a tenant may have in an hour; 0: never a label, always structured metadata.

    Beyond it a value is structured metadata until there is room. Each shard, and so each process, has its equal share
    of a limit; a value that several shards meet counts in each.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: int = Field(16, ge=0, description="GPU clusters: a handful, and every stream has one.")
    namespace: int = Field(500, ge=0, description="Kubernetes namespaces: one or a few for each team.")
    pod: int = Field(2_000, ge=0, description="Pods come and go; about two for each node of a large cluster.")
    container: int = Field(300, ge=0, description="Container names repeat from pod to pod.")
    node: int = Field(2_000, ge=0, description="Nodes are static; as many as a large cluster has.")
    app: int = Field(300, ge=0, description="Applications as deployed, not their instances.")
    team: int = Field(200, ge=0, description="Teams that own workloads.")
    job_id: int = Field(
        500,
        ge=0,
        description="Jobs whose output is read; each has a stream on each of its nodes, which is soon too many.",
    )
    unit: int = Field(300, ge=0, description="systemd units; templated ones (user@1000) are the reason for a limit.")
    job: int = Field(
        64, description=f"Sources of lines, a closed list of {len(set(JOBS.values()))}, which must find room."
    )
    priority: int = Field(
        LEVELS,
        ge=0,
        description=f"Levels of kernel and journal lines: {LEVELS}, or 0 for no label; nothing between.",
    )
    streams: int = Field(
        5_000,
        ge=100,
        description="Active streams of a tenant (Loki's max_global_streams_per_user). With priority they may fill a "
        "half of it, complete ones three quarters; the rest is for those that had to leave out labels.",
    )
    tenants: int = Field(32, ge=1, description="Tenants with budgets of their own; further ones share one.")

    @model_validator(mode="before")
    @classmethod
    def _no_endless_labels(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            if reason := REFUSED.get(str(name)):
                raise ValueError(f"{name} cannot be a label: it {reason}")
        return values

    @field_validator("job")
    @classmethod
    def _all_jobs(cls, job: int) -> int:
        if job < len(set(JOBS.values())):
            raise ValueError(f"must be at least {len(set(JOBS.values()))}: job is what remains of every stream")
        return job

    @field_validator("priority")
    @classmethod
    def _all_levels(cls, priority: int) -> int:
        if 0 != priority < LEVELS:
            raise ValueError(f"must be 0 or at least {LEVELS}: to hide some levels would hide the rare, important ones")
        return priority
