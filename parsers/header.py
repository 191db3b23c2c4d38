"""The fast side of a parser: columns for all lines of a batch, no Python per line.

Every function takes and returns whole Arrow arrays. Regexes are RE2 (no look-around), short, anchored,
and never capture a `.*$` tail, which costs four to eight times the match itself.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa


class Header(NamedTuple):
    """Columns of a batch of lines, all of one length; None stands for a column of nulls.

    `ts` int64 ns since the epoch, null where the line shows no usable time (the tier then takes the
    time of receipt); `ts_source` and `level` are dictionary columns (schema.CODE); `body` int32 is
    where the text without the carrier's prefix starts (what Loki stores); `message` large_string is
    the text without envelope, stamp and level, by the rules of the field dictionary; `columns` are
    further columns of schema.TYPED by name. `rich` (bool) marks lines that need the stream parser
    although no gate word is in them: a stamp in a daylight-saving gap or fold, a header that does not
    fit, a piece of a line.
    """

    ts: pa.Array | None = None
    ts_source: pa.Array | None = None
    level: pa.Array | None = None
    body: pa.Array | None = None
    message: pa.Array | None = None
    columns: Mapping[str, pa.Array] = MappingProxyType({})
    rich: pa.Array | None = None
