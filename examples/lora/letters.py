"""LoRA on a small GPT-2: the adapter is trained and travels, the base model stays where it is."""

import warnings

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

LETTERS, LENGTH = 26, 24
warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)  # PEFT calls an old name of it


def letters(index: int | None = None, seed: int = 0, r: int = 4) -> dict[str, object]:
    """Continue words of a made-up language; each site speaks a dialect of it."""
    train, test = words(160, seed, index or 0, 0), words(40, seed, index or 0, 1)
    return {
        "model": lambda: adapted(r),
        "train": [{"input_ids": row, "labels": row} for row in train],  # the model computes its loss from `labels`
        "test": [{"input_ids": row, "labels": row} for row in test],
        "train_defaults": {"optimizer": "adamw", "lr": 0.02, "batch": 16, "keep_optimizer": True},
    }


def adapted(r: int) -> nn.Module:
    """The frozen base is the same at every site. A real one: GPT2LMHeadModel.from_pretrained("gpt2")."""
    size = {"vocab_size": LETTERS, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}
    base = GPT2Config(**size, bos_token_id=None, eos_token_id=None)
    layers = ["c_attn", "c_proj", "c_fc"]
    config = LoraConfig(r=r, lora_alpha=16, target_modules=layers, fan_in_fan_out=True, task_type="CAUSAL_LM")
    return get_peft_model(GPT2LMHeadModel(base), config)


def words(count: int, seed: int, index: int, split: int) -> torch.Tensor:
    """Letters that follow each other as in the language, or, sometimes, as in the site's dialect."""
    language = np.random.default_rng(seed).permutation(LETTERS)
    dialect = np.random.default_rng([seed, index % 2]).permutation(LETTERS)
    rng = np.random.default_rng([seed, index, split])
    text = rng.integers(0, LETTERS, (count, LENGTH))
    for t in range(1, LENGTH):
        spoken = np.where(rng.random(count) < 0.8, language[text[:, t - 1]], dialect[text[:, t - 1]])
        text[:, t] = spoken
    return torch.tensor(text)
