"""What kernel text about hardware, tasks, storage and lost lines becomes. One row per shape of text."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from parsers.kernel import KMSG
from tests.parsers.kernel_records import record, shown

Row = tuple[str, dict[str, Any]]

NIC: list[Row] = [
    (
        "mlx5_core 0000:4b:00.0 ens5np0: Link down",
        {"event": "nic_link", "pci": "0000:4b:00", "netdev": "ens5np0", "link_state": "down"},
    ),
    ("mlx5_core 0000:4b:00.0: Link up", {"event": "nic_link", "pci": "0000:4b:00", "netdev": None, "link_state": "up"}),
    (
        "mlx5_core 0000:4b:00.1 mlx5_5: Port: 1 Link DOWN",
        {"event": "nic_link", "pci": "0000:4b:00", "ibdev": "mlx5_5", "netdev": None, "port": 1, "link_state": "down"},
    ),
    ("mlx5_core 0000:4b:00.1 mlx5_5: Port: 2 Link ARMED", {"event": "nic_link", "port": 2, "link_state": "armed"}),
    (
        "mlx5_core 0000:4b:00.0: poll_health:801:(pid 0): device's health compromised - reached miss count",
        {"event": "nic_health", "pci": "0000:4b:00", "src_func": "poll_health", "src_line": 801, "pid": None},
    ),
    ("mlx5_core 0000:98:00.0: poll_health:801:(pid 0): Fatal error 1 detected", {"event": "nic_health"}),
    (
        "mlx5_core 0000:4b:00.0: print_health_info:423:(pid 0): synd 0x8: unrecoverable hardware error",
        {"event": "nic_health", "syndrome": "0x8", "src_func": "print_health_info"},
    ),
    ("mlx5_core 0000:4b:00.0: print_health_info:416:(pid 0): fw_ver 28.40.1000", {"event": "nic_health"}),
    ("mlx5_core 0000:4b:00.0: Health issue observed, firmware internal error, severity(3) ERROR:",
     {"event": "nic_health", "pci": "0000:4b:00"}),
    (
        "mlx5_core 0000:4b:00.0: wait_func:1150:(pid 4242): ENABLE_HCA(0x104) timeout. "
        "Will cause a leak of a command resource",
        {"event": "nic_command_failed", "nic_command": "ENABLE_HCA", "pid": 4242, "syndrome": None, "noise": None},
    ),
    (
        "mlx5_core 0000:4b:00.0: mlx5_cmd_out_err:801:(pid 4242): ACCESS_REG(0x805) op_mod(0x1) failed, "
        "status bad operation(0x2), syndrome (0x9a6172), err(-22)",
        {"event": "nic_command_failed", "nic_command": "ACCESS_REG", "syndrome": "0x9a6172",
         "noise": "mlx5_access_reg", "src_func": "mlx5_cmd_out_err"},
    ),
    ("mlx5_core 0000:4b:00.0: Port module event: module 0, Cable unplugged",
     {"event": "nic_module", "pci": "0000:4b:00"}),
    ("mlx5_core 0000:4b:00.0: Port module event[error]: module 0, Cable error, High Temperature",
     {"event": "nic_module"}),
    ("mlx5_core 0000:4b:00.0: temp_warn:131:(pid 0): High temperature on sensors with bit set 0 1",
     {"event": "nic_module", "src_line": 131}),
    ("mlx5_core 0000:4b:00.0: mlx5_pcie_event:299:(pid 7): Detected insufficient power on the PCIe slot (27W).",
     {"event": "nic_module", "pid": 7}),
    ("mlx5_core 0000:4b:00.0: firmware version: 28.40.1000", {"event": None, "pci": "0000:4b:00"}),
    ("NETDEV WATCHDOG: ens5np0 (mlx5_core): transmit queue 3 timed out",
     {"event": "net_watchdog", "netdev": "ens5np0", "qid": 3}),
    ("mlx5_core 0000:4b:00.0 ens5np0: NETDEV WATCHDOG: CPU: 12: transmit queue 3 timed out 5012 ms",
     {"event": "net_watchdog", "netdev": "ens5np0", "pci": "0000:4b:00", "cpu": 12}),
    ("mlx5_core 0000:4b:00.0 ens5np0: TX timeout detected", {"event": "net_watchdog", "netdev": "ens5np0"}),
    ("ice 0000:5e:00.0 ens1: NIC Link is Down",
     {"event": "nic_link", "netdev": "ens1", "pci": "0000:5e:00", "link_state": "down"}),
    ("igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Up 1000 Mbps Full Duplex",
     {"event": "nic_link", "netdev": "eno1", "pci": "0000:01:00", "link_state": "up"}),
    ("bond0: (slave ens1): link status definitely down, disabling slave",
     {"event": "nic_link", "netdev": "ens1", "link_state": "down"}),
    ("bond0: link status definitely up for interface ens1, 100000 Mbps full duplex",
     {"event": "nic_link", "netdev": "ens1", "link_state": "up"}),
    ("IPv6: ADDRCONF(NETDEV_CHANGE): ens1: link becomes ready",
     {"event": "nic_link", "netdev": "ens1", "link_state": "up"}),
    ("IPv6: ADDRCONF(NETDEV_UP): ens1: link is not ready",
     {"event": "nic_link", "netdev": "ens1", "link_state": "down"}),
    ("ens1: lost carrier", {"event": "nic_link", "netdev": "ens1", "link_state": "down"}),
]  # fmt: skip

PCIE: list[Row] = [
    ("pcieport 0000:00:01.1: AER: Multiple Corrected error received: 0000:3b:00.0",
     {"event": "pcie_aer", "reported_severity": "corrected", "multiple": True, "pci_port": "0000:00:01",
      "pci": "0000:3b:00"}),
    ("pcieport 0000:97:01.0: AER: Uncorrected (Fatal) error message received from 0000:97:01.0",
     {"event": "pcie_aer", "reported_severity": "fatal", "multiple": None, "pci": "0000:97:01"}),
    ("pcieport 0000:97:01.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:3b:00.0",
     {"event": "pcie_aer", "reported_severity": "nonfatal"}),
    ("pcieport 0000:97:01.0: AER: Correctable error message received from 0000:3b:00.0",
     {"event": "pcie_aer", "reported_severity": "corrected", "pci": "0000:3b:00"}),
    ("pcieport 0000:00:1c.0: AER: Corrected error received: id=00e0",
     {"event": "pcie_aer", "requester_id": "0x00e0", "pci_port": "0000:00:1c", "pci": None}),
    ("pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, id=00e0(Receiver ID)",
     {"event": "pcie_aer", "aer_layer": "Physical Layer", "requester_id": "0x00e0", "pci": "0000:00:1c"}),
    ("nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible, (Unregistered Agent ID)",
     {"event": "pcie_aer", "aer_layer": "Inaccessible", "reported_severity": "fatal", "pci": "0000:3b:00"}),
    ("nvidia 0000:3b:00.0:   device [10de:2330] error status/mask=00001000/0000a000",
     {"event": None, "aer_status": 0x1000, "aer_mask": 0xA000, "pci": "0000:3b:00"}),
    ("nvidia 0000:3b:00.0:    [ 0] RxErr                  (First)", {"aer_bits": ["RxErr"], "first": True}),
    ("nvidia 0000:3b:00.0:   TLP Header: 40000001 0000000f fee00000 00000000", {"event": None, "pci": "0000:3b:00"}),
    ("nvidia 0000:3b:00.0: AER: aer_status: 0x00100000, aer_mask: 0x00000000",
     {"event": "pcie_aer", "aer_status": 0x100000, "aer_mask": 0}),
    ("nvidia 0000:3b:00.0: AER:    [20] UnsupReq               (First)", {"aer_bits": ["UnsupReq"], "first": True}),
    ("nvidia 0000:3b:00.0: AER: aer_layer=Transaction Layer, aer_agent=Requester ID",
     {"aer_layer": "Transaction Layer"}),
    ("pcieport 0000:00:01.1: AER: device recovery failed", {"event": "pcie_aer", "pci_port": "0000:00:01"}),
    ("pcieport 0000:00:01.1: AER: enabled with IRQ 27", {"event": None}),
    ("pcieport 0000:00:01.1: AER: can't find device of ID0010",
     {"event": "pcie_aer", "requester_id": "0x0010", "pci_port": "0000:00:01"}),
    ("pcieport 0000:00:01.1: DPC: containment event, status:0x1f01 source:0x0000",
     {"event": "pcie_dpc", "pci_port": "0000:00:01", "requester_id": None}),
    ("pcieport 0000:00:01.1: DPC: containment event, status:0x1f05 source:0x3b00",
     {"event": "pcie_dpc", "requester_id": "0x3b00"}),
    ("pcieport 0000:00:01.1: DPC: unmasked uncorrectable error detected", {"event": "pcie_dpc"}),
    ("pcieport 0000:00:01.1: DPC: error containment capabilities: Int Msg #0, RPExt+", {"event": None}),
    ("pcieport 0000:00:01.1: pciehp: Slot(17): Link Down",
     {"event": "pcie_dpc", "pci_port": "0000:00:01", "link_state": "down"}),
    ("pcieport 0000:00:01.1: pciehp: Slot(17): Card not present", {"event": "pcie_dpc"}),
]  # fmt: skip

MEMORY: list[Row] = [
    ("EDAC MC0: 4 CE error on CPU#0Channel#2_DIMM#0 (channel:2 slot:0 page:0x0 offset:0x0 grain:8 syndrome:0x0)",
     {"event": "memory_error", "error_count": 4, "reported_severity": "corrected"}),
    ("EDAC MC1: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#0_DIMM#0",
     {"event": "memory_error", "error_count": 1, "reported_severity": None}),
    ("EDAC MC0: Giving out device to module skx_edac controller Skylake", {"event": None}),
    ("mce: [Hardware Error]: Machine check events logged", {"event": "machine_check"}),
    ("mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 8c00004000010090", {"event": "machine_check", "cpu": 12}),
    ("{7}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 514",
     {"event": "hardware_error", "hw_error_group": 7}),
    ("{7}[Hardware Error]: event severity: recoverable",
     {"event": "hardware_error", "hw_error_group": 7, "reported_severity": "recoverable"}),
    ("{7}[Hardware Error]:   section_type: PCIe error", {"hw_error_group": 7, "hw_section": "PCIe error"}),
    ("{7}[Hardware Error]:   device_id: 0000:43:00.0", {"hw_error_group": 7, "pci": "0000:43:00"}),
    ("{7}[Hardware Error]:   port_type: 4, root port", {"event": "hardware_error", "hw_error_group": 7}),
    ("CPU12: Core temperature above threshold, cpu clock throttled (total events = 5)",
     {"event": "thermal_throttle", "cpu": 12}),
    ("mce: CPU3: Package temperature above threshold, cpu clock throttled (total events = 9)",
     {"event": "thermal_throttle", "cpu": 3}),
    ("CPU12: Core temperature/speed normal", {"event": None, "cpu": 12}),
]  # fmt: skip

TASKS: list[Row] = [
    ("python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=996",
     {"event": "oom_invoked", "process": "python3"}),
    ("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=x,mems_allowed=0-1,global_oom,task_memcg=/a/b,"
     "task=python3,pid=6103,uid=7",
     {"event": "oom_kill", "oom_scope": "global", "oom_cgroup": None, "task_cgroup": "/a/b", "process": "python3",
      "pid": 6103, "uid": 7}),
    ("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/slurm/uid_7/job_42/step_batch,"
     "task_memcg=/slurm/uid_7/job_42/step_batch/task_3,task=a,b (c),pid=9,uid=7",
     {"oom_scope": "memcg", "oom_cgroup": "/slurm/uid_7/job_42/step_batch", "process": "a,b (c)", "job_id": 42,
      "step_id": "batch", "task_id": 3}),
    ("Out of memory: Killed process 6103 (python3) total-vm:41kB, anon-rss:20kB, file-rss:1kB, UID:41007 pgtables:4kB",
     {"event": "oom_kill", "oom_scope": "global", "pid": 6103, "anon_rss_kb": 20, "uid": 41007}),
    ("Memory cgroup out of memory: Kill process 966 (x y) score 900 or sacrifice child",
     {"event": "oom_kill", "oom_scope": "memcg", "pid": 966, "process": "x y"}),
    ("Killed process 966 (python3), UID 1000, total-vm:5kB, anon-rss:4kB",
     {"event": "oom_kill", "pid": 966, "uid": 1000, "anon_rss_kb": 4, "oom_scope": None}),
    ("Task in /a/b killed as a result of limit of /a",
     {"event": "oom_kill", "oom_scope": "memcg", "task_cgroup": "/a/b", "oom_cgroup": "/a"}),
    ("oom_reaper: reaped process 966 (python3), now anon-rss:0kB, file-rss:183200kB, shmem-rss:0kB",
     {"event": "oom_reaped", "pid": 966, "process": "python3", "anon_rss_kb": 0}),
    ("INFO: task kworker/u8:3:1177 blocked for more than 362 seconds.",
     {"event": "hung_task", "process": "kworker/u8:3", "pid": 1177, "seconds": 362}),
    ("INFO: task ray::Worker:4242 is blocked on a mutex likely owned by task x:12.",
     {"event": "hung_task", "process": "ray::Worker", "pid": 4242, "seconds": None}),
    ("Future hung task reports are suppressed, see sysctl kernel.hung_task_warnings", {"event": "log_suppressed"}),
    ("watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:4242]",
     {"event": "soft_lockup", "cpu": 18, "seconds": 27, "process": "python3", "pid": 4242}),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 5", {"event": "hard_lockup", "cpu": 5}),
    ("rcu: INFO: rcu_preempt self-detected stall on CPU", {"event": "rcu_stall"}),
    ("INFO: rcu_sched self-detected stall on CPU { 5}  (t=21001 jiffies)", {"event": "rcu_stall", "cpu": 5}),
    ("rcu: INFO: rcu_sched detected stalls on CPUs/tasks:", {"event": "rcu_stall"}),
    ("pt_main_thread[4242]: segfault at 7f79a0 ip 00007f7c7b sp 00007ffd error 4 in libnccl.so.2[7f7c7a000000+d3d3000]"
     " likely on CPU 12 (core 6, socket 0)", {"event": "segfault", "process": "pt_main_thread", "pid": 4242}),
    ("traps: python3[42] general protection fault ip:7f sp:7f error:0 in lib.so[7f+1]",
     {"event": "segfault", "process": "python3", "pid": 42}),
    ("Kernel panic - not syncing: Fatal machine check", {"event": "kernel_panic", "reason": "Fatal machine check"}),
    ("---[ end Kernel panic - not syncing: Fatal machine check ]---", {"event": None}),
    ("CPU: 24 PID: 1364 Comm: kworker/u8:3 Not tainted 6.8.0 #1",
     {"event": None, "cpu": 24, "pid": 1364, "process": "kworker/u8:3"}),
]  # fmt: skip

STORAGE: list[Row] = [
    ("nvme nvme0: I/O 900 (I/O Cmd) QID 2 timeout, aborting",
     {"event": "nvme_timeout", "nvme_controller": "nvme0", "qid": 2, "io_outcome": "abort"}),
    ("nvme nvme0: I/O tag 22 (2016) opcode 0x2 (Read) QID 3 timeout, reset controller",
     {"event": "nvme_timeout", "qid": 3, "io_outcome": "reset"}),
    ("nvme nvme0: I/O 900 QID 2 timeout, completion polled", {"event": "nvme_timeout", "io_outcome": None}),
    ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
     {"event": "nvme_timeout", "nvme_controller": "nvme0", "io_outcome": "reset"}),
    ("nvme nvme0: Abort status: 0x0", {"event": None, "nvme_controller": "nvme0"}),
    ("nvme nvme0: Removing after probe failure status: -19", {"event": "io_error", "nvme_controller": "nvme0"}),
    ("block nvme1n1: no available path - failing I/O", {"event": "io_error", "nvme_controller": "nvme1"}),
    ("I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 0",
     {"event": "io_error", "nvme_controller": "nvme0"}),
    ("Buffer I/O error on dev dm-0, logical block 5, lost async page write",
     {"event": "io_error", "nvme_controller": None}),
    ("EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2: comm python3: reading directory lblock 0",
     {"event": "filesystem_error", "src_func": "ext4_find_entry", "src_line": 1455, "process": "python3"}),
    ("EXT4-fs (md0): Remounting filesystem read-only", {"event": "filesystem_error"}),
    ("EXT4-fs (md0): mounted filesystem with ordered data mode", {"event": None}),
    ("XFS (nvme1n1): log I/O error -5", {"event": "filesystem_error"}),
    ("XFS (nvme1n1): Filesystem has been shut down due to log error (0x2).", {"event": "filesystem_error"}),
    ("XFS (nvme1n1): Ending clean mount", {"event": None}),
    ("md/raid0:md0: Disk failure on nvme0n1p1 detected, failing array.", {"event": "filesystem_error"}),
    ("attempt to access beyond end of device", {"event": "filesystem_error"}),
    ("VFS: file-max limit 1048576 reached", {"event": "filesystem_error"}),
    ("nfs: server 10.9.8.7 not responding, still trying", {"event": "nfs_unresponsive", "server": "10.9.8.7"}),
    ("nfs: server fs.example not responding, timed out", {"event": "nfs_unresponsive", "server": "fs.example"}),
    ("nfs: server 10.9.8.7 OK", {"event": "nfs_recovered", "server": "10.9.8.7"}),
    ("NFS: nfs4_reclaim_open_state: Lock reclaim failed!", {"event": "filesystem_error"}),
    ("LustreError: 11-0: fs01-MDT0000-mdc-ffff9a0000000001: operation obd_ping to node 10.9.8.6@o2ib failed: rc = -107",
     {"event": "lustre_error", "lustre_target": "fs01-MDT0000", "peer": "10.9.8.6@o2ib", "return_code": -107}),
    ("Lustre: fs01-OST0004-osc-ffff9a: Connection to fs01-OST0004 (at 10.9.8.6@o2ib) was lost; in progress operations "
     "using this service will wait for recovery to complete",
     {"event": "lustre_error", "lustre_target": "fs01-OST0004", "peer": "10.9.8.6@o2ib"}),
    ("LustreError: 167-0: fs01-OST0004-osc-ffff: This client was evicted by fs01-OST0004; in progress operations "
     "using this service will fail.", {"event": "lustre_error", "lustre_target": "fs01-OST0004"}),
    ("Lustre: fs01-OST0004-osc-ffff: Connection restored to 10.9.8.6@o2ib (at 10.9.8.6@o2ib)",
     {"event": None, "lustre_target": "fs01-OST0004", "peer": "10.9.8.6@o2ib"}),
    ("LustreError: Skipped 24 previous similar messages", {"event": "log_suppressed", "suppressed": 24}),
    ("LNetError: 4242:0:(o2iblnd_cb.c:3397:kiblnd_check_txs_locked()) Timed out tx for 10.9.8.6@o2ib: 5 seconds",
     {"event": "lustre_error", "peer": "10.9.8.6@o2ib", "src_file": "o2iblnd_cb.c", "src_line": 3397, "pid": 4242}),
]  # fmt: skip

LOSS: list[Row] = [
    ("systemd-journald[512]: Missed 37 kernel messages", {"event": "log_loss", "lost": 37}),
    ("systemd-journald[512]: /dev/kmsg buffer overrun, some messages lost.", {"event": "log_loss", "lost": None}),
    ("Suppressed 1533 messages from slurmd.service", {"event": "log_loss", "lost": 1533}),
    ("** 12 printk messages dropped **", {"event": "log_loss", "lost": 12}),
    ("kauditd_printk_skb: 66 callbacks suppressed", {"event": "log_suppressed", "suppressed": 66}),
]

ROWS = [*NIC, *PCIE, *MEMORY, *TASKS, *STORAGE, *LOSS]


@pytest.mark.parametrize(("text", "wanted"), ROWS, ids=[text[:60] for text, _ in ROWS])
def test_kernel_text_becomes_fields(text: str, wanted: dict[str, Any]) -> None:
    assert shown(record("dmesg", text), wanted) == wanted


@pytest.mark.parametrize("text", [text for text, _ in ROWS], ids=[text[:60] for text, _ in ROWS])
def test_every_text_with_a_rule_field_passes_the_gate(text: str) -> None:
    found = record("kmsg", f"3,1,1,-;{text}").fields
    own = found.keys() - {"message", "level", "facility", "from_kernel", "seq", "monotonic_us", "printk_flags"}
    assert own <= {"event"} or pc.match_substring_regex(pa.array([text.encode()]), KMSG.gate).to_pylist() == [True]


@pytest.mark.parametrize(
    "text",
    ["usb 1-2: new high-speed USB device", "audit: type=1400 apparmor", "Linux version 6.8.0", "systemd[1]: started"],
)
def test_plain_text_has_no_event_and_stays_out_of_the_slow_path(text: str) -> None:
    assert record("dmesg", text).fields == {"message": text}
    assert pc.match_substring_regex(pa.array([text.encode()]), KMSG.gate).to_pylist() == [False]
