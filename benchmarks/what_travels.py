"""What travels, and memory, if most of a model is frozen: GPT-2 small with LoRA, and a frozen ResNet-18.

The nodes are a real swarm in one worker process. The plain loop is PyTorch and PEFT with the same model, batches
and evaluations. Memory is the peak resident set (VmHWM) of the process that trains.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.report import show
from pfl_node.learning.task import Data, Task

MB = 1e6
ROUNDS, STEPS, BATCH, TOKENS, VOCABULARY, SEQUENCES = 2, 1, 4, 128, 50257, 8
NODES = (1, 3)


# -- tasks -----------------------------------------------------------------------------------------------------


class Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens).logits  # type: ignore[no-any-return]


def gpt2() -> nn.Module:
    """GPT-2 small with random weights, and LoRA of rank 8 on its attention."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    lora = LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True)
    return Logits(get_peft_model(GPT2LMHeadModel(GPT2Config()), lora))


def next_token(output: Tensor, tokens: Tensor) -> Tensor:
    return cross_entropy(output[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def sequences(seed: int, n: int) -> Data:
    tokens = torch.randint(VOCABULARY, (n, TOKENS), generator=torch.Generator().manual_seed(seed))
    return Data(tokens, tokens)


def language(index: int) -> Task:
    few = sequences(1000, BATCH)
    return Task("language", gpt2, sequences(index, SEQUENCES), val=few, test=few, loss=next_token)


def images(index: int) -> Task:
    """A frozen ResNet-18 and a new last layer for four classes."""
    from torchvision.models import resnet18

    def model() -> nn.Module:
        made: nn.Module = resnet18().requires_grad_(False)
        made.fc = nn.Linear(512, 4)
        return made

    chance = torch.Generator().manual_seed(index)
    data = Data(torch.randn(32, 3, 64, 64, generator=chance), torch.arange(32) % 4)
    return Task("images", model, data, val=data, test=data)


# -- measurements ----------------------------------------------------------------------------------------------


def plain() -> None:
    """The work of one node as a PyTorch loop."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, (x, _), (few, _) = gpt2(), sequences(0, SEQUENCES), sequences(1000, BATCH)
    rule = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(ROUNDS):
        model.train()
        for rows in torch.split(torch.randperm(SEQUENCES)[: STEPS * BATCH], BATCH):
            rule.zero_grad()
            next_token(model(x[rows]), x[rows]).backward()  # type: ignore[no-untyped-call]
            rule.step()
        model.eval()
        with torch.inference_mode():
            next_token(model(few), few)


def peak(command: list[str]) -> float:
    """The peak resident set in MB of the largest process of a command."""
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.DEVNULL)
    most = 0.0
    while process.poll() is None:
        try:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            most = max(most, *(high_water(one.pid) for one in family))
            process.wait(0.05)
        except (psutil.Error, OSError, subprocess.TimeoutExpired):
            continue
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(command)}")
    return most / MB


def high_water(pid: int) -> float:
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return max((float(row.split()[1]) * 1024 for row in rows if row.startswith("VmHWM")), default=0.0)


def swarm(task: str, nodes: int, out: Path) -> dict[str, float]:
    told = {"train.optimizer": "adam", "train.lr": 1e-3, "train.steps": STEPS, "train.batch": BATCH}
    told |= {"eval.batch": BATCH, "eval.on": "val", "store.checkpoint_every": 1}
    sets = [word for key, value in told.items() for word in ("--set", f"{key}={value}")]
    base = ["pfl_node", "swarm", "--no-live", "--workers", "1", "--log-level", "warning"]
    what = ["--task", f"{__file__}:{task}", "--policy", "el", "--rounds", str(ROUNDS)]
    memory = peak([*base, *what, "--nodes", str(nodes), "--out", str(out), *sets])
    return {"peak_mb": memory, **sizes(out)}


def sizes(out: Path) -> dict[str, float]:
    rows = json.loads((out / "summary.json").read_text())["per_node"]
    sent = sum(row["models_sent"] for row in rows)
    return {
        "wire_mb": sum(row["bytes_sent"] for row in rows) / sent / MB if sent else float("nan"),
        "checkpoint_mb": max(file.stat().st_size for file in out.rglob("checkpoint-*")) / MB,
        "model_mb": max(file.stat().st_size for file in out.rglob("model.safetensors")) / MB,
    }


def main() -> None:
    if sys.argv[1:] == ["plain"]:
        return plain()
    rows: list[dict[str, Any]] = []
    alone = peak(["benchmarks.what_travels", "plain"])
    first = alone
    rows.append(row("GPT-2 small, LoRA r=8", "plain PyTorch loop", {"peak_mb": alone}, alone))
    for nodes in NODES:
        with tempfile.TemporaryDirectory(prefix="pfl-bench-") as folder:
            found = swarm("language", nodes, Path(folder))
        first = found["peak_mb"] if nodes == 1 else first
        further = (found["peak_mb"] - first) / (nodes - 1) if nodes > 1 else None
        rows.append(row("GPT-2 small, LoRA r=8", f"{nodes} nodes", found, alone, further))
    with tempfile.TemporaryDirectory(prefix="pfl-bench-") as folder:
        rows.append(row("frozen ResNet-18", "2 nodes", swarm("images", 2, Path(folder))))
    show(
        "what travels",
        rows,
        [f"{ROUNDS} rounds of {STEPS} batches of {BATCH} x {TOKENS} tokens, `el`, one process"],
    )
    return None


def row(
    model: str, what: str, found: dict[str, float], alone: float | None = None, further: float | None = None
) -> dict[str, Any]:
    def text(value: float | None, digits: str) -> str:
        return "" if value is None or value != value else format(value, digits)

    return {
        "model": model,
        "who": what,
        "on the wire, MB per model": text(found.get("wire_mb"), ".4f"),
        "checkpoint, MB": text(found.get("checkpoint_mb"), ".3f"),
        "model.safetensors, MB": text(found.get("model_mb"), ".3f"),
        "peak memory, MB": text(found["peak_mb"], ",.0f"),
        "against plain": text(alone and found["peak_mb"] / alone, ".2f"),
        "MB per further node": text(further, ".0f"),
    }


if __name__ == "__main__":
    main()
