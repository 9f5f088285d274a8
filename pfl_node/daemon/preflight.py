"""Checks of the settings before a process starts: policy, task, addresses, TLS, page, privacy. Imports neither
torch nor grpc."""

from __future__ import annotations

from pfl_node.address import is_loopback, parse_address
from pfl_node.daemon.advertise import check_addresses
from pfl_node.daemon.network_setup import check_network
from pfl_node.daemon.tls_setup import check_tls
from pfl_node.errors import ConfigError
from pfl_node.learning.task import Place
from pfl_node.learning.tasks import arguments, check_name, find
from pfl_node.node.startup import check_correlated
from pfl_node.policies import configure, load_policy
from pfl_node.printable import check_word
from pfl_node.settings import Settings
from pfl_node.tracking.tracking import check_track

TOKEN_LENGTH = 16  # characters


def check(settings: Settings) -> None:
    check_word("name", settings.name or "")
    check_word("run", settings.run)
    check_addresses(settings.listen, settings.advertise, settings.peer_seed)
    check_network(settings)
    check_tls(settings)
    check_page(settings)
    check_oracle(settings)
    check_names(settings)
    check_track(settings)


def check_names(settings: Settings) -> None:
    """A user's own task is loaded only after the start, because its file may import torch."""
    policy = load_policy(settings.policy.name)
    check_correlated(policy, configure(policy, settings.policy.options), settings)
    task = settings.task
    check_name(task.name)
    if ":" not in task.name:
        index = 0 if task.index == "slot" else task.index
        arguments(find(task.name), task, Place(index, task.nodes, settings.seed, node_id=""))


def check_page(settings: Settings) -> None:
    listen, token = settings.http.listen, settings.http.token
    if token is not None and len(token) < TOKEN_LENGTH:
        raise ConfigError(f"http.token is too short: it must have at least {TOKEN_LENGTH} characters")
    if listen is None:
        return
    host, _ = parse_address(listen, what="http", any_port=True)
    if token is None and not is_loopback(host) and not settings.insecure:
        hint = "set a token (PFL_HTTP__TOKEN or --http-token), or use 127.0.0.1"
        raise ConfigError(f"http {listen!r} is not loopback: {hint}")


def check_oracle(settings: Settings) -> None:
    """Raise if one answer exceeds the budget: no peer would get any."""
    privacy = settings.privacy
    for key, most in (("oracle_budget", privacy.oracle_budget), ("oracle_total", privacy.oracle_total)):
        if privacy.oracle and most is not None and privacy.oracle_epsilon > most:
            cost = f"one answer costs privacy.oracle_epsilon = {privacy.oracle_epsilon:g}"
            raise ConfigError(f"{cost}, more than privacy.{key} = {most:g}: no peer would get one; lower it")
