"""The experiments that come along: each can be run as it stands, and says what its paper says."""

from __future__ import annotations

import re
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch

from pfl_node.lab import spec
from pfl_node.lab.experiment import Experiment, Scale
from pfl_node.lab.measures import MEASURES
from pfl_node.lab.resumption import is_held, segment_of
from pfl_node.lab.spec import SHIPPED, shipped
from pfl_node.learning import images
from pfl_node.learning.datasets import Dataset, Images
from pfl_node.learning.partition import Indices
from pfl_node.learning.task import Data, Place
from pfl_node.learning.tasks import load_task
from pfl_node.settings import TaskSettings
from pfl_node.sim.outcome import fair_accuracy
from tests.unit.cli.run_command import Shell

SCALES: tuple[Scale, ...] = ("quick", "paper")
EMBEDDED = {"attacks-digits", "digits-clusters", "frontier-digits", "liars-digits", "privacy-digits"}
FRONTIER = {"frontier-cifar10", "frontier-digits", "frontier-fashion"}  # all policies at the same bytes
HELD_OUT = {"held-out-27-5", "held-out-angles", "held-out-label-skew"}  # settings of no paper
ONLY_PLOTTED = {"facade-bytes", "facade-idca", "facade-settlement", "pens-clients", "pens-thesis-random"}
WITHOUT_FIGURES = {*EMBEDDED, *FRONTIER, *HELD_OUT, *ONLY_PLOTTED}
NOT_REACHED = re.compile(r"^C = (0\.5|1), B = infinity$")  # the paper's table has a dash
EVERY_ROUND = re.compile("^fedavg-")  # they count rounds
SHAPES = {  # train, test, pixels, channels, classes
    "cifar10": (50_000, 10_000, 32, 3, 10),
    "mnist": (60_000, 10_000, 28, 1, 10),
    "fashion_mnist": (60_000, 10_000, 28, 1, 10),
    "emnist": (124_800, 20_800, 28, 1, 26),
    "imagenette": (9_469, 3_925, 0, 3, 10),
    "image_folder": (40_000, 8_000, 0, 3, 41),  # about as many as Flickr-Mammals has
}


load = cache(spec.load)  # experiments are immutable


def text_of(name: str) -> str:
    return (SHIPPED / f"{name}.toml").read_text(encoding="utf-8")


def printed(experiment: Experiment, run: str, metric: str, point: str = "") -> float:
    (value,) = (f.value for f in experiment.figures if (f.run, f.metric, f.point) == (run, metric, point))
    return value


def test_the_experiments_of_the_papers_are_there() -> None:
    wanted = [
        *(f"facade-cifar10-{kind}" for kind in ("16-16", "24-8", "30-2", "k")),
        *(f"facade-imagenette-{kind}" for kind in ("12-12", "18-6", "20-4")),
        *(f"facade-flickr-{kind}" for kind in ("8-8", "14-2")),
        *(f"facade-{what}" for what in ("settlement", "dpsgd", "idca", "bytes")),
        *(f"fedavg-{model}-{split}" for model, split in product(("2nn", "cnn"), ("iid", "shards"))),
        *("fedavg-cifar10", "fedavg-slides"),
        *(f"feded-{data}" for data in ("mnist", "emnist", "cifar10")),
        *(f"feded-{data}-auxiliary" for data in ("mnist", "emnist", "cifar10")),
        *("feded-mnist-student", "feded-emnist-student", "feded-communication"),
        *(f"pens-{what}" for what in ("cifar10", "four-rotations", "fashion", "sensitivity", "precision")),
        *("pens-samples", "pens-clients", "pens-thesis-200", "pens-thesis-precision"),
        *(f"pens-thesis-{what}" for what in ("random", "iid", "clients")),
        *HELD_OUT,
    ]
    assert sorted({*EMBEDDED, *FRONTIER, *wanted}) == shipped()


@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("scale", SCALES)
def test_it_can_be_shown(name: str, scale: Scale, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = Shell(capsys)("lab", "show", name, "--scale", scale)
    assert (code, err) == (0, "")
    assert all(run in out for run in load(name, scale).runs)


@pytest.mark.parametrize("name", sorted(FRONTIER))
def test_the_policies_of_one_table_all_start_from_one_model(name: str) -> None:
    """Some of them ask for a common start; independent starts of the others would put these at a disadvantage."""
    assert {cell.settings.train.init for cell in load(name, "paper").cells} == {"common"}


@pytest.mark.parametrize("name", shipped())
def test_what_it_says_is_complete(name: str) -> None:
    quick, paper = (load(name, scale) for scale in SCALES)
    assert all((quick.title, quick.paper, quick.about, quick.plots))
    assert set(quick.runs) <= set(paper.runs)
    assert bool(paper.figures) is (name not in WITHOUT_FIGURES)
    assert {f.metric for f in paper.figures} | {c.metric for c in paper.claims} <= set(paper.metrics)
    assert all(len(line) <= 115 for line in text_of(name).splitlines())
    assert "quick scale" in quick.about or name in EMBEDDED
    for cell in paper.cells:
        known = cell.run in {f.run for f in paper.figures} or NOT_REACHED.match(cell.run)
        assert known or name in WITHOUT_FIGURES
    if "rounds_to_target" in paper.metrics:
        assert paper.target is not None


@pytest.mark.parametrize("name", shipped())
def test_it_knows_no_machine(name: str) -> None:
    for scale in SCALES:
        for cell in load(name, scale).cells:
            assert not {"root", "download"} & cell.settings.task.options.keys()
            assert cell.settings.device == "auto"
    assert not re.search(r"""["'](/|~|\w:\\)""", text_of(name))


@pytest.mark.parametrize("name", shipped())
def test_claims_agree_with_the_figures_of_the_paper(name: str) -> None:
    paper = load(name, "paper")
    known = {(f.run, f.point, f.metric): f.value for f in paper.figures}
    for claim in paper.claims:
        for point in paper.points if claim.point is None else [claim.point]:
            high, low = ((run, point, claim.metric) for run in (claim.higher, claim.lower))
            if high in known and low in known:
                assert known[high] - known[low] >= claim.by, (claim, point)


@pytest.mark.parametrize("name", shipped())
def test_the_quick_scale_is_small_and_measures_little(name: str) -> None:
    quick, paper = (load(name, scale) for scale in SCALES)
    work = {e.scale: sum(c.nodes * (c.settings.rounds or 0) for c in e.cells) for e in (quick, paper)}
    assert work["quick"] <= (64_000 if name in EMBEDDED else 10_000)
    assert work["quick"] < work["paper"]
    assert len(quick.seeds) <= 3
    for cell in quick.cells:
        assert cell.nodes <= 50
        assert (cell.settings.rounds or 0) <= 140
        if name in EMBEDDED:
            continue
        assert cell.settings.task.options["tests"] <= 2000, cell.run
        assert cell.settings.eval.on == ("test",)
        looks = (cell.settings.rounds or 0) // cell.settings.eval.every
        assert looks <= 4 or EVERY_ROUND.match(name)
        assert (cell.settings.rounds or 0) % cell.settings.eval.every == 0


# -- the tasks, with data of the right shape and nothing in it -------------------------------------------------


@cache
def empty(name: str, size: int | None = None) -> Dataset:
    """All images are one byte: they take no memory."""
    train, test, pixels, channels, classes = SHAPES[name]
    side = pixels or size or 64

    def blank(n: int) -> Images:
        return Images(np.broadcast_to(np.uint8(0), (n, side, side, channels)), np.arange(n) % classes)

    return Dataset(name, blank(train), blank(test), classes)


def labels_only(of: Images, which: Indices, _: float) -> Data:
    return Data(torch.zeros(len(which), 1), torch.from_numpy(of.y[which]))


@pytest.mark.parametrize("name", [n for n in shipped() if n not in EMBEDDED])
@pytest.mark.parametrize("scale", SCALES)
def test_every_node_can_have_its_data(name: str, scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "load", lambda name, root, *, size, download: empty(name, size))
    experiment = load(name, scale, seeds=1)
    seen: set[str] = set()
    for cell in sorted(experiment.cells, key=lambda cell: "pooled" in cell.settings.task.options):
        few = (
            {"tests": 10, "auxiliary_samples": 10} if "auxiliary" in cell.settings.task.options else {"tests": 10}
        )
        few |= {"tests": 2000} if cell.settings.task.options.get("test_mix") == "own" else {}
        task = TaskSettings(name=cell.settings.task.name, **cell.settings.task.options | few)
        if (told := f"{cell.nodes} {task.model_dump_json()}") in seen:
            continue
        seen.add(told)
        if "pooled" in task.options:  # too much for a test's memory
            monkeypatch.setattr(images, "_data", labels_only)
            images._test.cache_clear()
        found = [load_task(task, Place(i, cell.nodes, 0, f"n{i}")) for i in (0, cell.nodes - 1)]
        clusters = len(task.options.get("angles", [0]))
        everything = cell.nodes == 1 < clusters  # it has the data of all clusters, and belongs to none
        tests = 10 * clusters if everything else 10
        assert {t.cluster for t in found} == ({None} if everything else {0, clusters - 1})
        own = task.options.get("test_mix") == "own"  # then there may be fewer of some classes
        assert all(len(t.train.y) > 0 for t in found)
        assert all(own or len(t.test.y) == tests for t in found if t.test is not None)
        assert not experiment.clusters or len(experiment.clusters) == len(task.options["angles"])


# -- figures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in shipped() if re.match(r"facade-\w+-\d+-\d+$", n)])
def test_the_figures_of_facade_agree_with_each_other(name: str) -> None:
    """The table prints what follows from the others, too: a mistake in copying it would show."""
    paper = load(name, "paper", seeds=1)
    majority, minority = paper.cells[0].settings.task.options["sizes"]
    assert majority + minority == paper.cells[0].nodes
    assert paper.runs == ("EL", "DAC", "DePRL", "FACADE")
    for run in paper.runs:
        high, low = printed(paper, run, "majority"), printed(paper, run, "minority")
        mean = (majority * high + minority * low) / (majority + minority)
        assert printed(paper, run, "accuracy") == pytest.approx(mean, abs=1.5e-4)
        assert printed(paper, run, "fair_accuracy") == pytest.approx(fair_accuracy({0: high, 1: low}), abs=2e-4)


def test_the_figures_of_the_heads_agree_with_each_other() -> None:
    paper = load("facade-cifar10-k", "paper", seeds=1)
    assert paper.cells[0].settings.task.options["sizes"] == [20, 10, 2]
    for run in paper.runs:
        clusters = {i: printed(paper, run, m) for i, m in enumerate(("majority", "middle", "minority"))}
        assert printed(paper, run, "fair_accuracy") == pytest.approx(fair_accuracy(clusters), abs=2e-4)


def test_each_algorithm_has_the_rate_of_the_thesis() -> None:
    paper = load("facade-cifar10-30-2", "paper", seeds=1)
    assert [c.settings.train.lr for c in paper.cells] == [0.05, 0.005, 0.01, 0.01]
    assert {(c.settings.train.steps, c.settings.train.batch, c.nodes) for c in paper.cells} == {(10, 8, 32)}


def test_400_rounds_of_the_30_2_experiment_are_one_command() -> None:
    found = load("facade-cifar10-30-2", "paper", seeds=1, sets=("rounds=400", 'task.root="/data"'))
    assert (found.runs, found.seeds) == (("EL", "DAC", "DePRL", "FACADE"), (0,))
    for cell in found.cells:
        assert (cell.nodes, cell.settings.rounds) == (32, 400)
        assert (segment_of(cell), is_held(cell)) == (20, cell.run != "DAC")
        assert cell.settings.task.options["root"] == "/data"
        assert 400 % cell.settings.eval.every == 0
    claims = {(c.metric, c.lower): c.by for c in found.claims if c.higher == "FACADE"}
    assert claims["minority", "EL"] == pytest.approx(0.1)
    assert {lower for metric, lower in claims if metric == "fair_accuracy"} == {"EL", "DAC", "DePRL"}


def test_pens_searches_for_as_long_as_the_paper_says_and_then_learns_for_as_long_as_the_others() -> None:
    for name in ("pens-cifar10", "pens-four-rotations", "pens-fashion", "pens-samples", "pens-clients"):
        rounds = {c.run: c.settings.rounds for c in load(name, "paper", seeds=1).cells if c.run != "Central"}
        assert rounds == {"Oracle": 333, "PENS": 333 + 200, "Random": 333, "Local": 333}


def test_the_search_of_the_thesis_has_the_values_of_its_table_3_3() -> None:
    table = {50: (2, 1, 5), 200: (10, 4, 20), 1000: (50, 4, 20)}  # epochs, m_selected, m_sample
    for name in ("pens-thesis-precision", "pens-thesis-clients", "pens-thesis-200"):
        for cell in load(name, "paper", seeds=1).cells:
            options = cell.settings.policy.options
            if cell.run == "PENS":
                epochs = options.get("selection_epochs", cell.settings.train.epochs)
                assert (epochs, options["m_selected"], options["m_sample"]) == table[cell.nodes], cell
                assert options["n_samplings"] == 10


@pytest.mark.parametrize("name", ["pens-cifar10", "pens-four-rotations", "pens-fashion", "pens-thesis-200"])
@pytest.mark.parametrize("scale", SCALES)
def test_central_models_learn_from_as_many_images_as_all_clients_together(name: str, scale: Scale) -> None:
    cells = load(name, scale, seeds=1).cells
    found: dict[tuple[bool, str], set[int]] = {}
    for cell in cells:
        options = cell.settings.task.options
        images = cell.nodes * options.get("pooled", 1) * (options["samples"] + options["val"])
        found.setdefault((cell.run.startswith("Central"), cell.point), set()).add(images)
    for point in {cell.point for cell in cells}:
        assert found[True, point] == found[False, point]
        assert len(found[True, point]) == 1


def test_whoever_searches_is_done_with_it_before_the_end() -> None:
    for name, scale in product(shipped(), SCALES):
        for cell in load(name, scale, seeds=1).cells:
            options, rounds = cell.settings.policy.options, cell.settings.rounds or 0
            assert options.get("T", options.get("selection_rounds", 0)) <= rounds, (name, scale)
            assert options.get("warmup", 0) <= rounds / 4, (name, scale)


def test_nobody_waits_for_more_peers_than_there_are() -> None:
    for name, scale in product(shipped(), SCALES):
        for cell in load(name, scale, seeds=1).cells:
            for knob in ("degree", "n_sampled", "n_peers", "m_selected", "m_sample"):
                assert cell.settings.policy.options.get(knob, 0) < cell.nodes, (name, scale, cell.run, knob)


def test_the_rows_of_the_sensitivity_are_what_they_are_called() -> None:
    paper = load("pens-sensitivity", "paper", seeds=1)
    for cell in paper.cells:
        options = cell.settings.policy.options
        assert cell.run == f"{options['m']} of {options['n_sampled']}"
    values = [f.value for f in paper.figures]
    assert len(values) == 15
    assert values == sorted(values, reverse=True)  # as the table is


def test_every_measure_is_of_use_somewhere() -> None:
    used = {metric for name in shipped() for metric in load(name).metrics}
    assert MEASURES.keys() - used == {"models_sent", "loss"}
