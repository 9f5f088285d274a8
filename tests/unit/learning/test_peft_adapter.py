"""The adapter of a PEFT model: `pfl_node.load` gives a PEFT model, and its export loads in PEFT."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pfl_node.cli import main
from pfl_node.daemon.embedded_node import Node
from pfl_node.learning.personal_model import load

LETTERS = Path(__file__).parents[3] / "examples" / "lora" / "letters.py"


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_an_adapter_loads_in_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peft = pytest.importorskip("peft")
    monkeypatch.syspath_prepend(str(LETTERS.parent))
    home, out = tmp_path / "node", tmp_path / "adapter"
    node = Node(f"{LETTERS}:letters", "local", rounds=1, data_dir=home, train={"steps": 2})
    assert node.run_blocking() == "done"
    mine = load(home)
    assert isinstance(mine, peft.PeftModel)
    assert (home / "model.safetensors").stat().st_size < 40_000  # without the base
    assert main(["export", str(home), "--peft", str(out)]) == 0
    base = mine.get_base_model()
    ids = torch.arange(12).view(1, 12)
    with torch.no_grad():
        expected = mine(ids).logits
        again = peft.PeftModel.from_pretrained(base, str(out), adapter_name="again")
        again.set_adapter("again")
        torch.testing.assert_close(again(ids).logits, expected)
