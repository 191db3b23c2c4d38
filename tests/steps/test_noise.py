"""Which noise is dropped: rules switched off, streams exempt; the same for one record and for whole columns."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flows.steps.noise import NOISE_IDS, NoiseConfig
from parsers import job_columns
from parsers.schema import CODE, ENVELOPE, NAME


def rows(debug: list[str], pods: list[str]) -> pa.Table:
    """Envelope columns as decode makes them: dictionaries that share their indices, empty where nothing is known."""
    pairs = list(zip(debug, pods, strict=True))
    known = [*dict.fromkeys(pairs), ("TRACE", "a pod that no row is of")]
    index = pa.array([known.index(pair) for pair in pairs], pa.int32())
    values = {"nccl_debug": [pair[0] for pair in known], "pod": [pair[1] for pair in known]}
    return pa.table(
        {
            name: pa.DictionaryArray.from_arrays(index, pa.array(values.get(name, [""] * len(known))))
            for name in ENVELOPE.names
        }
    )


def ids(noise: list[str | None]) -> pa.DictionaryArray:
    index = [None if name is None else NOISE_IDS.index(name) for name in noise]
    return pa.DictionaryArray.from_arrays(pa.array(index, pa.int8()), pa.array(NOISE_IDS)).cast(CODE)


def dropped(config: NoiseConfig, noise: list[str | None], debug: str = "", pod: str = "") -> list[bool]:
    count = len(noise)
    return list(config.mask(ids(noise), rows([debug] * count, [pod] * count)))


MIXED = ["N02", None, "N10", "progress"]


@pytest.mark.parametrize(
    ("config", "headers", "expected"),
    [
        (NoiseConfig(), {}, [True, False, True, True]),
        (NoiseConfig(drop=False), {}, [False] * 4),
        (NoiseConfig(keep=("N10", "progress")), {}, [True, False, False, False]),
        (NoiseConfig(), {"debug": "TRACE"}, [False] * 4),
        (NoiseConfig(), {"debug": "INFO"}, [True, False, True, True]),
        (NoiseConfig(exempt={}), {"debug": "TRACE"}, [True, False, True, True]),
        (NoiseConfig(exempt={"pod": "loud", "nccl_debug": "TRACE"}), {"pod": "loud"}, [False] * 4),
        (NoiseConfig(exempt={"pod": "loud", "nccl_debug": "TRACE"}), {"pod": "other"}, [True, False, True, True]),
    ],
)
def test_what_is_dropped(config: NoiseConfig, headers: dict[str, str], expected: list[bool]) -> None:
    assert dropped(config, MIXED, **headers) == expected


configs = st.builds(
    NoiseConfig,
    drop=st.booleans(),
    keep=st.lists(st.sampled_from(NOISE_IDS), max_size=4).map(tuple),
    exempt=st.dictionaries(st.sampled_from(["nccl_debug", "pod"]), st.sampled_from(["TRACE", "p1", ""]), max_size=2),
)
lines = st.tuples(
    st.sampled_from([None, *NOISE_IDS]), st.sampled_from(["", "TRACE", "INFO"]), st.sampled_from(["", "p1", "p2"])
)


@given(configs, st.lists(lines, min_size=1, max_size=30))
def test_columns_and_single_records_agree(config: NoiseConfig, given_lines: list[tuple[str | None, str, str]]) -> None:
    noise, debug, pods = (list(column) for column in zip(*given_lines, strict=True))
    mask = config.mask(ids(noise), rows(debug, pods))
    assert mask.dtype == np.bool_
    assert list(mask) == [
        config.drops(rule, {"nccl_debug": level, "pod": pod})
        for rule, level, pod in zip(noise, debug, pods, strict=True)
    ]


def test_a_column_of_nothing_but_nulls_drops_nothing() -> None:
    assert not NoiseConfig(keep=("N02",)).mask(pa.nulls(3, CODE), rows([""] * 3, [""] * 3)).any()
    assert not NoiseConfig().drops("", {})


def test_the_ids_that_may_be_kept_are_those_that_parsers_name() -> None:
    written = re.compile(r"""noise(?:"\])? ?= ?"(\w+)\"""")
    sources = "".join(path.read_text() for path in Path(job_columns.__file__).parent.glob("*.py"))
    named = set(written.findall(sources)) | set(job_columns._IDS.to_pylist())
    assert set(NOISE_IDS) == named
    assert len(NOISE_IDS) == len(set(NOISE_IDS))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"keep": ["N02", "N77"]}, "unknown noise rule N77"),
        ({"exempt": {"nccl_debgu": "TRACE"}}, "unknown header nccl_debgu; did you mean nccl_debug"),
        ({"exempt": {"zz": "x"}}, "unknown header zz; did you mean node, cluster"),
    ],
)
def test_a_rule_or_header_that_nobody_knows_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        NoiseConfig.model_validate(settings)


def test_the_columns_are_those_of_the_contract() -> None:
    table = rows(["TRACE"], ["p1"])
    assert set(table.schema.types) == {NAME}
