"""Loads experiments at a scale, built-in ones by name or a user's file. `spec_schema.py` defines the format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from pfl_node.daemon.preflight import check_names
from pfl_node.errors import ConfigError, PflError, nearest
from pfl_node.lab.experiment import Cell, Claim, Experiment, PaperFigure, Scale
from pfl_node.lab.measures import from_paper
from pfl_node.lab.report.phrases import file_name
from pfl_node.lab.sources import NAMES, resolved
from pfl_node.lab.spec_schema import UNKNOWN, Spec, SpecRow, SweepPoint, as_list
from pfl_node.lab.spec_schema import parse as parse
from pfl_node.settings import Settings
from pfl_node.settings.load import flag, load_settings
from pfl_node.settings.schema import NAMED, dotted

SHIPPED = files("pfl_node.lab") / "specs"
OURS = ("nodes",)  # keys of a spec that are not settings


def shipped() -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in SHIPPED.iterdir() if entry.name.endswith(".toml"))


def read(name: str) -> tuple[str, str]:
    if name in shipped():
        return name, (SHIPPED / f"{name}.toml").read_text(encoding="utf-8")
    path = Path(name)
    if path.suffix != ".toml":
        raise ConfigError(f"there is no experiment {name!r}; {nearest(name, shipped())} (or a FILE.toml)")
    try:
        return path.stem, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def load(
    name: str, scale: Scale = "quick", *, seeds: int | None = None, sets: Sequence[str] = (), plugins: bool = False
) -> Experiment:
    """An experiment at a scale. `sets` are settings of all runs, as KEY=VALUE, that override the spec. With
    `plugins` the user's own policies are imported, to check their knobs."""
    base = Path(name).parent
    name, text = read(name)
    spec = parse(name, text)
    size = spec.size(scale)
    numbers = tuple(range(seeds or size.seeds))
    try:
        _check_sets(spec, sets)
        cells = tuple(_cells(spec, scale, numbers, sets, base, plugins))
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
        plots=tuple(spec.plots),
        figures=tuple(_figures(spec, scale)),
        claims=tuple(_claims(spec, scale)),
        clusters=dict(enumerate(spec.clusters)),
        text=text,
        sources=tuple(dict.fromkeys(_named(spec, scale, base))),
    )


# -- at a scale ----------------------------------------------------------------------------------


def _rows(spec: Spec, scale: Scale) -> list[SpecRow]:
    return [row for row in spec.run if row.only in (None, scale)]


def _points(spec: Spec, scale: Scale) -> list[SweepPoint]:
    return [point for point in spec.points() if point.only in (None, scale)]


def _cells(
    spec: Spec, scale: Scale, seeds: Sequence[int], sets: Sequence[str], base: Path, plugins: bool
) -> Iterator[Cell]:
    for row, point, flat in _grid(spec, scale):
        flat |= {key: resolved(flat[key], base) for key in NAMES if isinstance(flat.get(key), str)}
        nodes = flat.pop("nodes")
        for seed in seeds:
            settings = _settings(row.label, {**flat, "seed": seed}, sets, plugins)
            place = "/".join(filter(None, (file_name(row.label), file_name(point.label), f"seed-{seed}")))
            yield Cell(row.label, point.label, seed, nodes, settings, place)


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
        for tree in (spec.settings, size.settings, row.settings, point.settings, row.at(scale), point.at(scale)):
            flat |= dotted(tree)
        if isinstance(flat["nodes"], bool) or not isinstance(flat["nodes"], int) or flat["nodes"] < 1:
            raise ConfigError(f"{row.label}: nodes = {flat['nodes']!r} is not a positive integer")
        yield row, point, flat


def _settings(run: str, flat: Mapping[str, Any], sets: Sequence[str], plugins: bool) -> Settings:
    try:
        settings = load_settings(overrides=flat, sets=sets)
        if plugins or ":" not in settings.policy.name + settings.task.name:  # no file of a user
            check_names(settings)
    except PflError as error:
        text = str(error)
        for key in flat:  # they were not given as options
            text = text.replace(f" in {flag(key)}:", ":")
        raise ConfigError(f"{run}: {text}") from None
    return settings


def _figures(spec: Spec, scale: Scale) -> Iterator[PaperFigure]:
    run = {point.label for point in _points(spec, scale)}
    points = _points(spec, "paper")
    for row in _rows(spec, scale):
        for metric, values in row.figures.items():
            for point, value in zip(points, as_list(values), strict=True):
                if value != UNKNOWN and point.label in run:
                    yield PaperFigure(row.label, point.label, metric, from_paper(metric, value))


def _claims(spec: Spec, scale: Scale) -> Iterator[Claim]:
    runs = {row.label for row in _rows(spec, scale)}
    points = {None, *(point.label for point in _points(spec, scale))}
    for claim in spec.claim:
        if claim.only in (None, scale) and {claim.higher, claim.lower} <= runs and claim.point in points:
            yield Claim(claim.metric, claim.higher, claim.lower, from_paper(claim.metric, claim.by), claim.point)


# -- checks --------------------------------------------------------------------------------------------------


def _check_sets(spec: Spec, sets: Sequence[str]) -> None:
    """An override must not remove the difference between runs."""
    varied = {key for point in spec.points() for key in dotted(point.settings) if key not in OURS}
    for text in sets:
        key = text.partition("=")[0].strip()
        key = f"{key}.name" if key in NAMED else key
        if key == "seed":
            raise ConfigError("--set seed would make all seeds equal: set their number with --seeds N")
        if key == "policy.name" or key in varied:
            raise ConfigError(f"--set {key} would make different runs equal: write a FILE.toml")
        if key in OURS:
            raise ConfigError(f"--set {key}: it is a key of the spec, not a setting: write a FILE.toml")
