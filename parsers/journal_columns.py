"""Columns of journal entries as journalctl prints them, no Python per line: objects whose values are all text.

Entries in another form (bytes, several values, null, an escape other than those of quote, backslash, line feed and
tab) are left to the stream parser, and so is the text of a program with a grammar of its own. The kernel's events are
behind the gate.
"""

import io

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from parsers.dmesg import FACILITIES, LEVEL_NAMES
from parsers.header import Header, as_text, text_map
from parsers.programs import has_grammar

_STRING = r'"(?:[^"\\\x00-\x1f\x7f]|\\["\\nt])+"'
_FLAT = rf"^\{{(?:{_STRING}:{_STRING},)*{_STRING}:{_STRING}\}}$"
# Column -> what its text must be (RE2); None: anything. Text in another form is for the stream parser.
_READ = {
    "MESSAGE": None,
    "PRIORITY": "^[0-7]$",
    "SYSLOG_FACILITY": "^(?:[0-9]|1[0-9]|2[0-3])$",
    **dict.fromkeys(("_SOURCE_REALTIME_TIMESTAMP", "__REALTIME_TIMESTAMP"), "^(?:[1-8][0-9]{15}|[1-9][0-9]{0,14})$"),
    **dict.fromkeys(
        ("_PID", "SYSLOG_PID", "_UID", "_GID", "TID", "CODE_LINE", "_SOURCE_MONOTONIC_TIMESTAMP"),
        "^(?:0|[1-9][0-9]{0,17})$",
    ),
    "_BOOT_ID": "[^0-]",
    **dict.fromkeys(
        ("SYSLOG_IDENTIFIER", "_COMM", "_HOSTNAME", "_SYSTEMD_UNIT", "_TRANSPORT", "CODE_FILE",
         "CODE_FUNC")
    ),
}  # fmt: skip
_PARSE = pj.ParseOptions(
    explicit_schema=pa.schema([(name, pa.string()) for name in _READ]), unexpected_field_behavior="ignore"
)
# Messages that begin like a kernel's stamp, a forwarder's priority or a stamp of Python, or end in what is taken off.
_ODD_MESSAGE = r"^<|^\[ *[0-9]+\.|^[0-9]{4}-|[\x00-\x1f]$"
_LEVELS = pa.array(LEVEL_NAMES)
_FACILITIES = pa.array(FACILITIES)
_SOURCE = pa.array(["carrier"])

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]


def columns(lines: pa.LargeBinaryArray, tz: str | None) -> Header:  # noqa: ARG001 - contract of Parser.header
    """Time, level, text, `pid`, `node` and `monotonic_us`; what else the stream parser reads, in `fields`."""
    rich = ~_bools(pc.match_substring_regex(lines, _FLAT))
    _, bad = as_text(lines)
    if bad is not None:
        rich |= _bools(bad)
    if rich.any():
        back = pa.array(np.cumsum(~rich) - 1, mask=rich)
        table = _objects(lines.filter(pa.array(~rich))).combine_chunks().take(back)
    else:
        table = _objects(lines)
    found = {name: table[name].combine_chunks() for name in _READ}
    for name, form in _READ.items():
        if form is not None and found[name].null_count < len(lines):
            rich |= ~_bools(pc.fill_null(pc.match_substring_regex(found[name], form), True))
    realtime = pc.coalesce(found["_SOURCE_REALTIME_TIMESTAMP"], found["__REALTIME_TIMESTAMP"])
    message, app = found["MESSAGE"], found["SYSLOG_IDENTIFIER"]
    rich |= _bools(pc.or_(pc.is_null(message), pc.is_null(realtime)))
    rich |= _bools(pc.fill_null(pc.match_substring_regex(message, _ODD_MESSAGE), False))
    kernel = _bools(pc.fill_null(pc.equal(found["_TRANSPORT"], "kernel"), False))
    rich |= (_known(app, "") | _known(found["_SYSTEMD_UNIT"], ".service")) & ~kernel
    mask = pa.array(rich)
    kept = {name: pc.if_else(mask, None, column) for name, column in found.items()}
    pid = pc.coalesce(kept["_PID"], kept["SYSLOG_PID"]).cast(pa.int64())
    facility = kept["SYSLOG_FACILITY"].cast(pa.int8())
    return Header(
        ts=pc.multiply(pc.if_else(mask, None, realtime).cast(pa.int64()), 1_000),
        ts_source=pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(lines), np.int8), mask=rich), _SOURCE),
        level=pa.DictionaryArray.from_arrays(kept["PRIORITY"].cast(pa.int8()), _LEVELS),
        message=kept["MESSAGE"].cast(pa.large_string()),
        columns={
            "pid": pc.if_else(pc.greater(pid, 0), pid, None),
            "monotonic_us": kept["_SOURCE_MONOTONIC_TIMESTAMP"].cast(pa.int64()),
            "node": kept["_HOSTNAME"],
            "fields": text_map(
                {
                    "app": kept["SYSLOG_IDENTIFIER"],
                    "unit": kept["_SYSTEMD_UNIT"],
                    "process": kept["_COMM"],
                    "src_file": kept["CODE_FILE"],
                    "src_func": kept["CODE_FUNC"],
                    "tid": kept["TID"],
                    "uid": kept["_UID"],
                    "gid": kept["_GID"],
                    "src_line": kept["CODE_LINE"],
                    "facility": _FACILITIES.take(facility),
                    "boot_id": kept["_BOOT_ID"],
                }
            ),
        },
        rich=mask,
    )


def _bools(array: pa.Array) -> Bools:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _objects(lines: pa.LargeBinaryArray) -> pa.Table:
    """Flat JSON objects as columns; an object that has a key of `_READ` twice is a row of nulls."""
    if not len(lines):
        return _PARSE.explicit_schema.empty_table()
    block = b"\n".join(lines.to_pylist()) + b"\n"
    try:
        return pj.read_json(
            io.BytesIO(block), pj.ReadOptions(use_threads=False, block_size=len(block) + 1), parse_options=_PARSE
        )
    except pa.ArrowInvalid:
        if len(lines) == 1:
            return pa.table({name: pa.nulls(1, pa.string()) for name in _READ})
        half = len(lines) // 2
        return pa.concat_tables([_objects(lines[:half]), _objects(lines[half:])])


def _known(names: pa.Array, suffix: str) -> Bools:
    """Which names, that end in `suffix`, are of a program with a grammar; of a template's instances that of the
    template."""
    coded = names.dictionary_encode()
    chosen = [
        name.endswith(suffix) and has_grammar(name.removesuffix(suffix).split("@")[0] if suffix else name)
        for name in coded.dictionary.to_pylist()
    ]
    return _bools(pc.fill_null(pa.array(chosen, pa.bool_()).take(coded.indices), False))
