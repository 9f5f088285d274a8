"""A job that answers, hangs or dies, depending on the task's name, without training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pfl_node.errors import PflError, TaskError
from pfl_node.sim.run_jobs import OnProgress


def run(order: str, on_progress: OnProgress) -> Any:
    told = json.loads(order)
    task, out = told["settings"]["task"]["name"], told["out"]
    match task:
        case "die":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "die once":
            if not Path(out).exists():
                Path(out).touch()
                os._exit(3)
        case "hang":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            on_progress(lambda: {"pids": [os.getpid(), child.pid]})
            time.sleep(600)
        case "end in order":
            signal.signal(signal.SIGTERM, lambda *_: Path(out).touch())
            on_progress(lambda: {"pids": [os.getpid()]})
            while not Path(out).exists():
                time.sleep(0.01)
            os._exit(0)
        case "mistake":
            raise TaskError("your task")
        case "failure":
            raise PflError("our failure")
        case "print":
            print("printed")
            print("logged", file=sys.stderr, flush=True)
        case "environment":
            return [os.environ["OMP_NUM_THREADS"], os.getpid()]
    return task
