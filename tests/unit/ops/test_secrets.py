"""Settings that are shown to others have no secrets."""

from __future__ import annotations

import json

from pfl_node.ops.secrets import HIDDEN, without_secrets
from pfl_node.settings import Settings


def test_tokens_and_passwords_are_hidden_wherever_they_are() -> None:
    settings = Settings.model_validate(
        {
            "http": {"token": "hunter2hunter2hunter2"},
            "task": {
                "name": "digits",
                "db_password": "hunter2",
                "login": {"api_key": "hunter2"},
                "tokens_per_batch": 7,
            },
        }
    )
    shown = without_secrets(settings)
    assert "hunter2" not in json.dumps(shown)
    assert shown["http"]["token"] == HIDDEN
    assert shown["task"]["db_password"] == HIDDEN
    assert shown["task"]["tokens_per_batch"] == 7


def test_what_is_not_set_is_not_hidden_and_the_rest_is_there() -> None:
    shown = without_secrets(Settings())
    assert shown["http"]["token"] is None
    assert shown["policy"]["name"] == "pens"
