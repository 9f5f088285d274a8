"""Settings that are shown to others have no secrets."""

from __future__ import annotations

import json

from pfl_node.settings import Settings
from pfl_node.settings.redact import HIDDEN, is_secret, shown, without_secrets


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


def test_a_password_inside_an_address_is_hidden_and_the_address_is_not() -> None:
    assert shown("database", "postgres://ann:hunter2@db.example/ward") == f"postgres://{HIDDEN}@db.example/ward"
    assert shown("sources", ["s3://a:b@c/d", "/plain"]) == [f"s3://{HIDDEN}@c/d", "/plain"]
    assert shown("peer_seed", ("ann@home:7000", "b:1")) == ("ann@home:7000", "b:1")


def test_a_key_is_known_with_and_without_its_section() -> None:
    assert is_secret("http.token")
    assert is_secret("token")
    assert not is_secret("token.folder")


def test_what_is_not_set_is_not_hidden_and_the_rest_is_there() -> None:
    shown = without_secrets(Settings())
    assert shown["http"]["token"] is None
    assert shown["policy"]["name"] == "pens"
