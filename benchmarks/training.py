"""CPU time of a node's training against a bare PyTorch loop, with data in memory and with a DataLoader, and the
memory of nodes whose data or outputs are large."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from benchmarks.report import show
from benchmarks.tasks import facade_lenet
from pfl_node.learning.learner import Learner
from pfl_node.learning.task import Task
from pfl_node.settings import DataSettings, TrainSettings

VOCABULARY, TOKENS = 50257, 128  # GPT-2's


class Case(NamedTuple):
    """A model, its samples and a training."""

    model: Callable[[], nn.Module]
    sample: Callable[[int], dict[str, Tensor]]
    samples: int
    batch: int
    steps: int


class Rows(Dataset[dict[str, Tensor]]):
    """Samples that are computed when they are read, with a random shift."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __len__(self) -> int:
        return self.case.samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.case.sample(index)


def image(index: int, side: int = 32) -> dict[str, Tensor]:
    x = torch.randn(3, side, side, generator=torch.Generator().manual_seed(index))
    return {"x": x if torch.rand(()) < 0.5 else x.flip(2), "label": torch.tensor(index % 10)}


def text(index: int) -> dict[str, Tensor]:
    """Random tokens, as a data set that was tokenized in advance."""
    words = torch.randint(5000, (64,), generator=torch.Generator().manual_seed(index))
    return {"input_ids": words, "labels": words}


def resnet() -> nn.Module:
    from torchvision.models import resnet18

    return resnet18(num_classes=10)  # type: ignore[no-any-return]


def lora() -> nn.Module:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=5000, n_positions=64, n_embd=256, n_layer=4, n_head=4)
    adapter = LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True)
    return get_peft_model(GPT2LMHeadModel(config), adapter)


CASES = {
    "LeNet": Case(facade_lenet, image, 1000, 32, 30),
    "ResNet-18": Case(resnet, image, 200, 16, 4),
    "LoRA, GPT-2 of 4 layers": Case(lora, text, 200, 8, 5),
}


# -- the bare loop ---------------------------------------------------------------------------------------------


class Bare:
    """Model, optimizer and loop as a tutorial has them; images channels last."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.model = case.model().to(memory_format=torch.channels_last)

    def train(self, batches: Iterator[dict[str, Tensor]]) -> None:
        self.model.train()
        learning = [p for p in self.model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(learning, lr=0.01)
        for batch in islice(batches, self.case.steps):
            optimizer.zero_grad()
            self.loss(batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        if "x" not in batch:
            return self.model(**batch).loss  # type: ignore[no-any-return]
        x = batch["x"].contiguous(memory_format=torch.channels_last)
        return cross_entropy(self.model(x), batch["label"])


def in_memory(case: Case) -> Callable[[], Iterator[dict[str, Tensor]]]:
    rows = [case.sample(i) for i in range(case.samples)]
    columns = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    if columns.get("x") is not None:
        columns["x"] = columns["x"].contiguous(memory_format=torch.channels_last)

    def batches() -> Iterator[dict[str, Tensor]]:
        while True:
            for index in torch.split(torch.randperm(case.samples), case.batch):
                if len(index) == case.batch:
                    yield {key: column[index] for key, column in columns.items()}

    return batches


def loaded(case: Case, workers: int) -> Callable[[], Iterator[dict[str, Tensor]]]:
    more: dict[str, Any] = {}
    if workers:
        more = {"persistent_workers": True, "multiprocessing_context": "forkserver", "prefetch_factor": 2}
    loader = DataLoader(Rows(case), case.batch, shuffle=True, drop_last=True, num_workers=workers, **more)
    return lambda: iter(loader)


# -- the comparison --------------------------------------------------------------------------------------------


def node(case: Case, data: DataSettings) -> Learner:
    train = TrainSettings(lr=0.01, batch=case.batch, steps=case.steps)
    few = Rows(case._replace(samples=4))
    return Learner(Task("bench", case.model, Rows(case), val=few, test=few), train, "cpu", data=data)


def cpu() -> float:
    """CPU seconds of this process and, to a hundredth of a second, of its workers."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(t.user + t.system for t in times)


def timed(work: Callable[[], object]) -> float:
    began = cpu()
    work()
    return cpu() - began


def compare(name: str, way: str, repeats: int) -> dict[str, Any]:
    """Node and bare loop in turn, so that noise affects both alike."""
    case = CASES[name]
    workers = int(way.split()[-2]) if "workers" in way else 0
    data = DataSettings(memory="always" if way == "in memory" else "never", workers=workers)
    me, bare = node(case, data), Bare(case)
    read = in_memory(case) if way == "in memory" else loaded(case, workers)
    model, ours, theirs = me.fresh(0), list[float](), list[float]()
    for turn in range(repeats + 1):
        first = timed(partial(me.train, model, seed=turn))
        second = timed(lambda: bare.train(read()))
        if turn:  # the first turn is a warm-up
            ours.append(first)
            theirs.append(second)
    me.close()
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "model": name,
        "data": way,
        "node, CPU ms per step": 1000 * median(ours) / case.steps,
        "bare": 1000 * median(theirs) / case.steps,
        "ratio": median(ratios),
        "spread": f"{min(ratios):.2f}-{max(ratios):.2f}",
    }


def overhead(repeats: int) -> None:
    ways = ("in memory", "DataLoader", "DataLoader, 2 workers")
    rows = [compare(name, way, repeats) for name in CASES for way in ways]
    notes = [
        "a training of a node (load, steps, export) against as many steps of a bare loop, both on one thread",
        "aim: at most 1.05 in memory, 1.10 with a DataLoader",
    ]
    show("training: a node against bare PyTorch", rows, notes)


# -- memory ----------------------------------------------------------------------------------------------------


class Lazy(Dataset[tuple[Tensor, int]]):
    """200,000 images of 3x64x64 that are computed when they are read."""

    def __len__(self) -> int:
        return 200_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(index))
        return x + 0.1 * torch.randn(()), index % 10


def images() -> Task:
    model = nn.Sequential(nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 15 * 15, 10))
    return Task("images", lambda: model, Lazy(), train_defaults={"steps": 40, "batch": 32})


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(VOCABULARY, 64), nn.Linear(64, VOCABULARY)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.table(x))).transpose(1, 2)  # type: ignore[no-any-return]


def language() -> Task:
    words = torch.randint(VOCABULARY, (200, TOKENS), generator=torch.Generator().manual_seed(0))
    few = (words[:8], words[:8])
    return Task(
        "language", LanguageModel, few, val=(words, words), test=few, train_defaults={"steps": 1, "batch": 2}
    )


MEMORY = {"images": images, "language": language}


def peak(name: str, workers: int) -> None:
    """Run in a process of its own: one round and an evaluation; prints the largest resident sizes in MB."""
    import resource

    me = Learner(MEMORY[name](), TrainSettings(), "cpu", data=DataSettings(workers=workers))
    model = me.train(me.fresh(0), seed=0)
    me.score([model], split="val", samples=1280 if name == "images" else None)
    children = psutil.Process().children(recursive=True)
    together = sum(child.memory_full_info().pss for child in children)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, together / 1e6)


def memory() -> None:
    rows = []
    for name, workers, what in (
        ("images", 0, "200,000 lazy images (3x64x64): 40 steps of 32, 1,280 samples scored"),
        ("images", 2, "the same with data.workers = 2"),
        ("language", 0, "language model (128 tokens, 50,257 words): 200 sequences scored"),
    ):
        command = [sys.executable, "-m", "benchmarks.training", "peak", name, str(workers)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        own, others = map(float, done.stdout.split())
        rows.append({"what": what, "peak RSS of the node, MB": own, "of its workers, MB": others})
    show(
        "training: memory", rows, ["aim: below 1,500 MB for the images, 2,000 MB for the language model"], "memory"
    )


def main() -> None:
    torch.set_num_threads(1)
    words = sys.argv[1:] or ["7"]
    if words[0] == "peak":
        peak(words[1], int(words[2]))
    elif words[0] == "memory":
        memory()
    else:
        overhead(int(words[0]))


if __name__ == "__main__":
    main()
