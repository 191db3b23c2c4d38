"""What Slurm's archive keeps of a job: its batch script, and its environment. One record per line.

    job_8001.sh    `scontrol write batch_script`: any text, kept as it is
    job_8001.env   `env` or `printenv` NAME=value · `export -p` declare -x NAME="value", export NAME='value'
                   /proc/PID/environ: NULs between the variables, so that a line holds several records

A value with line feeds goes on in lines of its own, which are records too. The job is told by the file's name.
"""

import re
from collections.abc import Sequence

from parsers.json_lines import CONTROLS, no_header, placed, plain
from parsers.kernel_rules import Fields
from parsers.record import Line, Parser, Record, Ref, Stream, decode
from parsers.slurm_text import job_of_path

_LONGEST = 200  # characters of a name
_VARIABLE = re.compile(
    rf"(?:(?:export|declare(?: -\w+)?|typeset(?: -\w+)?|setenv) +)?([A-Za-z_][\w.-]{{0,{_LONGEST}}})=(.*)",
    re.ASCII | re.DOTALL,
)
_QUOTED = re.compile(r"\$?(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)')", re.DOTALL)


class ScriptStream:
    """Stream parser of a batch script."""

    held: Sequence[Ref] = ()

    def __init__(self, stream: Stream) -> None:
        self.job = job_of_path(stream.path) if stream.path else None

    def feed(self, line: Line) -> list[Record]:
        flags = set(line.flags)
        records = []
        for part, text in enumerate(filter(None, self.texts(decode(line.raw, flags)))):
            fields: Fields = {"message": text, **self.said(text)}
            if self.job is not None:
                fields["job_id"] = self.job
            records.append(placed(Record(fields, line.refs, flags=set(flags), part=part), line))
        return records

    def texts(self, text: str) -> list[str]:
        """The texts of a line's records."""
        return [plain(text).rstrip(CONTROLS)]

    def said(self, text: str) -> Fields:  # noqa: ARG002 - an environment says more
        return {}

    def flush(self) -> list[Record]:
        return []


class EnvironmentStream(ScriptStream):
    """Stream parser of an environment: the same, with `env_name` and `env_value`."""

    def texts(self, text: str) -> list[str]:
        return [plain(part).rstrip(CONTROLS) for part in text.split("\0")]

    def said(self, text: str) -> Fields:
        found = _VARIABLE.match(text)
        if not found:
            return {}
        name, value = found[1], found[2]
        if quoted := _QUOTED.fullmatch(value):
            value = quoted[2] if quoted[1] is None else re.sub(r"\\([\"\\$`])", r"\1", quoted[1])
        return {"env_name": name, "env_value": value}


JOB_SCRIPT = Parser(ScriptStream, no_header)
JOB_ENV = Parser(EnvironmentStream, no_header)
