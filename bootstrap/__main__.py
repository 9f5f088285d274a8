"""`pfl-bootstrap` and `python -m bootstrap`: run the seed in the foreground until a signal arrives."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

from bootstrap.logs import configure_logs
from bootstrap.options import Options, parse
from pfl_node.errors import PflError, Unavailable
from pfl_node.ops.log_lines import as_line, for_people
from pfl_node.ops.loop import run_loop

if TYPE_CHECKING:
    from bootstrap.seed import Seed

log = logging.getLogger("bootstrap")


def main(arguments: list[str] | None = None) -> int:
    """The exit code; 2 for a configuration error."""
    options = None
    try:
        os.umask(0o077)
        options = parse(sys.argv[1:] if arguments is None else arguments)
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are reported by our own logs
        configure_logs(options.log_level, options.log_format)
        return run_loop(serve(options))
    except PflError as error:
        if options is None or for_people(options.log_format, sys.stderr):
            print(f"pfl-bootstrap: {error}", file=sys.stderr)
        else:
            log.error(str(error))
        return 1 if isinstance(error, Unavailable) else 2


async def serve(options: Options) -> int:
    from bootstrap.seed import Seed  # imports gRPC, which reads its verbosity now

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup
    for number in (signal.SIGTERM, signal.SIGINT, *(() if ignored else (signal.SIGHUP,))):
        loop.add_signal_handler(number, stopped.set)
    seed = Seed(options)
    try:
        await seed.start()
        _announce(options, seed)
        await stopped.wait()
    finally:
        await seed.stop()
    return 0


def _announce(options: Options, seed: Seed) -> None:
    """Print the address and how to join, in the format of the logs, to stdout."""
    me, bound = seed.membership.me, seed.endpoint.address
    enrol = seed.enrolment.address if seed.enrolment else None
    join = "a token of `pfl-node ca invite`" if enrol else f"pfl-node --peer-seed {seed.address}"
    if not for_people(options.log_format, sys.stdout, sys.stderr):
        print(as_line("listening", name=me.name, id=me.id, address=bound, join=join, enrol=enrol), flush=True)
        return
    print(f"{me.name} ({me.id}) listens on {bound}", flush=True)
    if enrol:
        print(f"sites with a token of `pfl-node ca invite` join through {enrol}", flush=True)
    else:
        print(f"a node joins with: {join}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
