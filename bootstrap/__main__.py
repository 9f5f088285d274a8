"""`pfl-bootstrap` and `python -m bootstrap`: runs the seed in the foreground until a signal comes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from bootstrap.logs import configure_logs
from bootstrap.options import Options, parse
from pfl_node.errors import PflError
from pfl_node.ops.loop import run_loop
from pfl_node.security.overheard import Overheard


def main(arguments: list[str] | None = None) -> int:
    """The exit code; 2 for a user's mistake."""
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong we tell ourselves
        ears = Overheard() if options.why_tls else None
        configure_logs(options.log_level, options.log_format)
        return run_loop(serve(options, ears))
    except PflError as error:
        print(f"pfl-bootstrap: {error}", file=sys.stderr)
        return 2


async def serve(options: Options, ears: Overheard | None = None) -> int:
    from bootstrap.seed import Seed  # loads gRPC, which reads now how much it is to say

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    seed = Seed(options)
    try:
        await seed.start(ears)
        me = seed.membership.me
        print(f"{me.name} ({me.id}) listens on {seed.endpoint.address}", flush=True)
        print(f"a node joins with: pfl-node --peer-seed {seed.address}", flush=True)
        await stopped.wait()
    finally:
        await seed.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
