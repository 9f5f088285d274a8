"""The options that set settings, shared by all verbs that run nodes. `takes_settings` adds them to a verb."""

import inspect
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

if TYPE_CHECKING:
    from pfl_node.settings import Settings

Verb = TypeVar("Verb", bound=Callable[..., Any])
ExitCode = int | None  # None: 0, because the verb raises if it fails
Format = Annotated[Literal["table", "json"], typer.Option(help="Output for people or for programs.")]
Address = Annotated[str, typer.Argument(metavar="HOST:PORT", help="A node or a bootstrap.")]
Nodes = Annotated[int, typer.Option("--nodes", "-n", min=1, metavar="N", help="Number of nodes.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, such as train.lr=0.1; may be repeated."),
]


@dataclass(frozen=True, slots=True)
class Flag:
    """An option and the dotted key it sets. Its value stays text until the settings are validated."""

    spelling: str
    key: str
    metavar: str
    help: str
    many: bool = False
    switch: bool = False

    @property
    def parameter(self) -> str:
        return self.spelling.removeprefix("--").replace("-", "_")


FLAGS = (
    Flag("--peer-seed", "peer_seed", "HOST:PORT", "A member to join through; may be repeated.", many=True),
    Flag("--listen", "listen", "HOST:PORT", "Listening address; port 0: any free port."),
    Flag("--advertise", "advertise", "HOST:PORT", "Address for others to connect to, if not the listening one."),
    Flag("--policy", "policy.name", "NAME", "The algorithm: a name of `pfl-node policies`, or file.py:Class."),
    Flag("--task", "task.name", "NAME", "What to learn: a name of `pfl-node tasks`, or file.py:function."),
    Flag("--rounds", "rounds", "N", "Stop after N rounds; default: run until a signal."),
    Flag("--data-dir", "data_dir", "DIR", "Directory of identity, checkpoint, journal and model."),
    Flag("--device", "device", "D", "auto, cpu, cuda or cuda:N."),
    Flag("--seed", "seed", "S", "Seed of all random choices."),
    Flag("--name", "name", "WORD", "Name of this node for people."),
    Flag("--run", "run", "WORD", "Only nodes of the same run exchange models."),
    Flag("--relay", "relay.serve", "", "Connect callers to nodes that cannot be dialled.", switch=True),
    Flag("--insecure", "insecure", "", "Allow connections without TLS beyond loopback.", switch=True),
    Flag(
        "--tls",
        "tls.on",
        "",
        "Use TLS on loopback too; elsewhere it is on unless --insecure is given.",
        switch=True,
    ),
    Flag("--ca", "tls.ca", "FILE", "Certificate of the swarm's CA; default: ca.pem in the data directory."),
    Flag("--cert", "tls.cert", "FILE", "This node's certificate; default: cert.pem there."),
    Flag("--key", "tls.key", "FILE", "This node's key; default: key.pem there."),
    Flag("--allow", "tls.allow", "FILE", "List of allowed ids; default: the file allow there, if any."),
    Flag("--revoked", "tls.revoked", "FILE", "List of revoked ids; default: the file revoked there, if any."),
    Flag("--http", "http.listen", "HOST:PORT", "Serve the page, /api and /metrics on this address."),
    Flag("--http-token", "http.token", "TOKEN", "Token for the page; required beyond loopback."),
    Flag("--log-level", "log.level", "LEVEL", "debug, info, warning or error."),
    Flag("--log-format", "log.format", "FORMAT", "auto, console or json."),
)
TLS_FLAGS = frozenset({"--insecure", "--tls", "--ca", "--cert", "--key", "--allow", "--revoked"})
ABOUT_ONE_NODE = (
    frozenset({"--peer-seed", "--listen", "--advertise", "--data-dir", "--name", "--relay"}) | TLS_FLAGS
)


@dataclass(frozen=True, slots=True)
class GivenSettings:
    config: Path | None
    overrides: dict[str, Any]  # values by dotted key; None: not given
    sets: list[str] | None


def takes_settings(
    *, leave_out: Collection[str] = (), read: Callable[[GivenSettings], Any] | None = None
) -> Callable[[Callable[..., ExitCode]], Callable[..., ExitCode]]:
    """Adds the options to a verb, which is called with the effective settings, or with the result of `read`."""
    flags = [f for f in FLAGS if f.spelling not in leave_out]

    def decorate(verb: Callable[..., ExitCode]) -> Callable[..., ExitCode]:
        def run(**options: Any) -> ExitCode:
            overrides = {f.key: options.pop(f.parameter) for f in flags}
            given = GivenSettings(options.pop("config"), overrides, options.pop("sets"))
            return verb((read or load)(given), **options)

        _, *own = inspect.signature(verb).parameters.values()
        return with_signature(run, [*map(_parameter, flags), *FILE_AND_SET, *own], like=verb)

    return decorate


def load(given: GivenSettings) -> "Settings":
    """The effective settings, checked before torch or gRPC is imported."""
    from pfl_node.daemon.preflight import check

    settings = unchecked(given)
    check(settings)
    return settings


def unchecked(given: GivenSettings) -> "Settings":
    """The effective settings, without checking the names of policy and task."""
    from pfl_node.policies import knobs_of
    from pfl_node.settings.load import load_settings

    sets = given.sets or ()
    return load_settings(
        config=given.config, overrides=given.overrides, sets=sets, environ=os.environ, knobs=knobs_of
    )


def _parameter(flag: Flag) -> inspect.Parameter:
    kind: Any = list[str] | None if flag.many else bool | None if flag.switch else str | None
    option = typer.Option(flag.spelling, metavar=flag.metavar or None, help=flag.help)
    return keyword(flag.parameter, Annotated[kind, option])


def keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="TOML file with settings.")]
FILE_AND_SET = (keyword("config", Config), keyword("sets", Sets))


def with_signature(run: Verb, parameters: list[inspect.Parameter], *, like: Callable[..., Any]) -> Verb:
    """Gives `run` the name and help of `like`, and a signature for typer."""
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    run.__name__, run.__doc__ = like.__name__, like.__doc__
    run.__annotations__ = {p.name: p.annotation for p in keyword_only}
    run.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    return run
