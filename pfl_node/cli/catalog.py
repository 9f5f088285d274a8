"""`pfl-node policies` and `pfl-node tasks`: what there is to choose from."""

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
        rows = [(name, summary(cls.__doc__), short(cls.Config)) for name, cls in classes.items()]
        as_table(("policy", "what it is", "knobs"), rows)
    return 0


def tasks(format: Format = "table") -> int:
    """What can be learned without writing a task."""
    from pfl_node.learning.tasks import TASKS

    if format == "json":
        as_json({"tasks": [{"name": name, "summary": text} for name, text in TASKS.items()]})
    else:
        as_table(("task", "what it is"), TASKS.items())
    return 0


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


def short(config: type["BaseModel"]) -> str:
    return " ".join(f"{k['name']}={'none' if k['default'] is None else k['default']}" for k in knobs(config))
