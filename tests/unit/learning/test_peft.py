"""LoRA adapters of PEFT on a transformer of Hugging Face: only the adapters travel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfl_node.learning.learner import Learner
from pfl_node.learning.task import Data, Task
from pfl_node.settings import TrainSettings

TOKENS, VOCABULARY = 8, 50

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


class Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens).logits  # type: ignore[no-any-return]


def small_gpt2() -> nn.Module:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=TOKENS, vocab_size=VOCABULARY)
    lora = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    return Logits(get_peft_model(GPT2LMHeadModel(config), lora))


def next_token(output: Tensor, tokens: Tensor) -> Tensor:
    return cross_entropy(output[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def node() -> Learner:
    tokens = (torch.arange(16).view(-1, 1) + torch.arange(TOKENS)) % VOCABULARY
    data = Data(tokens, tokens)
    task = Task("language", small_gpt2, data, val=data, loss=next_token)
    return Learner(task, TrainSettings(lr=0.05, optimizer="adam", epochs=5), "cpu")


def test_only_the_adapters_travel_and_two_nodes_have_one_base() -> None:
    ann, bob = node(), node()
    assert ann.layout == bob.layout
    assert all("lora_" in entry.name for entry in ann.layout.entries)
    assert ann.layout.size == 2 * (16 * 2 + 2 * 48)
    assert {entry.name.split("lora_")[0] for entry in ann.layout.head_entries} == {
        "model.base_model.model.transformer.h.1.attn.c_attn."
    }
    name = "model.base_model.model.transformer.wte.weight"
    assert ann._pool.module.get_parameter(name).data_ptr() == bob._pool.module.get_parameter(name).data_ptr()
    start = ann.fresh(1)
    model = ann.train(start, seed=0)
    assert bob.score([model])[0].loss < bob.score([start])[0].loss
