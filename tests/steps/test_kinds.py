"""The kind that a file's path tells."""

import pytest

from flows.steps.kinds import JOBS, kind_of_path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/dev/kmsg", "kmsg"),
        ("/data/kmsg/notes.txt", None),
        ("/data/kmsg/syslog", "syslog"),
        ("/var/log/dmesg.0", "dmesg"),
        ("/srv/dmesg/train.out", "training"),
        ("/var/log/slurmctld/slurmctld.log", "slurmctld"),
        ("/var/log/slurmctld/slurmdbd.log", "slurmdbd"),
        ("/var/log/slurmd/prolog.log", "prolog"),
        ("/var/log/slurmd/epilog.log-20250304.gz", "epilog"),
        ("/opt/azurehpc/slurm/logs/prolog_slurmctld.log", "prolog"),
        ("/var/log/slurm/slurmsched.log", "slurm_sched"),
        ("/var/log/slurmctld/slurmctld_sched.log", "slurm_sched"),
        ("/var/log/slurmd-gpu-001.log", "slurmd"),
        ("/var/log/syslog.1", "syslog"),
        ("/var/log/messages-20250304", "syslog"),
        ("/var/log/kern.log", "syslog"),
        ("/var/log/fabricmanager.log", "fabric_manager"),
        ("/var/log/nv-hostengine.log", "dcgm"),
        ("/opt/cycle/jetpack/logs/jetpackd.log", "jetpackd"),
        ("/opt/cycle/jetpack/logs/other.log", None),
        ("/opt/HealthAgent/healthagent.log", "healthagent"),
        ("/var/log/pods/ml_train-0_4f1c/slurmd/0.log", "pod"),
        ("/var/log/containers/train-0_ml_worker-4f1c.log", "pod"),
        ("/var/lib/docker/containers/4f1c/4f1c-json.log", "docker"),
        ("node.journal.json", "journal"),
        ("syslog", "syslog"),
        ("/var/log/syslog/", None),
        ("", None),
    ],
)
def test_the_name_of_a_file_tells_its_kind_and_its_directory_only_for_containers(path: str, kind: str | None) -> None:
    assert kind_of_path(path) == kind
    assert kind is None or kind in JOBS
