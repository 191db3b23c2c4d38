"""Decodes logproto.PushRequest by columns: Python walks the entries, numpy reads what is in them."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flows.demo.loki_push import Ints, Labels, Metadata, PushStream, Refused

Bytes = npt.NDArray[np.uint8]

SECOND: Final = 1_000_000_000
LEN, VARINT = 2, 0  # protobuf wire types; PushRequest has no other

_ENTRY = 2 << 3 | LEN  # StreamAdapter.entries
_WORD = 8
_LOW, _MORE, _BYTE = np.uint64(0x7F), np.uint64(0x80), np.uint64(8)

_PAIR = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*("(?:[^"\\\n]|\\.)*"|`[^`]*`)\s*')
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL)
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"'}


def parse_labels(raw: bytes) -> Labels:
    """`{a="b", c="d"}` as Go quotes it, in the order given, names that come twice included. Raises Refused."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise _bad_labels(error.start, "invalid UTF-8") from None
    stripped = text.strip()
    if not (stripped.startswith("{") and stripped.endswith("}") and len(stripped) > 1):
        raise _bad_labels(0, "expected a label set in braces")
    at, end = text.index("{") + 1, text.rindex("}")
    pairs: list[tuple[str, str]] = []
    while text[at:end].strip():
        pair = _PAIR.match(text, at, end)
        if pair is None:
            raise _bad_labels(at, f"unexpected {text[at : at + 20]!r}")
        name, value = pair.groups()
        try:
            pairs.append((name, _unquote(value)))
        except ValueError:  # UnicodeError is one
            raise _bad_labels(at, "invalid syntax") from None
        at = pair.end()
        if at < end:
            if text[at] != ",":
                raise _bad_labels(at, f"unexpected {text[at]!r}, expected a comma")
            at += 1
    return tuple(pairs)


def _unquote(quoted: str) -> str:
    """The text of a Go string literal. Raises ValueError."""
    if quoted[0] == "`":
        return quoted[1:-1]
    # \\x and octal escapes give bytes, which need not be UTF-8 until all are in place.
    return _ESCAPE.sub(_unescape, quoted[1:-1]).encode("utf-8", "surrogateescape").decode()


def _unescape(match: re.Match[str]) -> str:
    in_hex, short, long, octal, simple = match.groups()
    if point := short or long:
        return chr(int(point, 16))
    if in_hex or octal:
        byte = int(in_hex, 16) if in_hex else int(octal, 8)
        return bytes([byte]).decode("utf-8", "surrogateescape")
    if simple not in _SIMPLE:
        raise ValueError("invalid syntax")
    return _SIMPLE[simple]


def _bad_labels(position: int, why: str) -> Refused:
    return Refused(400, f"couldn't parse labels: 1:{position + 1}: parse error: {why}")


def decode_protobuf(data: bytes) -> list[PushStream]:
    """logproto.PushRequest{1: streams}; StreamAdapter{1: labels, 2: entries}."""
    column = np.frombuffer(data + bytes(_WORD), np.uint8)
    streams = []
    for number, start, end in _messages(data, 0, len(data)):
        if number != 1:
            continue
        labels, at = b"", start
        for field, begin, stop in _messages(data, start, end):
            if field == 2:
                break  # nearly all of a stream are entries, which are walked apart
            if field == 1:
                labels = data[begin:stop]
            at = stop
        begins, ends = _run(data, at, end)
        for field, begin, stop in _messages(data, ends[-1] if ends else at, end):
            if field == 2:
                begins.append(begin)
                ends.append(stop)
            elif field == 1:
                labels = data[begin:stop]
        streams.append(_entries(parse_labels(labels), column, np.array(begins, np.int64), np.array(ends, np.int64)))
    return streams


def _run(data: bytes, at: int, end: int) -> tuple[list[int], list[int]]:
    """Starts and ends of the entries that follow one another from `at` on, up to the first other field."""
    begins, ends = [], []
    last = end - 5  # the longest head that is read here
    while at < last and data[at] == _ENTRY:
        value = data[at + 1]
        if value < 0x80:
            start = at + 2
        else:
            value, second = value & 0x7F, data[at + 2]
            if second < 0x80:
                value, start = value | second << 7, at + 3
            else:
                third = data[at + 3]
                if third >= 0x80:
                    break
                value, start = value | (second & 0x7F) << 7 | third << 14, at + 4
        at = start + value
        if at > end:
            break
        begins.append(start)
        ends.append(at)
    return begins, ends


def _messages(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each length-delimited field in `data[at:end]`; varints are passed over."""
    try:
        while at < end:
            key = data[at]
            value = data[at + 1]
            at += 2
            if value >= 0x80:
                value &= 0x7F
                shift = 7
                while True:
                    byte = data[at]
                    at += 1
                    value |= (byte & 0x7F) << shift
                    if byte < 0x80:
                        break
                    shift += 7
            if key & 7 == LEN:
                start, at = at, at + value
                if at > end:
                    raise _bad_protobuf("unexpected EOF")
                yield key >> 3, start, at
            elif key & 7 != VARINT or key >= 0x80:
                raise _bad_protobuf(f"illegal tag {key}")
    except IndexError:
        raise _bad_protobuf("unexpected EOF") from None


def _bad_protobuf(why: str) -> Refused:
    return Refused(400, f"proto: PushRequest: {why}")


def _entries(labels: Labels, data: Bytes, start: Ints, end: Ints) -> PushStream:
    """EntryAdapter{1: Timestamp{1: seconds, 2: nanos}, 2: line, 3: repeated LabelPairAdapter{1: name, 2: value}}."""
    count = len(start)
    seconds, nanos = np.zeros(count, np.int64), np.zeros(count, np.int64)
    line, line_end = np.zeros(count, np.int64), np.zeros(count, np.int64)
    owners, starts, ends = [], [], []
    for rows, number, begin, value in _scan(data, start, end, LEN):
        is_line, is_time, is_pair = number == 2, number == 1, number == 3
        line[rows[is_line]] = begin[is_line]
        line_end[rows[is_line]] = begin[is_line] + value[is_line]
        when, owner = begin[is_time], rows[is_time]
        for row, part, _, amount in _scan(data, when, when + value[is_time], VARINT):
            seconds[owner[row[part == 1]]] = amount[part == 1]
            nanos[owner[row[part == 2]]] = amount[part == 2]
        owners.append(rows[is_pair])
        starts.append(begin[is_pair])
        ends.append(begin[is_pair] + value[is_pair])
    ts = np.clip(seconds, -9_000_000_000, 9_000_000_000) * SECOND + np.clip(nanos, 0, SECOND - 1)
    metadata = _pairs(data, _joined(owners), _joined(starts), _joined(ends))
    return PushStream(labels, ts, _cut(data, line, line_end), metadata)


def _pairs(data: Bytes, owner: Ints, start: Ints, end: Ints) -> Metadata:
    order = np.lexsort((start, owner))
    owner, start, end = owner[order], start[order], end[order]
    spans = np.zeros((4, len(owner)), np.int64)  # name, its end, value, its end
    for rows, number, begin, value in _scan(data, start, end, LEN):
        for field in (1, 2):
            hit = number == field
            spans[2 * field - 2, rows[hit]] = begin[hit]
            spans[2 * field - 1, rows[hit]] = begin[hit] + value[hit]
    return Metadata(owner, _cut(data, spans[0], spans[1]), _cut(data, spans[2], spans[3]))


def _scan(data: Bytes, at: Ints, end: Ints, wire: int) -> Iterator[tuple[Ints, Ints, Ints, Ints]]:
    """Walks many small messages side by side: yields their k-th fields as (row, field number, start, value).

    All fields of such a message have one wire type. `value` is the length of a length-delimited field, or the
    varint itself.
    """
    rows = np.arange(len(at))
    while len(rows := rows[(live := at < end)]):
        at, end = at[live], end[live]
        key, at = _varints(data, at)
        value, start = _varints(data, at)
        if (key & 7 != wire).any():
            raise _bad_protobuf("illegal wire type")
        at = start + value if wire == LEN else start
        if (at > end).any() or (at < start).any():
            raise _bad_protobuf("unexpected EOF")
        yield rows, key >> 3, start, value


def _varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The varint at each position, and the position behind it. `data` ends with _WORD bytes that belong to nothing."""
    word = np.ndarray((len(data) - _WORD + 1,), "<u8", data.data, 0, (1,))[at]  # eight bytes from each position
    value = word & _LOW
    more = (word & _MORE) != 0
    behind = at + 1
    for shift in range(7, 7 * _WORD, 7):
        if not more.any():
            return value.view(np.int64), behind
        word >>= _BYTE
        value |= np.where(more, word & _LOW, 0) << np.uint64(shift)
        behind += more
        more &= (word & _MORE) != 0
    for row in np.flatnonzero(more).tolist():  # negative numbers have ten bytes
        value[row], behind[row] = _varint(data, int(at[row]))
    return value.view(np.int64), behind


def _varint(data: Bytes, at: int) -> tuple[int, int]:
    """A long varint, cut to 64 bits, and the position behind it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = int(data[at]) if at < len(data) else 0
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise _bad_protobuf("integer overflow")


def _cut(data: Bytes, start: Ints, end: Ints) -> pa.BinaryArray:
    """`data[start:end]` of each row, copied by Arrow: every second value of an array whose offsets are the bounds.

    Rows lie in `data` in any order, and none overlaps another.
    """
    order = np.argsort(start, kind="stable")
    bounds = np.zeros(2 * len(start) + 1, np.int32)
    bounds[:-1:2], bounds[1::2] = start[order], end[order]
    bounds[-1] = bounds[-2] if len(start) else 0
    whole = pa.BinaryArray.from_buffers(pa.binary(), 2 * len(start), [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    place = np.empty(len(start), np.int64)
    place[order] = np.arange(len(start))
    return whole.take(pa.array(2 * place))


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
