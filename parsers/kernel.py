r"""Kernel records as /dev/kmsg and dmesg give them.

    3,340,80123456,-,caller=T2178;mlx5_core 0000:4b:00.0 ens5np0: Link down
     SUBSYSTEM=pci

kmsg: `PREFIX,SEQ,USEC[,FLAGS[,more]];TEXT`, where PREFIX is facility * 8 + level, then ` KEY=value` lines;
control bytes, bytes from 0x7f on and backslashes are `\xNN` (Documentation/ABI/testing/dev-kmsg). dmesg: see
`dmesg`; the lines of a record after its first have no stamp and are indented. What the text means is in
`kernel_text`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parsers import clock
from parsers.dmesg import JSON_FRAME, LEVEL_NAMES, MAX_US, NEXT_OBJECT, json_rendering, priority, rendering
from parsers.json_lines import placed, plain
from parsers.kernel_text import GATE, Probed, clean, kernel_text, take_caller, unescape
from parsers.record import MAX_HELD_BYTES, MAX_HELD_LINES, Line, Parser, Record, Ref, Stream, decode

if TYPE_CHECKING:
    import pyarrow as pa

    from parsers.header import Header

MAX_SEQ = 2**64 - 1

_KMSG = re.compile(r"(\d{1,9}),(\d{1,20}),(\d{1,19})(?:,([^,;]*)(?:,([^;]*))?)?;", re.ASCII)
_PAIR = re.compile(r"[ \t]([^\s=]+)=(.*)", re.DOTALL)
_CALLER = re.compile(r"(?:^|,)caller=([TC]\d{1,10})(?:,|$)", re.ASCII)
_TAG = re.compile(r"([\w./@-]{1,64})\[(\d{1,10})\]: ", re.ASCII)


@dataclass(slots=True)
class _Open:
    """A record that the next line may still belong to. `indent`: width of dmesg's stamp."""

    record: Record
    line: Line
    refs: list[Ref]
    parts: list[str]
    size: int
    indent: int = 0
    json: bool = False


class _KernelStream(ABC):
    """Holds one record until the next line shows that it is whole. Empty lines belong to nothing."""

    def __init__(self, stream: Stream) -> None:
        self.times = stream.times
        self.open: _Open | None = None
        self.probed = Probed()

    @property
    def held(self) -> Sequence[Ref]:
        return self.open.refs if self.open else ()

    def feed(self, line: Line) -> list[Record]:
        flags = set(line.flags)
        text = decode(line.raw, flags)
        if not text.strip():
            return []
        opened = self.open
        if opened and self.joins(text):
            if len(opened.refs) < MAX_HELD_LINES and opened.size + len(line.raw) <= MAX_HELD_BYTES:
                opened.refs += line.refs
                opened.size += len(line.raw)
                self.take(opened, text, flags)
                opened.record.flags |= flags
                return []
            opened.record.flags.add("partial")
        done = self.flush()
        record = Record({}, line.refs, flags=flags)
        self.open = _Open(record, line, list(line.refs), [], len(line.raw))
        self.start(self.open, text, flags)
        return done

    def flush(self) -> list[Record]:
        if self.open is None:
            return []
        opened, self.open = self.open, None
        record = opened.record
        record.refs = tuple(opened.refs)
        message = clean(self.whole(opened))
        record.fields["message"] = message
        kernel_text(message, record.fields, record.flags)
        self.probed.see(message, record.fields)
        if record.ts is None:
            booted = record.fields.get("monotonic_us")
            record.ts = None if booted is None else clock.boot(booted, self.times)
            record.ts_source = "boot" if record.ts else None
        self.finish(record)
        return [placed(record, opened.line)]

    def whole(self, opened: _Open) -> str:
        """The text of a record whose lines are all there."""
        return "\n".join(opened.parts)

    @abstractmethod
    def joins(self, text: str) -> bool:
        """The line belongs to the open record."""

    @abstractmethod
    def take(self, opened: _Open, text: str, flags: set[str]) -> None:
        """Add a line that joins."""

    @abstractmethod
    def start(self, opened: _Open, text: str, flags: set[str]) -> None:
        """Read the first line of a record."""

    def finish(self, record: Record) -> None:  # noqa: B027 - most carriers have nothing to add
        """Add what only a whole record shows."""


class KmsgStream(_KernelStream):
    """Records of /dev/kmsg."""

    def joins(self, text: str) -> bool:
        known = self.open is not None and "unparsed" not in self.open.record.flags
        return known and _PAIR.fullmatch(text) is not None

    def take(self, opened: _Open, text: str, flags: set[str]) -> None:
        key, _, value = text.lstrip(" \t").partition("=")
        opened.record.fields.setdefault("kernel_dict", {})[key] = clean(unescape(value, flags))

    def start(self, opened: _Open, text: str, flags: set[str]) -> None:
        found = _KMSG.match(text)
        if not found or int(found[2]) > MAX_SEQ or int(found[3]) > MAX_US:
            flags.add("unparsed")
            opened.parts.append(text)
            return
        fields = opened.record.fields
        fields |= priority(int(found[1]))
        fields["from_kernel"] = int(found[1]) < 8
        fields |= {"seq": int(found[2]), "monotonic_us": int(found[3])}
        if found[4]:
            fields["printk_flags"] = found[4]
        if caller := _CALLER.search(found[5] or ""):
            take_caller(f"[{caller[1]}]", fields)
        body = unescape(text[found.end() :], flags)
        if not fields["from_kernel"] and (tag := _TAG.match(body)):
            fields |= {"app": tag[1], "pid": int(tag[2]) or None}
        opened.parts.append(body)

    def finish(self, record: Record) -> None:
        if "unparsed" not in record.flags:
            record.body = record.fields["message"]


class DmesgStream(_KernelStream):
    """Output of dmesg, in any rendering."""

    within = False  # the line before, of `dmesg -J`, has opened the next object

    def whole(self, opened: _Open) -> str:
        if not opened.json:
            return super().whole(opened)
        self.within = opened.parts[-1].strip() == NEXT_OBJECT
        head = json_rendering("{" + "\n".join(part for part in opened.parts if part.strip() not in JSON_FRAME) + "}")
        if head is None:
            opened.record.flags.add("unparsed")
            return super().whole(opened)
        opened.record.fields |= head.fields
        return head.text

    def joins(self, text: str) -> bool:
        text = plain(text)
        if self.open and self.open.json:
            last, following = self.open.parts[-1].strip(), text.strip()
            if last in ("}", "]"):
                return following in ("}", "]")
            return last != NEXT_OBJECT and (text[:1] in (" ", "\t") or following == "}")
        return text[:1] in (" ", "\t") and not rendering(text.lstrip(), self.times, None, set()).stamped

    def take(self, opened: _Open, text: str, flags: set[str]) -> None:
        text = plain(text)
        if opened.json:
            opened.parts.append(text)
            return
        indent = min(opened.indent, len(text) - len(text.lstrip(" ")))
        opened.parts.append(unescape(text[indent:], flags))

    def start(self, opened: _Open, text: str, flags: set[str]) -> None:
        text = plain(text)
        within, self.within = self.within, False
        if text.strip() == "{" or (within and text.lstrip().startswith('"')):
            opened.json = True
            opened.parts.append(text)
            return
        head = rendering(text, self.times, opened.line.received, flags)
        if text[:1] in (" ", "\t") and not head.stamped:
            stamped = rendering(text.lstrip(), self.times, opened.line.received, flags)
            head = stamped if stamped.stamped else head
        record = opened.record
        record.fields |= head.fields
        record.ts, record.ts_source = head.ts, head.ts_source if head.ts else None
        record.node = head.node
        opened.indent = head.width
        opened.parts.append(unescape(head.text, flags))


def _masked(lines: "pa.LargeBinaryArray", known: "pa.Array", more: str) -> "tuple[pa.Array, pa.Array]":
    """The lines for the stream parser as a mask, and the others, null in the place of those.

    The stream parser gets lines that are not `known`, that match `more`, that hold an escape or a byte that
    is not printable ASCII, lines that begin with a blank, and the last line that is not empty before those.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    odd = pc.or_(pc.invert(known), pc.match_substring_regex(lines, rf"[^ -~]|\\|{more}"))
    rich = odd.to_numpy(zero_copy_only=False).copy()
    filled = np.flatnonzero(pc.binary_length(lines).to_numpy())
    joins = pc.match_substring_regex(lines, r"^[ \t]").to_numpy(zero_copy_only=False)[filled]
    rich[filled[:-1][joins[1:]]] = True
    mask = pa.array(rich)
    return mask, pc.if_else(mask, pa.scalar(None, pa.large_binary()), lines)


def kmsg_header(lines: "pa.LargeBinaryArray", tz: str | None) -> "Header":  # noqa: ARG001 - contract of Parser.header
    """Level, place of the text, text, `seq` and `monotonic_us`; lines of user space (facility 1 and up) are rich."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from parsers.header import Header

    found = pc.extract_regex(lines, r"^(?P<level>[0-7]),(?P<seq>\d{1,19}),(?P<us>\d{1,18})(?:,[^;]*)?;")
    rich, plain_lines = _masked(lines, found.is_valid(), more=r"\x00")
    level, seq, us = (pc.struct_field(found, name).cast(pa.large_string()) for name in ("level", "seq", "us"))
    return Header(
        level=pa.DictionaryArray.from_arrays(level.cast(pa.int8()), pa.array(LEVEL_NAMES)),
        body=pc.add(pc.find_substring(lines, b";"), 1).cast(pa.int32()),
        message=pc.replace_substring_regex(plain_lines, r"^[^;]*;", "").cast(pa.large_string()),
        columns={"seq": seq.cast(pa.uint64()), "monotonic_us": us.cast(pa.int64())},
        rich=rich,
    )


def dmesg_header(lines: "pa.LargeBinaryArray", tz: str | None) -> "Header":  # noqa: ARG001 - contract of Parser.header
    """Text and `monotonic_us` of `[12345.678901] TEXT`; every other rendering is rich."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from parsers.header import Header

    found = pc.extract_regex(lines, r"^\[ *(?P<s>\d{1,9})\.(?P<us>\d{6})\] ")
    rich, plain_lines = _masked(lines, found.is_valid(), more=r"^\[[^\]]*\] \[ *[TC]\d")
    seconds, us = (pc.struct_field(found, name).cast(pa.large_string()).cast(pa.int64()) for name in ("s", "us"))
    text = pc.replace_substring_regex(plain_lines, r"^\[[^\]]*\] (?:kernel: )?", "")
    return Header(
        message=text.cast(pa.large_string()),
        columns={"monotonic_us": pc.add(pc.multiply(seconds, 1_000_000), us)},
        rich=rich,
    )


KMSG = Parser(KmsgStream, kmsg_header, GATE)
DMESG = Parser(DmesgStream, dmesg_header, GATE)
