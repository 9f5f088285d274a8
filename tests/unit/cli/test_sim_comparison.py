"""Several policies or seeds in one table: what is read from the command line, printed, written and refused."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pfl_node.cli.lab import progress_bars
from pfl_node.cli.sim import show_comparison, split_sets
from pfl_node.errors import ConfigError
from pfl_node.lab.policy_comparison import Entrant, Fit, PolicyComparison
from pfl_node.policies import POLICIES, knobs_of, policies_in
from pfl_node.settings import Settings
from pfl_node.settings.load import load_settings
from tests.unit.cli.run_command import Shell

QUICK = ("sim", "--nodes", "2", "--rounds", "1", "--set", "train.steps=1")
ALONE = ("--workers", "1")  # each worker imports torch
RUN = {
    "accuracy": 0.9,
    "accuracy_by_cluster": {"0": 0.9},
    "models_sent": 1,
    "bytes_sent": 2_000_000,
    "cpu_seconds": 3.0,
}


def test_a_table_is_printed_and_written_and_who_cannot_run_says_why(shell: Shell, tmp_path: Path) -> None:
    knobs = ["--set", "policy.el.degree=1", "--set", "policy.all_reduce=true"]
    outcome = shell(*QUICK, *knobs, *ALONE, "--policy", "el,local,feded", "--seeds", "2", "--out", str(tmp_path))
    assert (outcome.code, outcome.err) == (0, "")
    title, head, *rows = outcome.out.splitlines()
    assert title == "digits, 2 nodes, 1 rounds, seeds 0 to 1"
    assert head.split()[:4] == ["policy", "accuracy", "cluster", "0"]
    assert {row.split()[0] for row in rows[:2]} == {"el", "local"}
    assert rows[2].startswith("feded did not run: policy feded needs auxiliary samples")
    assert rows[-1] == "el: all_reduce=True degree=1 (given)"
    assert {p.name for p in tmp_path.iterdir()} >= {"compare.json", "compare.md", "el", "local"}
    assert sorted(p.name for p in (tmp_path / "el").iterdir()) == ["0", "1"]


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs have their results at once."""
    ran = "pfl_node.lab.policy_comparison.run_all"
    monkeypatch.setattr(ran, lambda _, orders, *__: [{"event": "done", "summary": RUN} for _ in orders])


@pytest.mark.usefixtures("no_workers")
def test_a_table_of_an_attack_says_so(shell: Shell) -> None:
    attack = ["--set", "attack.kind=sign_flip", "--set", "attack.share=0.5"]
    outcome = shell(*QUICK, *attack, "--policy", "el,local")
    title, *_ = outcome.out.splitlines()
    assert title == "digits, 2 nodes (1 of them malicious: sign_flip), 1 rounds, seed 0"
    assert "accuracy of the honest nodes on test data" in outcome.out


@pytest.mark.usefixtures("no_workers")
def test_a_table_for_programs_has_every_policy_once(shell: Shell) -> None:
    outcome = shell(*QUICK, "--policy", "local, el,local", "--format", "json", "--no-fit")
    assert outcome.code == 0
    assert sorted(row["policy"] for row in json.loads(outcome.out)["rows"]) == ["el", "local"]


def test_when_nobody_can_run_the_reason_is_the_answer(shell: Shell) -> None:
    line = shell.failure(*QUICK, *ALONE, "--policy", "el,local", "--set", "task.sizes=[3,4]")
    assert line == "no policy ran: task.sizes = [3, 4] add up to 7 nodes, but there are 2"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--policy pens,penz", "unknown policy 'penz': did you mean 'pens'?"),
        ("--policy ,", "--policy is empty: name a policy, several separated by commas, or all"),
        (
            "--policy pens,el --set policy.degre=3",
            "policy.degre is not a knob of pens, el: did you mean 'degree'?",
        ),
        ("--policy all --set policy.nope=3", "policy.nope is not a knob of any of the "),
        ("--policy all --set policy.penz.T=3", "policy.penz.T: 'penz' is not run; did you mean 'pens'?"),
        ("--policy pens --set policy.el.T=3", "policy.el.T: 'el' is not run; known: pens"),
        ("--policy pens --set policy.pens.TT=3", "policy.TT is not a knob of Pens: did you mean 'T'?"),
        ("--policy pens --seeds 2 --set policy.T=x", "policy.T = 'x': "),
        ("--policy all --task digit", "unknown task 'digit'; did you mean 'digits'?"),
        ("--policy all --set task.size=3", "task digits has no option 'size'"),
        ("--policy all --fault crash:n9@1", "crash: there is no node 'n9'"),
        ("--policy all --set policy.pens.=3", "unknown setting 'policy.'"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(shell: Shell, words: str, line: str) -> None:
    assert shell.mistake(*QUICK, *words.split()).startswith(line)


def test_where_nothing_can_be_written_nothing_runs(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = shell.failure(*QUICK, "--policy", "all", "--out", str(tmp_path / "file"))
    assert line.startswith(f"cannot create {tmp_path / 'file'}: ")


def test_one_policy_takes_its_own_knobs_too(shell: Shell) -> None:
    words = "--policy el --set policy.degree=0 --set policy.el.degree=1 --format json"
    assert json.loads(shell(*QUICK, *words.split()).out)["policy"] == "el"


# -- reading ---------------------------------------------------------------------------------------------------


def test_own_knobs_are_told_from_shared_ones_also_where_a_name_has_dots() -> None:
    sets = [
        "policy.T=3",
        "policy.pens.T=4",
        "policy.pens.metric=loss",
        "policy.a/b.c.py:Mine.k=0.5",
        "train.lr=0.1",
    ]
    assert split_sets(sets) == (
        ["policy.T=3", "train.lr=0.1"],
        {"pens": {"T": 4, "metric": "loss"}, "a/b.c.py:Mine": {"k": 0.5}},
    )


def test_all_is_the_whole_table_and_may_stand_beside_others() -> None:
    assert policies_in("all") == list(POLICIES)
    assert policies_in("mine.py:Mine, all")[:2] == ["mine.py:Mine", next(iter(POLICIES))]
    assert policies_in(" pens,,el ") == ["pens", "el"]


def test_variables_find_the_spelling_of_knobs_of_several_policies() -> None:
    told = load_settings(environ={"PFL_POLICY": "el,pens", "PFL_POLICY__T": "9"}, knobs=knobs_of)
    assert told.policy.options == {"T": 9}
    with pytest.raises(ConfigError, match="unknown policy 'penz'"):
        load_settings(environ={"PFL_POLICY__T": "9"}, overrides={"policy.name": "penz,el"}, knobs=knobs_of)


# -- showing ---------------------------------------------------------------------------------------------------


def test_the_table_for_people_ends_with_what_was_run(capsys: pytest.CaptureFixture[str]) -> None:
    entrants = [Entrant("pens", "pens", fit=Fit({"T": 20})), Entrant("el", "el", refusal="no time")]
    planned = PolicyComparison.plan(Settings(rounds=40, seed=3), entrants, nodes=20)
    show_comparison(replace(planned, last={planned.cells[0]: {"event": "done", "summary": RUN}}))
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "digits, 20 nodes, 40 rounds, seed 3",
        "policy accuracy models MB CPU s",
        "pens 90.0 1 2.0 3.0",
        "el did not run: no time",
        "shares in %, accuracy on test data; models and MB sent by all nodes together",
        "pens: T=20 (fitted)",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_sees_which_policy_and_seed_is_running(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    entrants = [Entrant(name, name) for name in ("pens", "el")]
    planned = PolicyComparison.plan(Settings(rounds=4, seed=1), entrants, nodes=1)
    with progress_bars(planned.experiment) as on_cell:
        assert on_cell is not None
        pens, el = planned.cells
        on_cell(pens, {"event": "progress", "done": 1, "total": 4})
        on_cell(pens, {"event": "failed", "why": "x"})
        on_cell(el, {"event": "progress", "done": 1, "total": 4})
    assert "el, seed 1" in screen.getvalue()
    assert "2 runs" in screen.getvalue()
