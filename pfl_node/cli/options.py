"""The flags that set settings, once for all verbs that run something. `takes_settings` adds them to a verb."""

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
Format = Annotated[Literal["table", "json"], typer.Option(help="For people or for programs.")]
Address = Annotated[str, typer.Argument(metavar="HOST:PORT", help="A node or a bootstrap.")]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag and the dotted key it sets. Its value stays a text: the settings know what is allowed."""

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
    Flag("--peer-seed", "peer_seed", "HOST:PORT", "Any member to join through; may be repeated.", many=True),
    Flag("--listen", "listen", "HOST:PORT", "Where to listen; port 0: any free one."),
    Flag("--advertise", "advertise", "HOST:PORT", "What others dial, where that is not the listening address."),
    Flag("--policy", "policy.name", "NAME", "The algorithm: a name of `pfl-node policies`, or file.py:Class."),
    Flag("--task", "task.name", "NAME", "What to learn: a name of `pfl-node tasks`, or file.py:function."),
    Flag("--rounds", "rounds", "N", "Stop after so many rounds; otherwise a signal ends the run."),
    Flag("--data-dir", "data_dir", "DIR", "Identity, checkpoint, journal and model live here."),
    Flag("--device", "device", "D", "auto, cpu, cuda or cuda:N."),
    Flag("--seed", "seed", "S", "Decides everything that is left to chance."),
    Flag("--name", "name", "WORD", "What people call this node."),
    Flag("--run", "run", "WORD", "Only nodes of the same run exchange models."),
    Flag("--insecure", "insecure", "", "Allow plain connections beyond loopback.", switch=True),
    Flag("--tls", "tls.on", "", "TLS on loopback, too; elsewhere it is on anyway.", switch=True),
    Flag("--ca", "tls.ca", "FILE", "Certificate of the swarm's CA; otherwise ca.pem in the data directory."),
    Flag("--cert", "tls.cert", "FILE", "This node's certificate; otherwise cert.pem there."),
    Flag("--key", "tls.key", "FILE", "This node's key; otherwise key.pem there."),
    Flag("--allow", "tls.allow", "FILE", "The only ids to talk to; otherwise the file allow there, if any."),
    Flag("--revoked", "tls.revoked", "FILE", "Ids not to talk to; otherwise the file revoked there, if any."),
    Flag("--http", "http.listen", "HOST:PORT", "Serve the page, /api and /metrics here."),
    Flag("--http-token", "http.token", "TOKEN", "What visitors of the page must show; needed beyond loopback."),
    Flag("--log-level", "log.level", "LEVEL", "debug, info, warning or error."),
    Flag("--log-format", "log.format", "FORMAT", "auto, console or json."),
)
TLS_FLAGS = frozenset({"--insecure", "--tls", "--ca", "--cert", "--key", "--allow", "--revoked"})
ABOUT_ONE_NODE = frozenset({"--peer-seed", "--listen", "--advertise", "--data-dir", "--name"}) | TLS_FLAGS


@dataclass(frozen=True, slots=True)
class FlagValue:
    """What the command line says of the settings, not yet read."""

    config: Path | None
    overrides: dict[str, Any]  # by dotted key; None: not given
    sets: list[str] | None


def takes_settings(
    *, leave_out: Collection[str] = (), read: Callable[[FlagValue], Any] | None = None
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Gives a verb all settings flags before its own options; the verb is called with the effective settings, or
    with what `read` makes of what was given."""
    flags = [f for f in FLAGS if f.spelling not in leave_out]

    def dress(verb: Callable[..., int]) -> Callable[..., int]:
        def run(**options: Any) -> int:
            overrides = {f.key: options.pop(f.parameter) for f in flags}
            given = FlagValue(options.pop("config"), overrides, options.pop("sets"))
            return verb((read or load)(given), **options)

        _, *own = inspect.signature(verb).parameters.values()
        return dressed(run, [*map(_parameter, flags), *FILE_AND_SET, *own], like=verb)

    return dress


def load(given: FlagValue) -> "Settings":
    """The effective settings, checked before anything heavy is imported."""
    from pfl_node.daemon.preflight import check

    settings = unchecked(given)
    check(settings)
    return settings


def unchecked(given: FlagValue) -> "Settings":
    """The effective settings; whether there are such a policy and such a task is not asked."""
    from pfl_node.policies import knobs_of
    from pfl_node.settings.load import load_settings

    sets = given.sets or ()
    return load_settings(
        config=given.config, overrides=given.overrides, sets=sets, environ=os.environ, knobs=knobs_of
    )


def _parameter(flag: Flag) -> inspect.Parameter:
    kind: Any = list[str] | None if flag.many else bool | None if flag.switch else str | None
    option = typer.Option(flag.spelling, metavar=flag.metavar or None, help=flag.help)
    return _keyword(flag.parameter, Annotated[kind, option])


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


FILE_AND_SET = (
    _keyword("config", Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings in TOML.")]),
    _keyword(
        "sets",
        Annotated[
            list[str] | None,
            typer.Option("--set", metavar="KEY=VALUE", help="Any setting, such as train.lr=0.1; may be repeated."),
        ],
    ),
)


def dressed(run: Verb, parameters: list[inspect.Parameter], *, like: Callable[..., Any]) -> Verb:
    """`run` with the name and help of `like` and a signature that typer can read."""
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    run.__name__, run.__doc__ = like.__name__, like.__doc__
    run.__annotations__ = {p.name: p.annotation for p in keyword_only}
    run.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    return run
