"""Carriers of container output: CRI files of the kubelet, and Docker's json-file.

CRI (kubernetes/cri-api, containerd internal/cri/io/logger.go): `STAMP stream TAGS text`; tags are `P` (a piece,
the line goes on) or `F`, more after `:`; before Kubernetes 1.10 there were none. The stamp has 0 to 9
fraction digits (containerd drops zeros at the end) and `Z` or a numeric offset (CRI-O).
Docker (moby daemon/logger/jsonfilelog): `{"log":"text\\n","stream":…,"time":…}`; a piece is a `log` without `\\n` at
its end.

Header speed, CRI: whole lines with stream and tag where a stamp of 20 to 35 bytes puts them; the text
goes through the columns of the training parser. Pieces, JSON, klog and logfmt are rich. Docker: only
noise is found by columns, everything else is rich, since a record's text is not a tail of its line.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from parsers.clock import parse_rfc3339
from parsers.container import ContainerStream, Piece
from parsers.json_lines import no_header, read_object
from parsers.record import Parser, Stream, StreamParser, decode
from parsers.training import TRAINING

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from parsers.header import Header

    Starts = np.ndarray[tuple[int], np.dtype[np.int64]]

MARK = 10  # bytes of ` stdout F ` between stamp and text
MAX_TEXT = 4_096  # longer lines are rich: binary_slice reserves this much for every line of a batch

# 2025-03-04T05:06:07.123456789Z stdout F step 10 loss 2.1
_CRI = re.compile(
    rb"\0*(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)) (stdout|stderr)"
    rb"(?: (?:([PF])(?::[^ ]*)?(?: |$))?|$)"
)
# Text that the training parser's gate does not look for: JSON objects and klog; logfmt has `msg=`.
_OTHER_GRAMMARS = r"^(?:\s*\{|[IWEF]\d{4} \d\d:)"
_DOCKER_LOG = r'^\{"log":"(?P<log>(?:[^"\\]|\\u003[ce])*)\\n","stream":"std(?:out|err)","time":"[^"]*"\}$'

_noise_of_text = cast("Callable[[pa.LargeBinaryArray], pa.DictionaryArray]", TRAINING.noise)


def read_cri(raw: bytes) -> Piece | None:
    """A line of a CRI file; None when it is none."""
    found = _CRI.match(raw)
    stamp = parse_rfc3339(found[1].decode()) if found else None
    if not found or not stamp:
        return None
    return Piece(raw[found.end() :], stamp, found[2].decode(), found[3] != b"P")


def read_docker(raw: bytes) -> Piece | None:
    """A line of a Docker json-file; None when it is none."""
    found = read_object(decode(raw, set()))
    log = found.pairs.get("log") if found else None
    if not found or not isinstance(log, str):
        return None
    stream, time = found.pairs.get("stream"), found.pairs.get("time")
    stamp = parse_rfc3339(time) if isinstance(time, str) else None
    name = stream if isinstance(stream, str) and stream in ("stdout", "stderr") else None
    return Piece(log.removesuffix("\n").encode(), stamp, name, log.endswith("\n"))


def cri_stream(stream: Stream) -> StreamParser:
    return ContainerStream(stream, read_cri)


def docker_stream(stream: Stream) -> StreamParser:
    return ContainerStream(stream, read_docker)


def text_starts(lines: "pa.LargeBinaryArray") -> "Starts":
    """Where the text of each whole CRI line starts (int64); 0 for pieces, long lines and all that does not fit.

    The stamp is only known to be 20 to 35 bytes without a blank.
    """
    import numpy as np
    import pyarrow.compute as pc

    from parsers.header import buffers

    offsets, data = buffers(lines)
    length = pc.find_substring(lines, " ").to_numpy(zero_copy_only=False)
    size = np.diff(offsets)
    fits = (length >= 20) & (length <= 35) & (size >= length + MARK) & (size <= MAX_TEXT)
    marks = np.where(fits, offsets[:-1] + length, 0)
    if not fits.any():
        return np.zeros(len(lines), dtype=np.int64)
    # Eight and two bytes at any place, by views whose stride is one byte.
    stream = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))[marks]
    tag = np.ndarray((len(data) - 1,), "<u2", data, strides=(1,))[marks + 8]
    fits &= (stream == int.from_bytes(b" stdout ", "little")) | (stream == int.from_bytes(b" stderr ", "little"))
    fits &= tag == int.from_bytes(b"F ", "little")
    return np.where(fits, length + MARK, 0)


def _cut(lines: "pa.LargeBinaryArray", starts: "Starts", head: bool) -> "pa.LargeBinaryArray":
    """The text of every line, or its stamp (`head`); empty where the start is 0.

    Starts differ by the few lengths a stamp can have: the usual one is cut from all lines at once, then
    the lines with another one are replaced.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    def cut(part: "pa.LargeBinaryArray", start: int) -> "pa.LargeBinaryArray":
        if start == 0:
            return pc.binary_slice(part, 0, 0)
        return pc.binary_slice(part, 0, start - MARK) if head else pc.binary_slice(part, start, MAX_TEXT)

    found, counts = np.unique(starts, return_counts=True)
    if not len(found):
        return lines
    usual = int(found[counts.argmax()])
    whole = cut(lines, usual)
    rows = [np.flatnonzero(starts == start) for start in found if start != usual]
    if rows:
        parts = [cut(lines.take(pa.array(row)), int(starts[row[0]])) for row in rows]
        order = np.argsort(np.concatenate(rows), kind="stable")
        whole = pc.replace_with_mask(whole, pa.array(starts != usual), pa.concat_arrays(parts).take(pa.array(order)))
    return whole


def cri_noise(lines: "pa.LargeBinaryArray") -> "pa.DictionaryArray":
    """Noise ids of whole CRI lines, by the rules of the text."""
    import pyarrow as pa

    starts = text_starts(lines)
    noise = _noise_of_text(_cut(lines, starts, head=False))
    misfits = starts == 0
    if not misfits.any():
        return noise
    indices = noise.indices.to_numpy(zero_copy_only=False)
    lost = misfits | noise.is_null().to_numpy(zero_copy_only=False)
    return pa.DictionaryArray.from_arrays(pa.array(indices, noise.type.index_type, mask=lost), noise.dictionary)


def cri_header(lines: "pa.LargeBinaryArray", tz: str | None) -> "Header":
    """Columns of whole CRI lines: the training parser's of their text, and the carrier's time where that has none."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from parsers.schema import CODE

    starts = text_starts(lines)
    text = _cut(lines, starts, head=False)
    carried = _stamps(_cut(lines, starts, head=True))
    inner = TRAINING.header(text, tz)
    rich = pc.or_(pa.array(starts == 0), carried.is_null())
    rich = pc.or_(rich, pc.match_substring_regex(text, _OTHER_GRAMMARS))
    rich = pc.or_(rich, pc.match_substring(text, "msg="))
    rich = pc.or_(rich, pc.match_substring_regex(text, TRAINING.gate or ""))  # no gate: every line
    if inner.rich is not None:
        rich = pc.or_(rich, inner.rich)
    ts, source = carried, pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(lines), np.int8)), pa.array(["carrier"]))
    if inner.ts is not None and inner.ts_source is not None:
        own = inner.ts.is_valid()
        ts = pc.coalesce(inner.ts, carried)
        source = pc.if_else(own, inner.ts_source.cast(pa.string()), "carrier").cast(CODE)
    return inner._replace(ts=ts, ts_source=source, body=pa.array(starts.astype(np.int32)), rich=rich)


def _stamps(stamps: "pa.LargeBinaryArray") -> "pa.Array":
    """RFC 3339 stamps to int64 ns, null where one is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.if_else(pc.equal(pc.binary_length(stamps), 0), None, stamps)
    try:
        return text.cast(pa.large_string()).cast(pa.timestamp("ns", "UTC")).cast(pa.int64())
    except pa.ArrowInvalid:  # one of them is none, such as the 30th of February: the rare batch that goes by line
        read = [None if raw is None else parse_rfc3339(raw.decode(errors="replace")) for raw in text.to_pylist()]
        return pa.array([stamp and stamp.ns for stamp in read], pa.int64())


def docker_noise(lines: "pa.LargeBinaryArray") -> "pa.DictionaryArray":
    """Noise ids of whole Docker lines without escapes other than those of `<` and `>` (moby jsonlogbytes.go)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    logs = pc.struct_field(pc.extract_regex(lines, _DOCKER_LOG), "log")
    for escape, sign in ((r"\u003e", ">"), (r"\u003c", "<")):
        logs = pc.replace_substring(logs, escape, sign)
    return _noise_of_text(pc.fill_null(logs, pa.scalar(b"", logs.type)))


POD = Parser(cri_stream, cri_header, gate=r"^(?:\D|$)", noise=cri_noise)
DOCKER = Parser(docker_stream, no_header, noise=docker_noise)
