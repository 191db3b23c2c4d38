"""Columns of the few rows that rules look at: every field as numbers of its distinct values."""

from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flows.detect.fold import HEAD, INPUTS, LOST_XID, Folded, fold

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]
Coded = tuple[Numbers, list[str]]  # for each row the index of its value; "" stands for "not known"

_FOLDED = ("event", "xid", "severity", "meaning")


class Hits:
    """Some rows of one part (`at` are their places), column by column as asked for.

    Fields are the columns of schema.LOG and, else, the keys of its column `fields`. `job_id` is the job whose
    output the row is, else the job it is about; `host` the host it names, else its node. What folding changes
    (event, xid, severity, meaning) is read as changed.
    """

    def __init__(self, rows: pa.Table, at: Numbers, cluster: str) -> None:
        self.at = at
        self._rows, self._cluster = rows, cluster
        self._indices = pa.array(at)
        self._known: dict[str, Coded] = {}

    def __len__(self) -> int:
        return len(self.at)

    def column(self, name: str) -> pa.Array:
        """A column of the table, at these rows."""
        return _whole(self._rows[name]).take(self._indices)

    def numbers(self, name: str) -> Numbers:
        """A column of integers without nulls."""
        return np.asarray(self.column(name).to_numpy(zero_copy_only=False), dtype=np.int64)

    def coded(self, name: str) -> Coded:
        """A field of any type as text."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._coded(name)
        return known

    def _coded(self, name: str) -> Coded:
        if name in _FOLDED:
            number, kinds = self.folded
            return number, [str(getattr(kind, name)) for kind in kinds]
        if name == "pid":
            return self._process()
        if name == "cluster":
            codes, values = self.plain("cluster")
            return codes, [value or self._cluster for value in values]
        if name == "job_id":
            return self.first_known(["owner_job", "job_id"])
        if name == "host":
            return self.first_known(["host", "node"])
        return self.plain(name)

    def _process(self) -> Coded:
        """The process; none where a GPU is lost, since that happens once, whoever notices."""
        codes, values = self.plain("pid")
        number, ways = self.folded
        lost = np.array([way.xid == LOST_XID for way in ways], dtype=np.bool_)[number]
        return np.where(lost, len(values) - 1, codes), values

    def first_known(self, names: list[str]) -> Coded:
        """For each row the first field that is known."""
        codes, values = self.plain(names[0])
        for name in names[1:]:
            missing = codes_of(values, "")[codes]
            if not missing.any():
                break
            others, more = self.plain(name)
            codes = np.where(missing, others + len(values), codes)
            values = values + more
        return codes, values

    def plain(self, name: str) -> Coded:
        """A field as it stands in the row."""
        if name in self._rows.column_names:
            column = self.column(name)
            if pa.types.is_list(column.type):
                column = pc.binary_join(column, ",")
        else:
            column = pc.map_lookup(self.column("fields"), pa.scalar(name), "first")
        return encoded(column)

    @cached_property
    def folded(self) -> tuple[Numbers, list[Folded]]:
        """How each row counts: the index of one of the ways that occur."""
        inputs = [self._head() if name == "message_head" else self.plain(name) for name in INPUTS]
        companion = self.flagged("companion").astype(np.int64)
        number, first = dense([companion, *(codes for codes, _ in inputs)])
        ways = []
        for row in first.tolist():
            way = fold(*(values[codes[row]] for codes, values in inputs))
            ways.append(way._replace(follower=True) if companion[row] else way)
        return number, ways

    def _head(self) -> Coded:
        """The first characters of the message, where they decide."""
        codes, values = self.plain("event")
        held_back = codes_of(values, "log_suppressed")[codes]
        if not held_back.any():
            return np.zeros(len(self), dtype=np.int64), [""]
        head = pc.utf8_slice_codeunits(self.column("message"), 0, HEAD)
        return encoded(pc.if_else(pa.array(held_back), head, ""))

    def flagged(self, flag: str) -> Mask:
        """Rows that have a flag."""
        lists = self.column("flags")
        mask = np.zeros(len(self), dtype=np.bool_)
        if lists.null_count < len(lists):
            having = pc.equal(pc.list_flatten(lists), flag).to_numpy(zero_copy_only=False)
            mask[pc.list_parent_indices(lists).to_numpy()[having]] = True
        return mask

    def having(self, name: str, wanted: frozenset[str] | tuple[str, ...]) -> Mask:
        """Rows whose field has one of the values."""
        codes, values = self.coded(name)
        return codes_of(values, *wanted)[codes]

    def matching(self, regex: str) -> Mask:
        """Rows whose message or raw line matches a pattern."""
        message = pc.match_substring_regex(self.column("message"), regex).fill_null(False)
        raw = pc.match_substring_regex(self.column("raw"), regex)
        return np.asarray(pc.or_(message, raw).to_numpy(zero_copy_only=False), dtype=np.bool_)


def codes_of(values: list[str], *wanted: str) -> Mask:
    """For each distinct value whether it is wanted."""
    return np.array([value in wanted for value in values], dtype=np.bool_)


def encoded(column: pa.Array) -> Coded:
    """A column as codes; the last value is "", for nulls."""
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.large_string()).dictionary_encode()
    values = column.dictionary.to_pylist()
    codes = column.indices.fill_null(len(values)).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, [value or "" for value in values] + [""]


def dense(columns: list[Numbers]) -> tuple[Numbers, Numbers]:
    """Rows that agree in all columns get one number, from 0; and the first row of each number."""
    number = np.zeros(len(columns[0]), dtype=np.int64)
    first = np.zeros(min(1, len(number)), dtype=np.int64)
    for column in columns:
        _, part = np.unique(column, return_inverse=True)
        _, first, number = np.unique(number * (part.max(initial=0) + 1) + part, return_index=True, return_inverse=True)
    return number, first


def _whole(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    return column.combine_chunks()
