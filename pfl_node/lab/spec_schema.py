"""The format of an experiment's TOML file, and checks that need no run."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable
from inspect import isclass
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from pfl_node.errors import ConfigError, nearest
from pfl_node.lab.experiment import Scale
from pfl_node.lab.measures import MEASURES, OF_TARGET, SPEED_UP
from pfl_node.lab.report.phrases import file_name
from pfl_node.lab.report.plots import PLOTS

Tree = dict[str, Any]
UNKNOWN = "-"  # the paper has no such figure
TABLES = ("run", "point", "claim")  # written as [[run]]


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ScaleSize(Strict):
    nodes: PositiveInt
    rounds: PositiveInt
    seeds: PositiveInt = 1
    target: float | None = Field(None, gt=0, lt=1)  # overrides the spec's target
    settings: Tree = Field(default_factory=dict)


class Varied(Strict):
    """Settings at both scales, and at one of them. They may contain `nodes` besides the keys of the settings."""

    label: str
    settings: Tree = Field(default_factory=dict)
    paper: Tree = Field(default_factory=dict)
    quick: Tree = Field(default_factory=dict)
    only: Scale | None = None  # run at this scale only

    def at(self, scale: Scale) -> Tree:
        return self.paper if scale == "paper" else self.quick


class SweepPoint(Varied):
    """A variation in which all runs are repeated."""


class SpecRow(Varied):
    """A run: a row of the table. A figure is a number, or a list with one for each point of the paper."""

    figures: dict[str, float | list[float | Literal["-"]]] = Field(default_factory=dict)
    baseline: str | None = None  # the label of the run to which speed_up refers
    at_point: dict[str, Tree] = Field(default_factory=dict)  # settings of this run at one point, by its label


class Sweep(Strict):
    """Shorthand for points that differ in one setting."""

    setting: str  # a dotted key
    values: list[Any] = Field(min_length=1)
    label: str = "{}"
    quick: list[Any] | None = None  # the values at the quick scale; None: all


class PolicyOrder(Strict):
    """A claim. `by` is in the unit that the paper prints, such as percentage points."""

    metric: str
    higher: str
    lower: str
    by: float = 0.0
    point: str | None = None
    only: Scale | None = None
    ours: bool = False  # no paper states it


class Spec(Strict):
    title: str
    paper: str
    about: str = ""
    clusters: list[str] = Field(default_factory=list)
    metrics: list[str] = Field(min_length=1)
    plots: list[str] = Field(default_factory=list)
    target: float | None = Field(None, gt=0, lt=1)
    settings: Tree = Field(default_factory=dict)
    paper_scale: ScaleSize
    quick_scale: ScaleSize
    sweep: Sweep | None = None
    point: list[SweepPoint] = Field(default_factory=list)
    run: list[SpecRow] = Field(min_length=1)
    claim: list[PolicyOrder] = Field(default_factory=list)

    def size(self, scale: Scale) -> ScaleSize:
        return self.paper_scale if scale == "paper" else self.quick_scale

    def points(self) -> list[SweepPoint]:
        """The points of both scales. Without a sweep there is one point without a label."""
        if self.sweep is None:
            return list(self.point) or [SweepPoint(label="")]
        sweep = self.sweep
        quick = sweep.values if sweep.quick is None else sweep.quick
        return [
            SweepPoint(
                label=sweep.label.format(value),
                settings={sweep.setting: value},
                only=None if value in quick else "paper",
            )
            for value in sweep.values
        ]


def parse(name: str, text: str) -> Spec:
    """Raises ConfigError with the place of a mistake."""
    try:
        spec = Spec.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"experiment {name} is not valid TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"experiment {name}: {_complaint(error)}") from None
    try:
        _check_points(spec)
        _check_runs(spec)
        _check_names(spec)
    except ConfigError as error:
        raise ConfigError(f"experiment {name}: {error}") from None
    return spec


def as_list(value: float | list[Any]) -> list[Any]:
    return value if isinstance(value, list) else [value]


# -- checks --------------------------------------------------------------------------------------------------


def _check_points(spec: Spec) -> None:
    sweep = spec.sweep
    if sweep and spec.point:
        raise ConfigError("it has both a sweep and points: use one of them")
    if sweep and (strange := [v for v in sweep.quick or () if v not in sweep.values]):
        raise ConfigError(f"sweep.quick: {strange[0]!r} is not one of the values {sweep.values}")
    if sweep and len(sweep.values) > 1 and "{}" not in sweep.label:
        raise ConfigError(f"sweep.label = {sweep.label!r} has no {{}} for the value")
    _check_labels("points", (point.label for point in spec.points()))


def _check_runs(spec: Spec) -> None:
    _check_labels("runs", (row.label for row in spec.run))
    if any(not row.label for row in spec.run):
        raise ConfigError("a run has the empty label ''")
    points = sum(point.only != "quick" for point in spec.points())
    for row in spec.run:
        for metric, value in row.figures.items():
            _known("metric", metric, MEASURES)
            if (n := len(as_list(value))) != points:
                raise ConfigError(f"{row.label}: {n} figures of {metric}, but the paper has {points} points")


def _check_names(spec: Spec) -> None:
    labels, points = [row.label for row in spec.run], [point.label for point in spec.points()]
    for metric in (*spec.metrics, *(claim.metric for claim in spec.claim)):
        _known("metric", metric, MEASURES)
        _check_reference(spec, metric)
    if double := next((m for m in spec.metrics if spec.metrics.count(m) > 1), None):
        raise ConfigError(f"metrics has {double!r} twice")
    for plot in spec.plots:
        _known("plot", plot, PLOTS)
    for row in spec.run:
        if row.baseline is not None:
            _known("run", row.baseline, labels)
        for label in row.at_point:
            _known("point", label, points)
    for claim in spec.claim:
        for label in (claim.higher, claim.lower):
            _known("run", label, labels)
        if claim.higher == claim.lower:
            raise ConfigError(f"a claim compares {claim.higher!r} with itself")
        if claim.point is not None and points == [""]:
            raise ConfigError(f"a claim has the point {claim.point!r}, but the spec has no points")
        if claim.point is not None:
            _known("point", claim.point, points)


def _check_reference(spec: Spec, metric: str) -> None:
    """Some measures have no value in any run without a further key of the spec."""
    targets = [spec.target, spec.paper_scale.target, spec.quick_scale.target]
    if metric in OF_TARGET and not any(targets):
        raise ConfigError(f"the metric {metric!r} needs a target, such as target = 0.8")
    if metric == SPEED_UP and not any(row.baseline for row in spec.run):
        raise ConfigError(
            f"the metric {metric!r} needs the baseline of a run, such as baseline = {spec.run[0].label!r}"
        )


def _check_labels(what: str, labels: Iterable[str]) -> None:
    """Labels name directories, so they must be distinct there too."""
    seen: dict[str, str] = {}
    for label in labels:
        if label and not file_name(label):
            raise ConfigError(f"the label {label!r} has no letter or digit for the name of a directory")
        if (name := file_name(label)) in seen:
            raise ConfigError(f"two {what} have the same label: {seen[name]!r} and {label!r}")
        seen[name] = label


def _known(what: str, word: str, known: Collection[str]) -> None:
    if word not in known:
        raise ConfigError(f"there is no {what} {word!r}; {nearest(word, list(known))}")


def _complaint(error: ValidationError) -> str:
    rows = error.errors(include_url=False, include_context=False)
    # a mistyped key is also reported as missing; the typed one says more
    row = next((row for row in rows if row["type"] == "extra_forbidden"), rows[0])
    at = [part for part in row["loc"] if part != "-"]
    place = _place(at)
    if row["type"] == "extra_forbidden":
        return f"{place} is not a valid key; {nearest(str(at[-1]), _siblings(at))}"
    if row["type"] in ("dict_type", "model_type"):
        return f"{place}: it should be a table"
    if row["type"] == "list_type" and at[0] in TABLES:
        return f"{place}: write [[{place}]], with two brackets"
    text = row["msg"]
    return f"{place}: {text[:1].lower()}{text[1:]}"


def _place(at: list[Any]) -> str:
    """Tables with the same name are counted from 1, in the order of the file."""
    if at[0] not in TABLES or len(at) < 2:
        return ".".join(str(part) for part in at)
    table, number, *keys = at
    return ": ".join(filter(None, (f"{table} {number + 1}", ".".join(map(str, keys)))))


def _siblings(at: list[Any]) -> list[str]:
    """The keys of the table that contains a place."""
    kind = Spec.model_fields[at[0]].annotation if len(at) > 1 else Spec  # a table, or a list of tables
    table = next(one for one in (kind, *get_args(kind)) if isclass(one) and issubclass(one, Strict))
    return list(table.model_fields)
