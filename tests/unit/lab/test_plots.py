"""What the plots show, as numbers; and that each is drawn, alike every time, fit for a page in light and dark."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from pfl_node.lab.measures import CellResult
from pfl_node.lab.report import head_plots, plot_data, style
from pfl_node.lab.report.page import page
from pfl_node.lab.report.plots import PLOTS
from pfl_node.lab.report.result import reopen
from pfl_node.lab.report.style import Panel
from pfl_node.lab.report.write import DRAW, draw, write
from tests.unit.lab.made_results import result

SVG = "{http://www.w3.org/2000/svg}"
SMALL: dict[str, Any] = {"nodes": 8, "rounds": 10, "seeds": 2}


def found(series: dict[int, dict[str, Any]], **clusters: int | None) -> CellResult:
    return CellResult({"per_node": [{"id": id, "cluster": c} for id, c in clusters.items()]}, series)


# -- as numbers ------------------------------------------------------------------------------------------------


def test_a_band_is_the_mean_the_lowest_and_the_highest_seed() -> None:
    made = plot_data.band([{4: 0.2, 9: 0.6}, {4: 0.4, 9: 0.8, 14: 0.9}], lambda r: r + 1)
    assert made is not None
    assert made.x == (5, 10)
    assert made.mean == pytest.approx((0.3, 0.7))
    assert (made.low, made.high) == ((0.2, 0.6), (0.4, 0.8))


def test_seeds_that_share_no_round_make_no_band() -> None:
    assert plot_data.band([{4: 0.2}, {9: 0.4}], float) is None
    assert plot_data.band([], float) is None


def test_bytes_are_those_of_all_nodes() -> None:
    rows = {4: {id: {"test_accuracy": 0.5, "bytes_sent": 3_000_000} for id in "ab"}}
    made = plot_data.over_bytes([found(rows, a=0, b=0)], "test_accuracy")
    assert made is not None
    assert made.x == (6.0,)


@pytest.mark.parametrize("row", [{"test_accuracy": 0.5, "bytes_sent": 0}, {"test_accuracy": 0.5}])
def test_who_sent_nothing_or_did_not_count_has_no_line_over_bytes(row: dict[str, Any]) -> None:
    assert plot_data.over_bytes([found({4: {"a": row}}, a=0)], "test_accuracy") is None


def test_precision_is_the_share_of_what_was_merged_from_the_own_cluster() -> None:
    rows: dict[int, dict[str, Any]] = {
        0: {"a": {"from": ["b", "c"]}, "c": {"from": ["b"]}},
        1: {"a": {"from": []}},
    }
    assert plot_data.same_cluster(found(rows, a=0, b=0, c=1)) == {0: pytest.approx((0.5 + 0) / 2)}


def test_many_rounds_are_taken_together() -> None:
    rows = {t: {"a": {"from": ["b"]}} for t in range(1000)}
    made = plot_data.same_cluster(found(rows, a=0, b=0))
    assert len(made) == plot_data.WINDOWS
    assert set(made.values()) == {1.0}


def test_heads_are_counted_per_cluster_from_the_first_choice_on() -> None:
    rows: dict[int, dict[str, Any]] = {
        0: {"a": {}, "b": {}, "c": {}},
        1: {"a": {"head": 0}, "b": {"head": 1}, "c": {"head": 1}},
        2: {"a": {"head": 0}, "b": {"head": 0}, "c": {"head": 1}},
    }
    told = found(rows, a=0, b=0, c=1)
    assert plot_data.choices(told, 0) == plot_data.Choices((2, 3), {0: (1, 2), 1: (1, 0)})
    assert plot_data.choices(told, 1) == plot_data.Choices((2, 3), {1: (1, 1)})
    assert plot_data.choices(found({0: {"a": {}}}, a=0), None) is None


def test_who_got_from_whom_is_what_nodes_merged_or_else_what_they_took(whole: Path) -> None:
    record = reopen(whole)
    cells = {cell.run: cell for cell in record.experiment.cells if cell.seed == 0}
    got = {run: plot_data.exchange_matrix(record.results.found[c], record.folder, c) for run, c in cells.items()}
    assert got["Local"] is None
    assert got["EL"] is not None
    assert sum(map(sum, got["EL"].counts)) == 20 * 8 * 2  # every message that was taken
    assert got["FACADE"] is not None
    assert sum(map(sum, got["FACADE"].counts)) == 20 * (4 * 1 + 4 * 2)  # those that its nodes name
    assert got["EL"].blocks == ((0, 6), (1, 2))


def test_a_fetched_model_came_from_the_node_that_was_asked(tmp_path: Path) -> None:
    folder = result(tmp_path, **SMALL)
    cell = next(c for c in reopen(folder).experiment.cells if c.folder == "el/seed-0")
    rows = '{"call":"fetch","event":"taken","from":"n000","node":"n007"}\n'
    rows += '{"call":"ask","event":"taken","from":"n000","node":"n003"}\n'
    (folder / cell.folder / "journal.jsonl").write_text(rows)
    record = reopen(folder)
    cell = next(c for c in record.experiment.cells if c.folder == "el/seed-0")
    got = plot_data.exchange_matrix(record.results.found[cell], record.folder, cell)
    assert got is not None
    assert got.counts[0] == (0, 0, 0, 0, 0, 0, 0, 1)
    assert sum(map(sum, got.counts)) == 1


# -- as drawings -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole report."""
    folder = result(tmp_path_factory.mktemp("drawn"), **SMALL)
    assert write(reopen(folder)) is None
    return folder


def test_every_name_has_words_and_a_drawing() -> None:
    assert PLOTS.keys() == DRAW.keys()
    assert all(plot.title and plot.caption.endswith(".") for plot in PLOTS.values())


def test_every_panel_is_a_png_and_an_svg(drawn: Path) -> None:
    names = sorted(path.stem for path in (drawn / "plots").glob("*.png"))
    assert names == sorted(path.stem for path in (drawn / "plots").glob("*.svg"))
    assert {"accuracy-majority", "accuracy-over-bytes-minority", "settlement-facade-minority"} <= set(names)
    assert {"who-from-whom-el", "fairness-fair-accuracy", "neighbours-recall", "precision-over-rounds"} <= set(
        names
    )
    assert all((drawn / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in names)


def test_axes_have_names_with_units_and_runs_a_legend(drawn: Path) -> None:
    texts = words_of(drawn / "plots" / "accuracy-minority.svg")
    assert {"Accuracy, minority", "test accuracy, %", "rounds", "Local", "EL", "FACADE"} <= texts
    assert {"sent by all nodes, MB"} <= words_of(drawn / "plots" / "accuracy-over-bytes-minority.svg")
    assert {"majority (6)", "minority (2)", "models received"} <= words_of(
        drawn / "plots" / "who-from-whom-el.svg"
    )


def test_a_picture_says_by_itself_what_its_lines_and_bars_are(drawn: Path) -> None:
    plots = drawn / "plots"
    assert "line: mean of 2 seeds; band: lowest to highest" in words_of(plots / "accuracy-minority.svg")
    assert {"bar: mean of 2 seeds", "one seed"} <= words_of(plots / "fairness-fair-accuracy.svg")
    assert "seed 0" in words_of(plots / "settlement-facade-majority.svg")


def test_a_target_that_is_near_is_a_line(tmp_path: Path) -> None:
    record = reopen(result(tmp_path, nodes=8, rounds=20, seeds=1))
    with style.styled():
        majority, minority = DRAW["accuracy"](record)
        assert "target, 70 %" in majority.svg()
        assert "one seed" in minority.svg()


def test_a_head_has_the_same_colour_and_hatch_in_every_cluster(tmp_path: Path) -> None:
    folder = result(tmp_path, **SMALL)
    journal = folder / "facade" / "seed-0" / "journal.jsonl"
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    for row in rows:
        if "head" in row:
            row["head"] = {"n006": 1, "n007": 2}.get(row["node"], row["head"])
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    seen: dict[str, set[tuple[Any, str]]] = {}
    with style.styled():
        panels = list(head_plots.settlement(reopen(folder)))
    for panel in panels:
        legend = panel.figure.legends[0]
        for text, patch in zip(legend.get_texts(), legend.get_patches(), strict=True):
            seen.setdefault(text.get_text(), set()).add((patch.get_facecolor(), patch.get_hatch()))
    assert seen.keys() == {"head 0", "head 1", "head 2"}
    assert all(len(looks) == 1 for looks in seen.values())
    assert len(set.union(*seen.values())) == 3


def test_long_names_of_points_are_turned(tmp_path: Path) -> None:
    values = "[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]"
    sweep = f'[sweep]\nsetting = "train.lr"\nvalues = {values}\nlabel = "learning rate {{}}"\n'
    record = reopen(result(tmp_path, **SMALL, sweep=sweep))
    with style.styled():
        panels = list(DRAW["sweep"](record))
    assert {label.get_rotation() for p in panels for label in p.figure.axes[0].get_xticklabels()} == {30.0}


def words_of(path: Path) -> set[str]:
    return {"".join(text.itertext()).strip() for text in ET.parse(path).iter(f"{SVG}text")}


def test_the_plots_are_in_the_page_with_a_sentence_and_in_its_colours(drawn: Path) -> None:
    text = (drawn / "report.html").read_text()
    asked = reopen(drawn).experiment.plots
    assert all(PLOTS[name].title in text for name in asked)
    assert text.count("<svg") == len(list((drawn / "plots").glob("*.svg")))
    body = text[text.index("<body>") :]
    assert not any(colour in body for colour in style.THEME)
    assert "var(--c1)" in body


def test_ids_on_the_page_are_unique_and_every_link_to_one_is_met(drawn: Path) -> None:
    text = (drawn / "report.html").read_text()
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([\w.-]+)', text)) <= set(ids)


def test_the_same_result_is_drawn_with_the_same_bytes(drawn: Path) -> None:
    with style.styled():
        for panel in DRAW["accuracy"](reopen(drawn)):
            assert panel.svg() == (drawn / "plots" / f"{panel.name}.svg").read_text()


def test_plots_of_a_former_report_do_not_stay(tmp_path: Path) -> None:
    folder = result(tmp_path, **SMALL)
    (folder / "plots").mkdir()
    (folder / "plots" / "former.svg").write_text("")
    assert draw(reopen(folder), []) == {}
    assert list((folder / "plots").iterdir()) == []


def test_a_plot_with_nothing_to_show_says_so(whole: Path) -> None:
    assert "The journals contain no data for this plot" in page(reopen(whole), {"settlement": []})


def test_a_sweep_has_a_line_for_each_run_and_the_papers_figures(tmp_path: Path) -> None:
    swept = '[sweep]\nsetting = "train.lr"\nvalues = [0.1, 0.01]\nlabel = "lr = {}"\n'
    record = reopen(result(tmp_path, sweep=swept, plots='["fairness"]', **SMALL))
    with style.styled():
        panel = next(p for p in DRAW["sweep"](record) if p.name == "sweep-minority")
        labels = [text.get_text() for text in panel.figure.axes[0].get_xticklabels()]
    assert labels == ["lr = 0.1", "lr = 0.01"]


# -- looks -----------------------------------------------------------------------------------------------------


def test_a_run_looks_the_same_everywhere_and_no_two_alike() -> None:
    runs = [f"run {i}" for i in range(20)]
    looks = style.looks(runs)
    assert len(set(looks.values())) == 20
    assert style.looks(runs[:3]) == {run: looks[run] for run in runs[:3]}


def test_a_colour_that_begins_with_letters_is_not_taken_for_an_id() -> None:
    text = (
        '<svg width="1pt" height="2pt"><g id="a"/><g id="b"/><use href="#a" style="fill: #fffffe; clip: url(#a)"/>'
    )
    inlined = style.inline(text + "</svg>", "p", 'say "x"')
    assert "fill: none" in inlined
    assert 'id="p-a"' in inlined
    assert 'href="#p-a"' in inlined
    assert "url(#p-a)" in inlined
    assert 'id="b"' not in inlined
    assert "width=" not in inlined
    assert "&quot;x&quot;" in inlined


def test_a_long_title_and_many_runs_stay_inside_the_drawing() -> None:
    with style.styled():
        panel = Panel("x", "A title that is far too long for one line of a column, by some words at least")
        figure, axes = panel.figure, panel.axes
        for i in range(9):
            axes.plot([0, 1], [i, i], label=f"a run called {i}")
        panel.legend_below()
        panel.svg()
        assert figure.get_suptitle().count("\n") == 1
        box, legend = figure.get_window_extent(), figure.legends[0].get_window_extent()
    assert box.x0 <= legend.x0 < legend.x1 <= box.x1
    assert legend.y1 <= axes.get_window_extent().y0  # below the data


# -- heads and fairness over rounds ----------------------------------------------------------------------------


def test_a_loss_that_was_not_finite_is_left_out_of_the_mean_of_a_head() -> None:
    rows: dict[int, dict[str, Any]] = {
        0: {"a": {"losses": [None, 2.0]}, "b": {"losses": [1.0, 4.0]}},
        1: {"a": {"losses": [None, 1.0]}},
    }
    assert plot_data.head_losses(found(rows, a=0, b=0), 0) == {0: {0: 1.0}, 1: {0: 3.0, 1: 1.0}}


def test_dollars_in_a_label_are_no_formula() -> None:
    with style.styled():
        panel = Panel("x", "$5 or $\\bad$")
        panel.axes.plot([1, 2], label="a $\\frac{$ b")
        panel.legend_below()
        assert "a $\\frac{$ b" in panel.svg()
        assert panel.pdf()


def test_fair_accuracy_over_rounds_is_that_of_the_clusters_in_each_round() -> None:
    rows = {4: {"a": {"test_accuracy": 0.6}, "b": {"test_accuracy": 0.4}}, 9: {"a": {"test_accuracy": 0.9}}}
    series = plot_data.fair_series(found(rows, a=0, b=1))
    assert series == {4: pytest.approx(2 / 3 * 0.5 + 1 / 3 * 0.8)}  # in round 9 one cluster is not evaluated
    assert plot_data.fair_series(found(rows, a=0, b=0)) == {}


def test_the_loss_of_a_head_is_the_mean_over_the_nodes_of_a_cluster() -> None:
    rows: dict[int, dict[str, Any]] = {
        0: {"a": {"losses": [1.0, 3.0]}, "b": {"losses": [2.0, 5.0]}, "c": {"losses": [9.0, 9.0]}},
        1: {"a": {}},
    }
    made = plot_data.head_losses(found(rows, a=0, b=0, c=1), 0)
    assert made == {0: {0: 1.5}, 1: {0: 4.0}}
    assert plot_data.head_losses(found({0: {"a": {"head": 0}}}, a=0), 0) == {}


def test_the_plots_of_heads_and_fair_accuracy_are_drawn(tmp_path: Path) -> None:
    record = reopen(result(tmp_path, **SMALL, plots='["head_losses", "head_map", "fair_accuracy"]'))
    made = draw(record, ["head_losses", "head_map", "fair_accuracy"])
    names = {name: [panel.name for panel in panels] for name, panels in made.items()}
    assert names == {
        "head_losses": ["head-losses-facade-majority", "head-losses-facade-minority"],
        "head_map": ["head-map-facade"],
        "fair_accuracy": ["fair-accuracy"],
    }
    assert "minority" in (record.folder.path / "plots" / "head-map-facade.svg").read_text()
