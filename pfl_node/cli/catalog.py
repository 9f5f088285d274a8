"""`pfl-node policies` and `pfl-node tasks`: what there is to choose from."""

import inspect
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pfl_node.cli.options import Format
from pfl_node.cli.show import as_json, as_table

if TYPE_CHECKING:
    from pydantic import BaseModel

    from pfl_node.policies.base import Policy


def policies(format: Format = "table") -> int:
    """The algorithms and their knobs (set one with --set policy.KNOB=VALUE)."""
    from pfl_node.policies import POLICIES, load_policy

    classes = {name: load_policy(name) for name in POLICIES}
    if format == "json":
        as_json({"policies": [described(name, cls) for name, cls in classes.items()]})
    else:
        rows = [(name, summary(cls.__doc__), short(knobs(cls.Config))) for name, cls in classes.items()]
        as_table(("policy", "what it is", "knobs"), rows)
    return 0


def tasks(format: Format = "table") -> int:
    """What can be learned without writing a task (set an option with --set task.OPTION=VALUE)."""
    from pfl_node.learning.tasks import TASKS

    options = {name: task_options(name) for name in TASKS}
    if format == "json":
        found = [{"name": n, "summary": t.description, "options": options[n]} for n, t in TASKS.items()]
        as_json({"tasks": found})
    else:
        as_table(
            ("task", "what it is", "options"), [(n, t.description, short(options[n])) for n, t in TASKS.items()]
        )
    return 0


def task_options(name: str) -> list[dict[str, Any]]:
    """What its function can be told, besides the place."""
    from pfl_node.learning.task import Place
    from pfl_node.learning.tasks import find

    place = {field.name for field in fields(Place)}
    declared = inspect.signature(find(name)).parameters.values()
    return [
        {"name": p.name, "type": str(p.annotation), "default": p.default} for p in declared if p.name not in place
    ]


def described(name: str, policy: type["Policy"]) -> dict[str, Any]:
    return {"name": name, "summary": summary(policy.__doc__), "options": knobs(policy.Config)}


def summary(doc: str | None) -> str:
    return " ".join((doc or "").strip().split("\n\n")[0].split())


def knobs(config: type["BaseModel"]) -> list[dict[str, Any]]:
    from pydantic_core import to_jsonable_python

    from pfl_node.keys import in_words

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


def short(options: list[dict[str, Any]]) -> str:
    return " ".join(f"{o['name']}={'none' if o['default'] is None else o['default']}" for o in options)
