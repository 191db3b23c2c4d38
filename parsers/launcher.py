"""What launchers and collectors put in front of a line of job output: tags, labels and stamps.

Prefixes nest in any order (a collector's stamp, then srun's label, then torchrun's tag), so they are taken
off one by one until none is left. Shapes: slurm srun --label, Open MPI --tag-output, Hydra -prepend-rank,
pdsh, torch.distributed.run --tee, c10 (`[rank3]:`), Ray, kubectl --prefix and --timestamps.
"""

import re
from dataclasses import dataclass, field
from typing import Any

MAX_RANK = 2**31 - 1  # schema.TYPED holds ranks as int32

# 2031-02-03 04:05:06.789 +08:00 | [2031-02-03 04:05:06] | 2031-03-19 13:44
STAMP = (
    r"\[?\d{4}-\d\d-\d\d[ T_]\d\d:\d\d(?::\d\d(?:[.,]\d{1,12})?)?(?: ?(?:Z|[+-]\d\d:?\d\d)(?![\w:]))?"
    r"(?:\](?: |(?=\S))|: | )"
)
EPOCH = r"\[?\d{10}(?:\.\d{1,9})?\]? "
MPI_TAG = r"\[\d{1,9},\d{1,9}\]<std(?:out|err|diag)>:"

_PREFIX = re.compile(
    rf"(?P<stamp>{STAMP})"
    r"|\[pod/(?P<pod>[^/\]]+)/(?P<container>[^\]]+)\] "
    # [1,3]<stdout>:
    r"|\[\d{1,9},(?P<mpi_rank>\d{1,9})\]<(?P<stream>std(?:out|err|diag))>:"
    # [rank3]: [default3]: [trainer3]:
    r"|\[rank(?P<rank>\d{1,9})\]:(?P<rank_blank> ?)"
    r"|\[(?:(?:default|trainer|worker)|[A-Za-z_][A-Za-z_-]{0,60}(?=\d{1,6}\]:\S))(?P<local_rank>\d{1,6})\]:"
    # (RayTrainWorker pid=47159, ip=192.0.2.9)
    r"|\((?P<actor>[A-Za-z_][^()\r\n]{0,120}?) pid=(?P<pid>\d{1,10})(?:, ip=(?P<ip>[^\s)]{1,60}))?\) "
    r"|(?P<label> {0,9}\d{1,7}): "
    r"|(?P<address>\d{1,3}(?:\.\d{1,3}){3}): "
    r"|\[(?P<bracket>\d{1,18})\] "
    r"|(?P<name>[A-Za-z][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*): "
)
_EPOCH = re.compile(EPOCH)
# What may stand behind `[2] ` or `node-a: `, so that these are prefixes and not text.
_HEAD = re.compile(
    r"\[rank\d+\]:|\[[A-Za-z_-]+\d+\]:|\[\d+,\d+\]<std|\[?[VIWEF](?:\d{3,4} \d\d:\d\d:\d\d)?[. ]"
    r"|Traceback \(most|(?:NCCL|RCCL) version |\[?\d{4}-\d\d-\d\d[ T]|\[\d{1,9}\] |terminate called "
)
_COUNTER_DIGITS = 5  # `[70748] ` is a line counter even in front of plain text


@dataclass(slots=True)
class Prefix:
    """`fields` of FIELDS.md that the prefixes give; `stamps` as written, outermost first.

    `key` names the writer: lines with one key belong together. `[rank3]:` glued to a c10 header is not in
    it, since the lines that follow the header lack it. `labelled`: srun put its label in front.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    stamps: list[str] = field(default_factory=list)
    key: str = ""
    labelled: bool = False


def strip(text: str, prefix: Prefix, hosts: "set[str] | dict[str, None]", *, header: bool = False) -> int:
    """Take the prefixes at the start of `text` into `prefix`; return where the text after them starts.

    `hosts` are names that pdsh has put in front of lines of this stream. `header` says that an NCCL header
    follows `text`, so that `[2] ` and `node-a: ` at its end are prefixes.
    """
    at = 0
    while True:
        found = _PREFIX.match(text, at)
        if not found:
            found = _EPOCH.match(text, at) if header else None
            if not found:
                return at
            prefix.stamps.append(found[0])
            at = found.end()
            continue
        kind = found.lastgroup
        if kind == "label" and ((at and not prefix.stamps) or prefix.labelled):
            return at
        if kind in ("bracket", "name") and not _is_prefix(found, text, hosts, header):
            return at
        if not _take(found, prefix, text):
            return at
        at = found.end()


def _is_prefix(found: "re.Match[str]", text: str, hosts: "set[str] | dict[str, None]", header: bool) -> bool:
    if header and found.end() == len(text):
        return True
    if found["name"] is not None and found["name"] in hosts:
        return not text.startswith("Test ", found.end())  # nccl-tests: `gpu-a01: Test NCCL failure …`
    if found["bracket"] is not None and len(found["bracket"]) >= _COUNTER_DIGITS:
        return True
    following = _HEAD.match(text, found.end())
    if not following:
        return header and _PREFIX.match(text, found.end()) is not None
    # `Epoch: [rank0]:` is text: a host name has a digit, a dot or a dash.
    return found["name"] is None or bool(re.search(r"[\d.-]", found["name"]))


def _take(found: "re.Match[str]", prefix: Prefix, text: str) -> bool:
    fields = prefix.fields
    groups = found.groupdict()
    if groups["stamp"]:
        prefix.stamps.append(found[0])
        return True
    if groups["pod"]:
        fields |= {"pod": groups["pod"], "container": groups["container"]}
    elif groups["mpi_rank"]:
        fields["rank"] = _rank(groups["mpi_rank"])
        if groups["stream"] != "stddiag":
            fields["stream"] = groups["stream"]
    elif groups["rank"]:
        fields["rank"] = _rank(groups["rank"])
        if text.startswith("[", found.end()) and not groups["rank_blank"]:
            return True
    elif groups["local_rank"]:
        fields["local_rank"] = int(groups["local_rank"])
    elif groups["actor"]:
        fields["pid"] = int(groups["pid"])
        fields.setdefault("actors", []).append(groups["actor"])
        if groups["ip"]:
            fields["ip"] = groups["ip"]
    elif groups["label"]:
        number = int(groups["label"])
        fields |= {"task_id": number, "rank": number}
        prefix.labelled = True
    elif groups["address"]:
        fields["ip"] = groups["address"]
    elif groups["bracket"]:
        if len(groups["bracket"]) < _COUNTER_DIGITS and found.end() == len(text):
            fields["rank"] = int(groups["bracket"])
        return True
    elif groups["name"]:
        fields["host"] = groups["name"]
    prefix.key += found[0].rstrip()
    return True


def _rank(text: str) -> int | None:
    rank = int(text)
    return rank if rank <= MAX_RANK else None
