"""Loads experiments at a scale, built-in ones by name or a user's file. `spec_schema.py` defines the format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from pfl_node.daemon.preflight import check_names
from pfl_node.errors import ConfigError, PflError, nearest
from pfl_node.lab.experiment import Cell, Claim, Experiment, PaperFigure, Scale
from pfl_node.lab.measures import OF_TARGET, from_paper
from pfl_node.lab.report.phrases import file_name
from pfl_node.lab.results_dir import ENVIRONMENT, SPEC, read_object
from pfl_node.lab.sources import NAMES, resolved
from pfl_node.lab.spec_schema import UNKNOWN, Spec, SpecRow, SweepPoint, as_list
from pfl_node.lab.spec_schema import parse as parse
from pfl_node.lab.sweeps import Combination, combinations, keys_of
from pfl_node.learning.tasks import takes
from pfl_node.settings import Settings
from pfl_node.settings.load import flag, load_settings
from pfl_node.settings.schema import NAMED, dotted

SHIPPED = files("pfl_node.lab") / "specs"
OURS = ("nodes",)  # keys of a spec that are not settings
SEEDS = ("seed", "seeds")


def shipped() -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in SHIPPED.iterdir() if entry.name.endswith(".toml"))


def read(name: str) -> tuple[str, str]:
    if name in shipped():
        return name, (SHIPPED / f"{name}.toml").read_text(encoding="utf-8")
    path = Path(name)
    if path.suffix != ".toml":
        raise ConfigError(f"there is no experiment {name!r}; {_hint(path)}")
    try:
        return _name_of(path), path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _name_of(path: Path) -> str:
    """The name of the file; a spec in a results directory keeps the name of its experiment."""
    name = read_object(path.with_name(ENVIRONMENT)).get("name") if path.name == SPEC else None
    return name if isinstance(name, str) and name else path.stem


def _hint(path: Path) -> str:
    if (file := path.with_name(f"{path.name}.toml")).is_file():
        return f"did you mean {str(file)!r}?"
    hint = nearest(str(path), shipped())
    return hint if hint.startswith("did you mean") else "`pfl-node lab list` has all, or give a FILE.toml"


def load(
    name: str,
    scale: Scale = "quick",
    *,
    seeds: int | None = None,
    sets: Sequence[str] = (),
    sweeps: Sequence[str] = (),
    data: Sequence[str] = (),
    plugins: bool = False,
) -> Experiment:
    """An experiment at a scale. `sets` are settings of all runs, as KEY=VALUE, that override the spec; `sweeps`
    have several values; `data` are options of the tasks that have them. With `plugins` the user's own policies are
    imported, to check their knobs."""
    base = Path(name).parent
    name, text = read(name)
    spec = parse(name, text)
    size = spec.size(scale)
    numbers = tuple(range(seeds or size.seeds))
    try:
        _check_sets(spec, sets, sweeps)
        grid = SettingsGrid(spec, scale, base, tuple(sets), plugins, combinations(sweeps), tuple(data))
        cells = tuple(grid.cells(numbers))
        _check_places(cells)
        _check_data(cells, data)
    except PflError as error:
        raise ConfigError(f"experiment {name}: {error}") from None
    return Experiment(
        name=name,
        title=spec.title,
        paper=spec.paper,
        about=spec.about.strip(),
        scale=scale,
        seeds=numbers,
        cells=cells,
        metrics=tuple(spec.metrics),
        target=size.target or spec.target,
        baselines={row.label: row.baseline for row in spec.run if row.baseline},
        plots=tuple(spec.plots),
        figures=tuple(grid.figures()),
        claims=tuple(grid.claims()),
        clusters=dict(enumerate(spec.clusters)),
        text=text,
        sweeps=tuple(sweeps),
        sources=tuple(dict.fromkeys(_named(spec, scale, base))),
    )


# -- at a scale ----------------------------------------------------------------------------------


def _rows(spec: Spec, scale: Scale) -> list[SpecRow]:
    return [row for row in spec.run if row.only in (None, scale)]


def _points(spec: Spec, scale: Scale) -> list[SweepPoint]:
    return [point for point in spec.points() if point.only in (None, scale)]


@dataclass(frozen=True)
class SettingsGrid:
    """Each run at each point of the spec and of the command line."""

    spec: Spec
    scale: Scale
    base: Path  # directory of the user's files
    sets: tuple[str, ...]
    plugins: bool
    swept: Sequence[Combination]
    data: tuple[str, ...] = ()

    def cells(self, seeds: Sequence[int]) -> Iterator[Cell]:
        for row, point, flat in _grid(self.spec, self.scale):
            flat |= {key: resolved(flat[key], self.base) for key in NAMES if isinstance(flat.get(key), str)}
            planned = flat.pop("nodes")
            for chosen in self.swept:
                nodes, label = chosen.nodes or planned, _label(point.label, chosen.label)
                for seed in seeds:
                    plan = {**flat, "seed": seed}
                    settings = _settings(row.label, plan, self.sets, chosen.sets, self.plugins, self.data)
                    place = "/".join(filter(None, (file_name(row.label), file_name(label), f"seed-{seed}")))
                    yield Cell(row.label, label, seed, nodes, settings, place)

    def figures(self) -> Iterator[PaperFigure]:
        """The paper's figures. In a sweep they belong to the value that the spec has without the sweep. Figures
        about reaching a target are left out at a scale with another target."""
        other_target = self.spec.size(self.scale).target not in (None, self.spec.target)
        run = {point.label for point in _points(self.spec, self.scale)}
        points = _points(self.spec, "paper")
        usual = self._usual()
        for row in _rows(self.spec, self.scale):
            for metric, values in row.figures.items():
                if other_target and metric in OF_TARGET:
                    continue
                for point, value in zip(points, as_list(values), strict=True):
                    if value != UNKNOWN and point.label in run:
                        for label in usual[row.label, point.label]:
                            yield PaperFigure(row.label, label, metric, from_paper(metric, value))

    def _usual(self) -> dict[tuple[str, str], list[str]]:
        """The points of the sweep that do not differ from the spec, by run and point of the spec."""
        if self.swept == [Combination()]:
            pairs = product(_rows(self.spec, self.scale), _points(self.spec, self.scale))
            return {(row.label, point.label): [point.label] for row, point in pairs}
        plain = replace(self, swept=[Combination()])
        usual: dict[tuple[str, str], list[str]] = {}
        for cell, (point, chosen) in zip(self.cells((0,)), self._places(), strict=True):
            usual.setdefault((cell.run, point), [])
            without = next(c for c in plain.cells((0,)) if (c.run, c.point) == (cell.run, point))
            if (without.settings, without.nodes) == (cell.settings, cell.nodes):
                usual[cell.run, point].append(_label(point, chosen.label))
        return usual

    def _places(self) -> Iterator[tuple[str, Combination]]:
        """The point of the spec and of the sweep, in the order of the cells."""
        for _, point in product(_rows(self.spec, self.scale), _points(self.spec, self.scale)):
            yield from ((point.label, chosen) for chosen in self.swept)

    def claims(self) -> Iterator[Claim]:
        runs = {row.label for row in _rows(self.spec, self.scale)}
        points = {None, *(point.label for point in _points(self.spec, self.scale))}
        for claim in self.spec.claim:
            if claim.only in (None, self.scale) and {claim.higher, claim.lower} <= runs and claim.point in points:
                by = from_paper(claim.metric, claim.by)
                for label in [None] if claim.point is None else [_label(claim.point, c.label) for c in self.swept]:
                    yield Claim(claim.metric, claim.higher, claim.lower, by, label, claim.ours)


def _label(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _named(spec: Spec, scale: Scale, base: Path) -> Iterator[tuple[str, str]]:
    """The policies and tasks: as written, and resolved."""
    for _, _, flat in _grid(spec, scale):
        yield from ((flat[key], resolved(flat[key], base)) for key in NAMES if key in flat)


def _grid(spec: Spec, scale: Scale) -> Iterator[tuple[SpecRow, SweepPoint, dict[str, Any]]]:
    """Each run at each point, with its settings by dotted key. Specific settings override general ones, and those
    of one scale override those of both."""
    size = spec.size(scale)
    for row, point in product(_rows(spec, scale), _points(spec, scale)):
        flat: dict[str, Any] = {"nodes": size.nodes, "rounds": size.rounds}
        general = (spec.settings, size.settings, row.settings, point.settings)
        for tree in (*general, row.at(scale), point.at(scale), row.at_point.get(point.label, {})):
            flat |= dotted(tree)
        if "seed" in flat:
            raise ConfigError(f"{row.label}: seeds are 0, 1, …: set their number with seeds = N instead of a seed")
        if isinstance(flat["nodes"], bool) or not isinstance(flat["nodes"], int) or flat["nodes"] < 1:
            raise ConfigError(f"{row.label}: nodes = {flat['nodes']!r} is not a positive integer")
        yield row, point, flat


def _settings(
    run: str,
    flat: Mapping[str, Any],
    sets: Sequence[str],
    swept: Sequence[str],
    plugins: bool,
    data: Sequence[str],
) -> Settings:
    try:
        settings = load_settings(overrides=flat, sets=(*sets, *swept))
        if taken := [pair for pair in data if takes(settings.task.name, _option(pair))]:
            settings = load_settings(overrides=flat, sets=(*sets, *swept, *taken))
        if plugins or ":" not in settings.policy.name + settings.task.name:  # no plugin of a user
            check_names(settings)
    except PflError as error:
        raise ConfigError(f"{run}: {_where(str(error), flat, sets, swept)}") from None
    return settings


def _where(text: str, flat: Mapping[str, Any], sets: Sequence[str], swept: Sequence[str]) -> str:
    """The message with the place where the user wrote the setting."""
    for key in flat:  # these keys were not given as options
        text = re.sub(rf" in {re.escape(flag(key))}(?![\w-])", "", text)
    for option, given in (("--set", sets), ("--sweep", swept)):
        for key in (pair.partition("=")[0].strip() for pair in given):
            text = text.replace(f"{key!r} in --set", f"{key!r} in {option}")
            if text.startswith(f"{key} is not a knob of "):
                text += f" ({option} applies to all runs)"
    return text


# -- checks --------------------------------------------------------------------------------------------------


def _check_places(cells: Sequence[Cell]) -> None:
    """Directories have no signs: x = 1 and x = -1 would share one."""
    seen: dict[str, Cell] = {}
    for cell in cells:
        if (other := seen.setdefault(cell.folder, cell)) is not cell:
            raise ConfigError(
                f"{other.point!r} and {cell.point!r} would have the same directory: "
                "write a FILE.toml with points and other labels"
            )


def _check_data(cells: Sequence[Cell], data: Sequence[str]) -> None:
    """Some runs may use no data set, but not all: then the user expected another experiment."""
    if data and not any(_option(pair) in cell.settings.task.options for cell in cells for pair in data):
        raise ConfigError("it uses no data set: omit --data-root and --download")


def _option(pair: str) -> str:
    return pair.partition("=")[0].removeprefix("task.")


def _check_sets(spec: Spec, sets: Sequence[str], sweeps: Sequence[str]) -> None:
    """An override must not remove the difference between runs."""
    trees = [point.settings for point in spec.points()]
    trees += [tree for row in spec.run for tree in row.at_point.values()]
    varied = {key for tree in trees for key in dotted(tree)}
    given = [_key(text.partition("=")[0]) for text in sets]
    for key in given:
        if key in SEEDS:
            raise ConfigError("--set seed would make all seeds equal: set their number with --seeds N")
        if key == "policy.name" or (key in varied and key not in OURS):
            raise ConfigError(f"--set {key} would make different runs equal: write a FILE.toml")
        if key in OURS:
            raise ConfigError(f"--set {key}: it is a key of the spec, not a setting: write a FILE.toml")
    for key in keys_of(sweeps):
        if key in SEEDS:
            raise ConfigError("--sweep seed: set the number of seeds with --seeds N")
        if key == "policy.name" or key in varied:
            raise ConfigError(f"--sweep {key}: the experiment itself varies it: write a FILE.toml")
        if key in given:
            raise ConfigError(f"--sweep {key} and --set {key} contradict each other")


def _key(text: str) -> str:
    key = text.strip()
    return f"{key}.name" if key in NAMED else key
