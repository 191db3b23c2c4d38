"""RE2 text for lines of job output: which are noise, which need the stream parser. No look-around, bytes as Latin-1.

A line that is neither must come out of `job_columns` as the stream parser would make it, so everything that
the latter treats specially is in GATE; what GATE picks in vain only costs time.
"""

from typing import NamedTuple

from parsers.launcher import MPI_TAG, STAMP
from parsers.nccl_noise import CLOSED, RULES
from parsers.slurm_text import CLIENT

# Prefixes that job_columns takes off; others are gated.
TAG = r"\[(?:default|trainer|worker)\d{1,6}\]:"
PLAIN_PREFIX = rf"(?:{TAG}|\[\d{{1,9}},\d{{1,9}}\]<std(?:out|err)>:|\[rank\d{{1,9}}\]: ?| {{0,9}}\d{{1,7}}: )"
_NCCL_PREFIX = (
    rf"(?:{TAG}|\[\d{{1,9}},\d{{1,9}}\]<std(?:out|err)>:|\[rank\d{{1,9}}\]:| {{0,9}}\d{{1,7}}: |\[\d{{1,4}}\] "
    r"|[A-Za-z][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*: "
    r"|\([A-Za-z_][A-Za-z0-9_.:-]* pid=\d{1,10}(?:, ip=[0-9a-f.:]{1,45})?\) )?"
    r"(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] )?"
)
_PROCESS = r"[A-Za-z0-9_.-]+:\d{1,10}:\d{1,10} (?:\[-?\d{1,10}\] )?"
_PLACE = r"(?:\d+\.\d{6} )?(?:[^\s:\[\]]+:\d{1,6} (?:\([A-Za-z0-9_~:<>]+\) )?)?"

INFO_HEAD = rf"^{_NCCL_PREFIX}{_PROCESS}NCCL INFO "
NOISE_HEAD = rf"^{_NCCL_PREFIX}{_PROCESS}(?:NCCL INFO |{_PLACE}NCCL (?:CALL|TRACE) )"
NCCL_PREFIX = _NCCL_PREFIX.partition(r"(?:\[\d{4}")[0]
# An unknown INFO text behind no other prefix than those that job_columns takes off.
CLEAN = rf"^{PLAIN_PREFIX}?{_PROCESS}NCCL INFO ."


class Rule(NamedTuple):
    """A noise id and RE2 text of its messages' start."""

    id: str
    head: str


def _head(expression: str) -> str:
    """A rule's Python regex as RE2 that is anchored by its user: without `^`, without look-ahead."""
    return expression.replace("^", "").partition("(?!")[0]


# N02 is the bulk and has a shape of its own. What N14's look-ahead refuses is in REFUSED. The rules that find most
# come first; where texts overlap, the order is that of the file.
FREQUENT = ("N20", "N05", "N04", "N17", "N14", "N01", "N18", "N08", "N07", "N13", "N06", "N21", "N19")
NOISE = [Rule(rule["id"], f"(?:{_head(rule['re'])})") for rule in RULES["noise"] if rule["id"] != "N02"]
NOISE.sort(key=lambda rule: FREQUENT.index(rule.id) if rule.id in FREQUENT else len(FREQUENT))
SELDOM = f"^(?:{'|'.join(rule.head for rule in NOISE[len(FREQUENT) :])})"
_KEEP = "|".join(rule["re"] for rule in RULES["keep"])
# Useful, but without an event: columns are enough.
_NO_EVENT = ("K02b", "K21", "K22", "K25", "K27")
_EVENTS = "|".join(rule["re"].replace("^", "") for rule in RULES["keep"] if rule["id"] not in _NO_EVENT)

# The floods in one match, which costs a nanosecond a byte: channels behind any prefix, and what a job prints for each
# collective, ring and connection (NCCL_DEBUG_SUBSYS=ALL). A piece of the latter can have its shape as well, so its
# length must be looked at, and that is known for lines without a prefix only. By id: how the text starts, where that
# tells it, and its shape.
BULK: dict[str, tuple[tuple[bytes, ...], str]] = {
    "N02": ((b"Channel ", b"Ring "), CLOSED["N02"]),
    "N05": ((b"Connecte",), r"Connected all (?:rings|trees)"),
    "N04": ((b"Trees [",), r"Trees(?: \[\d+\] -?\d+/-?\d+/-?\d+->-?\d+->-?\d+)+"),
    "N17": ((b"New prox",), r"New proxy (?:send|recv) connection \d+ from local rank \d+, transport \d+"),
    "N06": ((b"Setting ",), r"Setting affinity for GPU \d+ to [0-9a-f,-]+"),
    "N07": ((b"threadTh",), r"threadThresholds \d+/\d+/\d+ \| \d+/\d+/\d+ \| \d+ \| \d+"),
    "N20": ((), r"[A-Za-z]+: \d+ Bytes -> Algo [A-Z_]+ proto [A-Z0-9]+ channel\{Lo\.\.Hi\}=\{\d+\.\.\d+\}"),
    "N19": (
        (),
        r"[A-Za-z]+: opCount [0-9a-f]+ sendbuff(?: (?:recvbuff|acc|count|datatype|op|root|comm|stream|task|globalrank"
        r"|0x[0-9a-f]+|[0-9]+|\(nil\)|\[nranks=[0-9]+\]))+",
    ),
}
FLOOD = rf"{INFO_HEAD}{CLOSED['N02']}$|^{_PROCESS}NCCL INFO (?:{'|'.join(shape for _, shape in BULK.values())})$"
# tqdm bars between carriage returns. Words in front start with a capital: `srun:` is no description.
_BAR = (
    r"(?:[A-Z][A-Za-z0-9 _./#()-]*: {0,3})? {0,3}\d{1,3}%\|(?:\xe2\x96[\x80-\x9f]|[# 0-9])*\| {0,9}\d+/\d+ "
    r"\[[0-9:?<]+, {0,9}(?:\d+\.\d+|\?)(?:it/s|s/it)\]"
)
BAR = rf"^\r?{_BAR}(?:\r+{_BAR})*\r?$"
# Against the text behind the header: what is glued to a line, useful, or a piece.
_MARKS = (
    r"NCCL (?:INFO|WARN|TRACE|CALL|ABORT)|\[[A-Za-z_-]+\d+\]:|\]<std|\[[VIWEF][\d ]|\d%\||\dit |it/s|s/it|B/s"
    r"|[^\x20-\x7e]|across cluster\]|\([^()]*$|\[[^\[\]]*$|\d/\d+ \[=*[>=.]"
)
REFUSED = rf"{_MARKS}|{_KEEP}|^NET/OFI .*(?:[Ff]ail|[Ee]rror|not |Unable|Could)"

_LEVEL = r"(?:DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_P = rf"{PLAIN_PREFIX}?"
GATE = "|".join(
    (
        rf"^{_P}$|[\x00-\x08\x0a-\x1f\x7f]",
        # NCCL with an event, noise that is not whole and alone, a second header
        r"NCCL (?:WARN|ABORT|TRACE|CALL)|NCCL INFO$|NCCL INFO .*NCCL (?:INFO|WARN|TRACE|CALL|ABORT)",
        rf"NCCL INFO (?:{'|'.join((*(rule.head for rule in NOISE), '(?:Channel|Ring) '))})",
        rf"NCCL INFO .*(?:{_EVENTS}|comm 0x|esiliency|ibv_modify_qp|Connection closed|ocket|Net "
        r"|Call to |event|GID table|RAS |plugin|version|Using |CUDA error)",
        r"^(?:.*[^A-Za-z])?(?:NCCL|RCCL) (?:git )?version ",
        # tags, bars and c10 headers in mid-line, c10 and glog headers
        rf".\[[A-Za-z_-]+\d{{1,6}}\]:|.{MPI_TAG}|\d%\||\dit \[\d|it/s|s/it|B/s|\d/\d+ \[=*[>=.]",
        r"\[[VIWEF][\d ][^\]]*\.[a-z]{1,3}:\d+\]|[VIWEF]\d{3,4} \d\d:\d\d:\d\d",
        # errors
        r"Traceback \(most|^[ |]*\+ Exception Group |terminate called |Fatal Python error: |NCCL error in: ",
        rf"^{_P}={{10,60}}$|: Test (?:NCCL|CUDA|MPI) failure |failed \(exitcode: |closing signal SIG|death signal, ",
        rf"^{PLAIN_PREFIX}(?:[A-Za-z_][A-Za-z0-9_]*\.)*[A-Z][A-Za-z0-9_]*(?:\[[^\]]*\])?(?::(?: |$)|$)",
        rf"^{_P}{CLIENT}|across cluster\]",
        # other prefixes, stamps, levels of Python's logging
        rf"^{_P}(?:{STAMP.partition('(?::')[0]}|{_LEVEL}:[A-Za-z_]|\(.* pid=\d|\[\d+\] |\[pod/)",
        rf"^{_P}[A-Za-z][A-Za-z0-9_.-]*[0-9.-][A-Za-z0-9_.-]*: |^{_P}\d{{1,3}}(?:\.\d{{1,3}}){{3}}: ",
        rf"^{PLAIN_PREFIX}(?:\[|{PLAIN_PREFIX})",
    )
)
