"""A process that tries the schedules it is told. Orders come as lines on stdin, whose end is the end."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from pfl_node.sim.sim_worker import Voice, listen, reason
from pfl_node.testing.schedules.campaign import Asked, try_some


def main() -> None:
    voice = Voice()
    orders: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=listen, args=(orders,), daemon=True).start()
    while True:
        asked = Asked.load(orders.get())
        try:
            told = try_some(asked)
        except Exception as error:
            voice.tell("failed", why=reason(error))
        else:
            voice.tell("done", summary=vars(told))


if __name__ == "__main__":
    main()
