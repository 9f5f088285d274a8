"""CPU time of evaluating 64 images in processes that return freed memory to the kernel, as a multiple of that in
processes that keep it, and page faults of both.

python -m benchmarks.kept_memory
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from statistics import median

from benchmarks.report import show

NETWORKS = ("facade_lenet", "resnet8", "pens_cnn")
IMAGES, PAIRS, REPEATS = 64, 7, 10


def measure(network: str, keep: bool) -> tuple[float, float]:
    """CPU milliseconds and page faults of one evaluation in this process."""
    import torch

    from pfl_node.learning.malloc import keep_memory
    from pfl_node.learning.models import MODELS

    torch.set_num_threads(1)
    if keep:
        keep_memory()
    module = MODELS[network].build(10, 3, 32).eval()
    images = torch.randn(IMAGES, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        module(images)
        began, faults = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(REPEATS):
            module(images)
        spent = time.process_time() - began
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    return 1000 * spent / REPEATS, faults / REPEATS


def in_a_process(network: str, *keep: str) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.kept_memory", network, *keep]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    ms, faults = json.loads(subprocess.run(command, env=clean, capture_output=True, check=True).stdout)
    return ms, faults


def row(network: str) -> dict[str, object]:
    pairs = [(in_a_process(network), in_a_process(network, "keep")) for _ in range(PAIRS)]
    ratios = [returned[0] / kept[0] for returned, kept in pairs]
    return {
        "network": network,
        "returned / kept": round(median(ratios), 2),
        "range": f"{min(ratios):.2f}-{max(ratios):.2f}",
        "kept, ms": round(median(kept[0] for _, kept in pairs), 1),
        "page faults": f"{median(r[1] for r, _ in pairs):,.0f}, {median(k[1] for _, k in pairs):,.0f}",
    }


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(measure(sys.argv[1], "keep" in sys.argv)))
    else:
        show("Evaluation with memory returned and kept", [row(name) for name in NETWORKS], [f"{IMAGES} images"])
