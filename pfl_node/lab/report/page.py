"""The report as a self-contained HTML page with its style and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from pfl_node.lab.experiment import Experiment
from pfl_node.lab.measures import MEASURES, OWN
from pfl_node.lab.report import phrases, result_table
from pfl_node.lab.report.plots import PLOTS
from pfl_node.lab.report.result import COMMAND, Result, as_text, facts, not_default
from pfl_node.lab.report.style import COLOURS, DARK, looks


@dataclass(frozen=True, slots=True)
class Drawn:
    name: str  # name of its files, without .png and .svg
    title: str
    svg: str


Drawings = Mapping[str, Sequence[Drawn]]

MARKS = {  # CSS class and mark of a judgement
    phrases.HOLDS: ("holds", "✓"),
    phrases.ONE_SEED: ("holds", "✓"),
    phrases.CONTRADICTED: ("fails", "✗"),
    phrases.ONE_SEED_AGAINST: ("fails", "✗"),
}


def page(record: Result, drawings: Drawings | None) -> str:
    """`drawings` is None if matplotlib is not installed."""
    experiment = record.experiment
    style = (files(__package__) / "page.css").read_text(encoding="utf-8")
    sections = [
        _header(record),
        _results(record),
        _plots(drawings),
        _runs(record),
        _settings(record),
        _spec(record),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(experiment.title)}</title>\n<style>\n{_colours()}{style}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, sections))
        + f"\n<footer>pfl-node {escape(str(record.facts.get('pfl-node', '')))}</footer>\n</body>\n</html>\n"
    )


def _colours() -> str:
    light, dark = (" ".join(f"--c{i}: {c};" for i, c in enumerate(shades)) for shades in (COLOURS, DARK))
    return f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


# -- header ------------------------------------------------------------------------------------------------


def _header(record: Result) -> str:
    experiment = record.experiment
    rows = ((name, escape(text)) for name, text in facts(record))
    items = "".join(f"<dt>{n}</dt><dd>{f'<code>{t}</code>' if n == COMMAND else t}</dd>" for n, t in rows)
    about = f"<p>{escape(experiment.about)}</p>" if experiment.about else ""
    return (
        f'<header><h1>{escape(experiment.title)}</h1><p class="paper">{escape(experiment.paper)}</p>{about}'
        f"<dl>{items}</dl>{_missing(record)}{_warnings(record)}</header>"
    )


def _missing(record: Result) -> str:
    absent = result_table.missing(record.results)
    if not absent:
        return ""
    names = "; ".join(escape(phrases.cell_title(cell)) for cell in absent)
    return f'<p class="missing"><b>{phrases.plural(len(absent), "run")} not finished:</b> {names}.</p>'


def _warnings(record: Result) -> str:
    return "".join(f'<p class="missing">{escape(line)}.</p>' for line in phrases.warnings(record.results))


# -- results ---------------------------------------------------------------------------------------------


def _results(record: Result) -> str:
    experiment = record.experiment
    heads = "".join(_head(head) for head in result_table.columns(experiment))
    rows = "".join(_row(line, experiment) for line in result_table.lines(record.results, experiment.metrics))
    note = f"{phrases.legend(record.results, 'below it')}."
    if experiment.scale == "quick" and experiment.figures:
        note += " The quick scale should show the paper's ranking; its figures apply to the paper's scale."
    return (
        f"<section><h2>Results</h2>{_table(heads, rows)}"
        f'<p class="note">{escape(phrases.capital(note))}</p>{_claims(record)}</section>'
    )


def _table(heads: str, rows: str, kind: str = "wide") -> str:
    return f'<div class="{kind}"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _head(title: str) -> str:
    """Keeps a unit on the line of its word."""
    word = ' class="word"' if title in ("run", "at") else ""
    return f'<th scope="col"{word}>{escape(title).replace(", ", ",&nbsp;")}</th>'


def _row(line: result_table.TableRow, experiment: Experiment) -> str:
    at = f'<td class="word">{escape(line.point)}</td>' if line.point else ""
    cells = "".join(_cell(entry) for entry in line.entries)
    return f'<tr><th scope="row">{_swatch(line.run, experiment)}{escape(line.run)}</th>{at}{cells}</tr>'


def _cell(entry: result_table.TableCell) -> str:
    beside = f"<small>paper {escape(entry.beside)}</small>" if entry.beside else ""
    return f"<td>{escape(entry.figure)}{beside}</td>"


def _swatch(run: str, experiment: Experiment) -> str:
    place = COLOURS.index(looks(experiment.runs)[run].colour)
    return f'<span class="swatch" style="background: var(--c{place})"></span>'


def _claims(record: Result) -> str:
    rows = []
    for found in record.results.verdicts():
        judgement = phrases.judgement(found)
        kind, mark = MARKS.get(judgement, ("open", "?"))
        judged = f"{mark} <b>{judgement}</b>"
        rows.append(f'<li class="{kind}">{judged}: {escape(phrases.verdict(found))}</li>')
    return f'<h3>Claims</h3><ul class="claims">{"".join(rows)}</ul>' if rows else ""


def _plots(drawings: Drawings | None) -> str:
    if drawings is None:
        return "<section><h2>Plots</h2><p>There are no plots because matplotlib was not installed.</p></section>"
    parts = []
    for name, panels in drawings.items():
        head = f"<h3>{escape(PLOTS[name].title)}</h3><p>{escape(PLOTS[name].caption)}</p>"
        figures = "".join(_figure(panel) for panel in panels)
        nothing = '<p class="note">The journals contain no data for this plot.</p>'
        shown = f'<div class="panels">{figures}</div>' if figures else nothing
        parts.append(f'<div class="plot">{head}{shown}</div>')
    return f"<section><h2>Plots</h2>{''.join(parts)}</section>" if parts else ""


def _figure(panel: Drawn) -> str:
    links = " ".join(f'<a href="plots/{panel.name}.{kind}">{kind.upper()}</a>' for kind in ("png", "svg"))
    return f"<figure>{panel.svg}<figcaption>{links}</figcaption></figure>"


# -- runs and settings -----------------------------------------------------------------------------------------


def _runs(record: Result) -> str:
    name, rows = record.results.headline.name, []
    metric = name if name in MEASURES else f"{OWN}{name}"
    for cell in record.experiment.cells:
        found = record.results.found.get(cell)
        name = f'<th scope="row">{_swatch(cell.run, record.experiment)}{escape(phrases.cell_title(cell))}</th>'
        if found is None:
            rows.append(f'<tr>{name}<td class="word" colspan="4">not finished</td></tr>')
            continue
        value = MEASURES[metric].of(found)
        spent = [phrases.duration(found.summary.get(f"{what}_seconds") or 0.0) for what in ("wall", "cpu")]
        shown = ["–" if value is None else phrases.number(metric, value), *spent]
        links = " ".join(_link(cell.folder, file) for file in ("summary.json", "journal.jsonl", "settings.json"))
        cells = "".join(f"<td>{text}</td>" for text in shown)
        rows.append(f'<tr>{name}{cells}<td class="word">{links}</td></tr>')
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("run", phrases.heading(metric), "wall", "CPU"))
    heads += '<th scope="col" class="word">files</th>'
    return (
        f"<section><h2>Runs</h2>{_table(heads, ''.join(rows))}"
        '<p class="note">Links point to files in the results directory, beside this page.</p></section>'
    )


def _link(folder: str, file: str) -> str:
    return f'<a href="{escape(folder)}/{file}">{file.partition(".")[0]}</a>'


def _settings(record: Result) -> str:
    experiment = record.experiment
    values_of: dict[str, dict[str, str]] = {}  # key -> run -> values
    for run in experiment.runs:
        cells = [not_default(record.settings(cell)) for cell in experiment.cells if cell.run == run]
        for key in sorted({key for cell in cells for key in cell}):
            texts = dict.fromkeys(as_text(cell.get(key)) for cell in cells)
            values_of.setdefault(key, {})[run] = ", ".join(texts)
    shared = {k: v for k, v in values_of.items() if len(v) == len(experiment.runs) and len(set(v.values())) == 1}
    same = "".join(
        f"<dt><code>{escape(k)}</code></dt><dd>{escape(next(iter(v.values())))}</dd>" for k, v in shared.items()
    )
    own = {k: v for k, v in sorted(values_of.items()) if k not in shared}
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("setting", *map(escape, experiment.runs)))
    rows = "".join(
        f'<tr><th scope="row"><code>{escape(key)}</code></th>'
        + "".join(f"<td>{escape(values.get(run, ''))}</td>" for run in experiment.runs)
        + "</tr>"
        for key, values in own.items()
    )
    differ = f"<h3>Individual runs</h3>{_table(heads, rows, 'wide settings')}" if rows else ""
    return (
        "<section><h2>Settings</h2><p>All other settings have their defaults.</p><h3>All runs</h3>"
        f"<dl>{same}</dl>{differ}</section>"
    )


def _spec(record: Result) -> str:
    text = escape(record.experiment.text.strip())
    return (
        "<section><h2>Spec</h2><details><summary>spec.toml</summary>"
        f'<pre class="wide"><code>{text}</code></pre></details></section>'
    )
