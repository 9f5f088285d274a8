"""A worker process that answers, hangs or dies, depending on the task's name, without training."""

from __future__ import annotations

import json
import os
import signal
import sys
import time


def tell(**said: object) -> None:
    print(json.dumps(said), flush=True)


for line in sys.stdin:
    task = json.loads(line)["settings"]["task"]["name"]
    if task == "die":
        sys.exit(3)
    if task == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "hang":
        tell(event="progress", pid=os.getpid())
        time.sleep(600)
    tell(event="done", summary=task)
