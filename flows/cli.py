"""The command `tailrace`: finds the subcommand and hands over. Heavy libraries are loaded by the subcommand only."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple


class Command(NamedTuple):
    """`run` is `module:function`; the function takes the arguments and returns the exit status."""

    run: str
    help: str


COMMANDS = {
    "run": Command("flows.run:run", "run the tier: one process of it"),
    "alerts": Command("flows.alerts:run", "run the evaluator: turns what the tier found into alerts"),
    "check": Command("flows.run:check", "validate a configuration and ask every broker and store it names"),
    "topics": Command("flows.topics:main", "create the Kafka topics, or check them"),
    "compact": Command("flows.archive:compact", "sort the archive into files by kind and hour, and drop what is old"),
    "archive": Command("flows.archive:archive", "list the archive's files, for DuckDB and others"),
    "replay": Command("flows.replay:replay", "read a part of what was logged once more, into any store"),
    "parse": Command("flows.parse:parse", "explain what a log file becomes: one JSON object per record"),
    "demo": Command("flows.demo.command:demo", "watch a training job die, with nothing else running"),
}

_EXAMPLES = """\
examples:
  tailrace demo
  tailrace check --config tailrace.toml && tailrace run --config tailrace.toml
  tailrace parse --kind kmsg kmsg.log
  kubectl exec POD -- cat LOG | tailrace parse --kind training -
  tailrace COMMAND --help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that the first argument names; without one, print what there is (exit status 2)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in COMMANDS:
        module, function = COMMANDS[arguments[0]].run.split(":")
        status: int = getattr(import_module(module), function)(arguments[1:])
        return status
    listed = "\n".join(f"  {name:10} {command.help}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="tailrace",
        usage="tailrace COMMAND [options]",
        description=f"Logs of GPU clusters: Kafka in; Loki, Azure Monitor Logs and Parquet out.\n\ncommands:\n{listed}",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of the commands above")
    parser.parse_args(arguments)
    return 2
