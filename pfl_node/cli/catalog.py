"""`pfl-node policies` and `pfl-node tasks`."""

import inspect
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl_node.cli.options import Format
from pfl_node.cli.output import as_json, as_table
from pfl_node.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from pfl_node.policies.base import Policy

PolicyName = Annotated[str | None, typer.Argument(metavar="NAME", help="Show this one with all its knobs.")]
Check = Annotated[
    bool,
    typer.Option("--check", help="Test this one in swarms with faults and against hostile answers."),
]
TaskName = Annotated[str | None, typer.Argument(metavar="NAME", help="Show this one with all its options.")]


def policies(name: PolicyName = None, check: Check = False, format: Format = "table") -> int:
    """List the algorithms and their knobs (set one with --set policy.KNOB=VALUE)."""
    from pfl_node.policies import POLICIES, load_policy

    if check:
        return check_contract(name, format)
    found = [describe(n, load_policy(n)) for n in ([name] if name else POLICIES)]
    if format == "json":
        as_json({"policies": found})
    elif name is None:
        as_table(("policy", "description", "knobs"), map(_row, found))
    else:
        show_one(found[0], knob="name", type="type", default="default", description="help")
    return 0


def tasks(name: TaskName = None, format: Format = "table") -> None:
    """List the built-in tasks (set an option with --set task.OPTION=VALUE)."""
    from pfl_node.learning.tasks import TASKS

    found = [describe_task(n) for n in ([name] if name else TASKS)]
    if format == "json":
        as_json({"tasks": found})
    elif name is None:
        as_table(("task", "description", "options"), map(_row, found))
    else:
        show_one(found[0], option="name", type="type", default="default")


def check_contract(name: str | None, format: str) -> int:
    """Prints each rule as soon as it is checked. Returns 1 if one is broken."""
    from pfl_node.plugin import explain
    from pfl_node.policies import load_policy
    from pfl_node.testing.contract import findings

    if name is None:
        raise ConfigError("--check needs a policy: pfl-node policies NAME --check, or file.py:Class --check")
    rows = []
    for rule, error in findings(load_policy(name)):
        rows.append({"rule": rule, "broken": explain(error).line if error else None})
        if format == "table":
            print(f"broken  {rule}: {rows[-1]['broken']}" if error else f"ok      {rule}", flush=True)
    if format == "json":
        as_json({"policy": name, "rules": rows})
    return 1 if any(row["broken"] for row in rows) else 0


def show_one(found: dict[str, Any], **columns: str) -> None:
    print(found["summary"] or found["name"])
    if found["options"]:
        print()
        rows = [[option[key] for key in columns.values()] for option in found["options"]]
        as_table(list(columns), rows)


def _row(found: dict[str, Any]) -> tuple[str, str, str]:
    options = [f"{o['name']}={'none' if o['default'] is None else o['default']}" for o in found["options"]]
    return found["name"], found["summary"], " ".join(options)


def describe_task(name: str) -> dict[str, Any]:
    from pfl_node.learning.task import Place
    from pfl_node.learning.tasks import TASKS, find

    function = find(name)
    place = {field.name for field in fields(Place)}
    options = [
        {"name": p.name, "type": _type(p.annotation), "default": None if p.default is p.empty else p.default}
        for p in inspect.signature(function).parameters.values()
        if p.name not in place
    ]
    about = TASKS[name].description if name in TASKS else summary(function.__doc__)
    return {"name": name, "summary": about, "options": options}


def _type(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def describe(name: str, policy: type["Policy"]) -> dict[str, Any]:
    return {"name": name, "summary": summary(policy.__doc__), "options": knobs(policy.Config)}


def summary(doc: str | None) -> str:
    return " ".join((doc or "").strip().split("\n\n")[0].split())


def knobs(config: type["BaseModel"]) -> list[dict[str, Any]]:
    from pydantic_core import to_jsonable_python

    from pfl_node.settings.schema import in_words

    schema = config.model_json_schema().get("properties", {})
    return [
        {
            "name": name,
            "type": in_words(schema[name]),
            "default": to_jsonable_python(field.get_default(call_default_factory=True), fallback=str),
            "help": field.description or "",
        }
        for name, field in config.model_fields.items()
    ]
