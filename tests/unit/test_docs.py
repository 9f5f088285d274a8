"""The documents keep up with the code."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pfl_node.cli import PANELS
from pfl_node.cli.options import FLAGS
from pfl_node.lab.measures import MEASURES
from pfl_node.lab.report.plots import PLOTS
from pfl_node.lab.spec_schema import PolicyOrder, Sweep, SweepPoint
from pfl_node.learning.tasks import TASKS, find
from pfl_node.ops.prometheus import FIGURES
from pfl_node.policies import POLICIES
from pfl_node.settings.schema import keys
from pfl_node.sim.faults import FORMS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_setting_is_documented() -> None:
    page = text("docs/configure.md")
    assert [key for key in keys() if f"| `{key}` |" not in page] == []


def test_the_table_of_settings_is_not_stale() -> None:
    done = subprocess.run([sys.executable, str(DOCS / "reference.py"), "--check"], cwd=ROOT, timeout=60)
    assert done.returncode == 0


def test_every_metric_is_documented() -> None:
    page = text("docs/metrics.md")
    assert [f.exported for f in FIGURES if f"| `{f.exported}` |" not in page] == []
    assert len({f.exported for f in FIGURES}) == len(FIGURES)


def test_names_of_metrics_follow_the_conventions_of_prometheus() -> None:
    for figure in FIGURES:
        assert re.fullmatch(r"pfl_node[a-z_]*", figure.exported)
        assert figure.exported.endswith("_total") == (figure.kind == "counter"), figure.exported
        assert not re.search(r"_(ms|kb|mb|percent|minutes)(_|$)", figure.exported), "base units only"
        assert figure.help.endswith(".")


def test_every_measure_plot_and_key_of_the_lab_and_every_task_option_is_documented() -> None:
    page = text("docs/lab.md")
    options = {
        name
        for task in TASKS
        for name, p in inspect.signature(find(task)).parameters.items()
        if p.default is not inspect.Parameter.empty and name != "dataset"
    }
    fields = {*Sweep.model_fields, *SweepPoint.model_fields, *PolicyOrder.model_fields}
    wanted = {*MEASURES, *PLOTS, *options}
    assert sorted(name for name in wanted if f"`{name}`" not in page) == []
    assert sorted(key for key in fields if not re.search(rf"\b{key}\b", page)) == []


def test_every_verb_flag_and_fault_is_documented() -> None:
    page = text("docs/cli.md")
    verbs = [verb.__name__ for group in PANELS.values() for verb in group]
    wanted = [*(f"| `{v}" for v in verbs), *(f"`{f.spelling}" for f in FLAGS), *(f"`{kind}:" for kind in FORMS)]
    assert [words for words in wanted if words not in page] == []


def test_every_policy_is_in_the_readme() -> None:
    page = text("README.md")
    assert [name for name in POLICIES if f"| `{name}` |" not in page] == []


def test_every_policy_has_a_row_of_the_algorithms() -> None:
    page = text("docs/algorithms.md")
    assert [name for name in POLICIES if f"| `{name}` |" not in page] == []


PAGES = [str(page.relative_to(ROOT)) for page in [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]]
WIDTH = 100
GENERATED = re.compile(r"<!-- (\w+): begin .*?<!-- \1: end -->", re.DOTALL)


def prose(name: str) -> str:
    """A document without its code blocks and generated tables."""
    return re.sub(r"^ *```.*?^ *```$", "", GENERATED.sub("", text(name)), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of its headings, as GitHub makes them."""
    lines = prose(str(page.relative_to(ROOT))).splitlines()
    titles = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", PAGES)
def test_links_between_the_documents_lead_somewhere(name: str) -> None:
    broken = []
    for link in re.findall(r"\]\((?!https?:)([^)]+)", prose(name)):
        path, _, anchor = link.partition("#")
        page = ((ROOT / name).parent / path).resolve() if path else ROOT / name
        if not page.exists() or (anchor and page.suffix == ".md" and anchor not in anchors(page)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("name", PAGES)
def test_prose_is_wrapped(name: str) -> None:
    """Tables cannot be; everything else that is not code ends before column 100."""
    long = [line for line in prose(name).splitlines() if len(line) > WIDTH and not line.lstrip().startswith("|")]
    assert long == []


MODULE = re.compile(r"`((?:[a-z_]+/)+[a-z_0-9]+\.py)`|tests/[a-z_0-9/]+\.py|python -m (tests\.[a-z_.]+)")


@pytest.mark.parametrize("name", PAGES)
def test_files_named_in_the_documents_exist(name: str) -> None:
    named = {m[1] or (m[2].replace(".", "/") if m[2] else m[0]) for m in MODULE.finditer(text(name))}
    roots = (ROOT, ROOT / "pfl_node")
    found = {p for p in named for r in roots if (r / p).exists() or (r / f"{p}.py").exists()}
    assert sorted(named - found) == []


def test_the_architecture_fits_on_a_few_screens() -> None:
    assert len(text("ARCHITECTURE.md").splitlines()) <= 150


def test_the_example_of_a_task_is_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pfl_node.learning.task import Place
    from pfl_node.learning.tasks import load_task
    from pfl_node.settings import TaskSettings

    monkeypatch.setattr(sys, "path", [*sys.path])  # the task's folder is put there
    example, *_ = re.findall(r"```python\n(.*?)```", text("docs/write-a-task.md"), re.DOTALL)
    file = tmp_path / "hospital.py"
    file.write_text(example)
    settings = TaskSettings.model_validate({"name": f"{file}:ward", "folder": "/data/ward-3"})
    task = load_task(settings, Place(index=None, nodes=None, seed=1, node_id="a"))
    assert task.train.x.shape[1:] == (16,)
    assert task.model()(task.train.x).shape[1:] == (3,)


@pytest.mark.filterwarnings("default")  # torch.optim imports the compiler, which warns
def test_the_examples_of_a_metric_and_of_a_training_loop_work() -> None:
    import torch

    from pfl_node.learning.learner import Learner
    from pfl_node.learning.task import Data, Task
    from pfl_node.model import StateCell
    from pfl_node.settings import TrainSettings

    names: dict[str, Any] = {"torch": torch}
    for example in re.findall(r"```python\n(.*?)```", text("docs/write-a-task.md"), re.DOTALL)[1:]:
        exec(example, names)
    y = torch.arange(40) % 2
    chance = torch.Generator().manual_seed(0)
    data = Data(torch.randn(40, 3, generator=chance) + 2 * y.view(-1, 1), y.float().view(-1, 1))
    own = {"metrics": {"auc": names["auc"]}, "best": "auc", "fit": names["fit"]}
    task = Task("t", lambda: torch.nn.Linear(3, 1), data, data, loss=torch.nn.BCEWithLogitsLoss(), **own)
    me = Learner(task, TrainSettings(), "cpu")
    cell = StateCell(me.start(0))
    trained = me.train(me.fresh(0), seed=1, prox=0.1, state=cell)
    assert cell.state.facts == {"fit/rounds": 1}
    assert me.score([trained])[0].metrics["auc"] > 0.5


def test_the_examples_of_settings_can_be_loaded(tmp_path: Path) -> None:
    from pfl_node.settings.load import load_settings

    for example in re.findall(r"```toml\n(.*?)```", text("docs/configure.md"), re.DOTALL):
        file = tmp_path / "exp.toml"
        file.write_text(example)
        assert load_settings(config=file).policy.name == "pens"


def test_every_cell_of_the_threat_model_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    section = text[text.index("## Threat model") : text.index("## Attacks on a node")]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")]
    cells = [row for row in rows if row[0].strip() not in ("asset", "---")]
    known = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    assert len(cells) > 30
    for _, limit, tests in cells:
        assert limit.strip().startswith(("prevented", "limited", "not prevented")), limit
        named = set(re.findall(r"`(test_\w+)`", tests))
        assert named, limit
        assert named <= known, named - known
