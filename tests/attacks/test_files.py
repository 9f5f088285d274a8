"""Other users of the machine, and what an image installs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

from pfl_node.aggregate import combine
from pfl_node.model import Entry, Layout, Model
from pfl_node.settings import AggregateSettings
from pfl_node.store.atomic import temporary, write_atomic
from tests.attacks.conftest import Figure

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"^([a-z0-9-]+)==(\S+)$", re.M)


def test_a_link_in_place_of_a_temporary_file_is_not_followed(tmp_path: Path, figure: Figure) -> None:
    victim, file = tmp_path / "victim", tmp_path / "journal"
    victim.write_text("mine")
    temporary(file).symlink_to(victim)
    write_atomic(file, b"ours")
    written = 0 if victim.read_text() == "mine" else victim.stat().st_size
    assert (victim.read_text(), file.read_bytes(), file.is_symlink()) == ("mine", b"ours", False)
    figure("a link in place of a temporary file", "its target is overwritten", f"{written} bytes written to it")


def test_images_install_versions_that_were_tested_and_one_index_for_all_but_torch(figure: Figure) -> None:
    versions = dict(PIN.findall((ROOT / "docker" / "constraints.txt").read_text()))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [Requirement(line) for line in project["dependencies"]]
    for requirement in needed:
        if requirement.name != "torch":
            assert requirement.specifier.contains(versions[requirement.name]), requirement
    for image in ("node", "bootstrap"):
        stages = (ROOT / "docker" / f"{image}.Dockerfile").read_text().split("\nFROM ")
        extra = [stage for stage in stages if "ARG PIP_EXTRA_INDEX_URL" in stage]
        assert all(stage.startswith("${BASE} AS torch") for stage in extra)
        assert not [
            line
            for line in "".join(stages).splitlines()
            if "pip install" in line and "-c /" not in line and "--no-index" not in line and "wheel" not in line
        ]
    figure("newer versions of dependencies", "the newest is installed", f"{len(versions)} versions are fixed")


@pytest.mark.parametrize(("claim", "most"), [(None, 1.0), (10, 0.53), (1, 0.1)])
def test_the_weight_of_one_liar_among_ten_nodes_is_limited_by_the_setting(
    figure: Figure, claim: float | None, most: float
) -> None:
    layout = Layout((Entry("core", (1,)),), (Entry("head", (1,)),))
    zero, one = (Model(layout, np.full(2, value, np.float32)) for value in (0.0, 1.0))
    merged = combine(
        AggregateSettings(claim=claim), zero, [zero] * 8 + [one], [100.0] * 8 + [1e12], 100.0, claimed=True
    )
    share = float(merged.vector[0])
    assert share <= most + 0.005
    figure(
        f"one liar of ten claims 10^12 samples, aggregate.claim = {claim}", "100 %", f"{share:.0%} of the weight"
    )


def test_the_examples_with_shared_keys_say_so() -> None:
    compose = (ROOT / "compose" / "compose.tls.yaml").read_text()
    overlay = (ROOT / "compose" / "k8s" / "overlays" / "tls" / "kustomization.yaml").read_text()
    assert "each of them can read the keys of all" in compose
    assert "The secret holds the keys of all nodes" in overlay
