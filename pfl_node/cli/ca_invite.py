"""`pfl-node ca invite`, `pending`, `confirm`, `withdraw`: sites join with a token, the operator confirms them."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfl_node.cli.ca_command import Days, Where
from pfl_node.cli.options import ABOUT_ONE_NODE, Format, GivenSettings, takes_settings
from pfl_node.cli.output import as_json, as_table, say
from pfl_node.cli.private_keys import open_authority
from pfl_node.errors import ConfigError

if TYPE_CHECKING:
    from pfl_node.enrolment.operator_calls import EnrolmentOperator, Pending
    from pfl_node.security.ca import Issued
    from pfl_node.settings import Settings

SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
SHORT = 16  # digits of an id that must agree
Names = Annotated[list[str], typer.Argument(metavar="NAME…", help="A name for each site.")]
Pairs = Annotated[list[str] | None, typer.Argument(metavar="[NAME ID]…", help="Sites, and the ids they told you.")]
Valid = Annotated[float, typer.Option("--valid", min=0.01, metavar="DAYS", help="Validity of the tokens.")]
Bootstrap = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where members dial the bootstrap; remembered in the CA.")
]
Enrol = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Where sites dial its --enrol port; default: one above the other."),
]


def _read(given: GivenSettings) -> "Settings | None":
    """The settings without the operator's environment, which the sites do not have. None: no settings are
    given."""
    from pfl_node.daemon.preflight import check_names
    from pfl_node.printable import check_word
    from pfl_node.settings.load import load_settings

    if not given.config and not given.sets and not any(given.overrides.values()):
        return None
    settings = load_settings(config=given.config, overrides=given.overrides, sets=given.sets or ())
    check_word("run", settings.run)
    check_names(settings)
    return settings


@takes_settings(leave_out=ABOUT_ONE_NODE | {"--http-token"}, read=_read)
def invite(
    settings: "Settings | None",
    names: Names,
    ca_dir: Where = Path("pfl-ca"),
    bootstrap: Bootstrap = None,
    enrol: Enrol = None,
    valid: Valid = 7.0,
) -> None:
    """Print a one-time token for each site to join with. Give the settings that all sites share; without any,
    those of the last invitation are used.
    """
    from pfl_node.enrolment.operator_calls import BootstrapPlace, EnrolmentOperator
    from pfl_node.enrolment.site_plan import SitePlan
    from pfl_node.store.atomic import private_files

    for name in names:
        if not SITE.fullmatch(name) or names.count(name) > 1:
            raise ConfigError(f"{name!r} cannot name a site: 1 to 32 letters, digits, . _ -, each name once")
    authority = open_authority(ca_dir)
    with private_files():
        if bootstrap or enrol:
            BootstrapPlace.remember(authority, bootstrap, enrol)
        operator = EnrolmentOperator(authority)
        plan = SitePlan.of(settings) if settings else operator.last_plan()
        if plan is None:
            raise ConfigError(
                "give the settings that all sites share: --config FILE, or --task, --policy and --run"
            )
        tokens = operator.invite(names, plan, seconds=valid * 86_400)
    shared = {"run": plan.run, **{key: plan.settings.get(key, {}).get("name") for key in ("policy", "task")}}
    files = f"; each site receives {', '.join(plan.files)}" if plan.files else ""
    say(", ".join(f"{key} {value!r}" for key, value in shared.items() if value) + files)
    members = {one.name: one.id for one in authority.issued() if one.id not in authority.revoked()}
    for token in tokens:
        say(f"\n{token.name} runs, once, until {token.expiry}:\n  pfl-node join {token.encode()}")
        if old := members.get(token.name):
            say(f"  {old} of this name is a member; if this site replaces it: pfl-node ca revoke {old}")
    say("\nthen, with the ids that the sites tell you: pfl-node ca confirm " + " ".join(f"{n} ID" for n in names))


def pending(ca_dir: Where = Path("pfl-ca"), format: Format = "table") -> None:
    """List the sites that wait for a confirmation."""
    from pfl_node.enrolment.proofs import short_id

    found = _operator(ca_dir).pending()
    rows = [{"name": one.invited.name, "id": short_id(one.id), "whole_id": one.id} for one in found]
    if format == "json":
        as_json({"pending": rows})
    elif not rows:
        say("no site waits for a confirmation")
    else:
        as_table(("name", "id", "whole id"), [tuple(row.values()) for row in rows])


def confirm(pairs: Pairs = None, ca_dir: Where = Path("pfl-ca"), days: Days = 365) -> None:
    """Issue the certificates of waiting sites whose ids match those that the sites told you."""
    from pfl_node.security.ca import Issued
    from pfl_node.store.atomic import private_files

    with private_files():
        operator = _operator(ca_dir)
        authority = operator.authority
        waiting = {one.invited.name: one for one in operator.pending()}
        members = [one for one in authority.issued() if one.id not in authority.revoked()]
        for one in _by_pairs(pairs, waiting, members) if pairs else _by_asking(waiting):
            if isinstance(one, Issued):
                say(f"{one.name} ({one.id}) is a member already")
                continue
            until = operator.confirm(one, days=days)
            say(f"{one.invited.name} ({one.id}) is a member; its certificate is valid until {until}")


def withdraw(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A site that has not been confirmed.")],
    ca_dir: Where = Path("pfl-ca"),
) -> None:
    """Invalidate the token of a site."""
    from pfl_node.store.atomic import private_files

    with private_files():
        _operator(ca_dir).withdraw(name)
    say(f"the token of {name} is void")


def add_verbs(app: typer.Typer) -> None:
    """Add these verbs to `pfl-node ca`."""
    for verb in (invite, pending, confirm, withdraw):
        app.command()(verb)


def _operator(ca_dir: Path) -> "EnrolmentOperator":
    from pfl_node.enrolment.operator_calls import EnrolmentOperator

    return EnrolmentOperator(open_authority(ca_dir))


def _by_pairs(
    pairs: list[str], waiting: "dict[str, Pending]", members: "list[Issued]"
) -> "list[Pending | Issued]":
    """Check all sites before the first one is confirmed."""
    if len(pairs) % 2:
        raise ConfigError("give a name and an id for each site, for example: ca confirm east 13da-1ae6-c90b-fe30")
    return [_agrees(name, id, waiting, members) for name, id in zip(pairs[::2], pairs[1::2], strict=True)]


def _agrees(name: str, told: str, waiting: "dict[str, Pending]", members: "list[Issued]") -> "Pending | Issued":
    """A site that has been confirmed before is no mistake: the command may be repeated."""
    from pfl_node.enrolment.proofs import short_id

    digits = re.sub(r"[-\s:]", "", told).lower()
    if name not in waiting:
        known = [one for one in members if one.name == name and one.id[: len(digits)] == digits]
        if known and len(digits) >= SHORT:
            return known[0]
        raise ConfigError(_nobody(name, waiting))
    if not re.fullmatch(rf"[0-9a-f]{{{SHORT},32}}", digits):
        raise ConfigError(f"{told!r} is not an id: {SHORT} to 32 hexadecimal digits, as `pfl-node join` prints it")
    found = waiting[name]
    if not found.id.startswith(digits):
        text = f"{name} asks with the id {short_id(found.id)}, not with {told}: someone else may have its token"
        raise ConfigError(f"{text}; if it is not mistyped, run `pfl-node ca withdraw {name}` and invite it again")
    return found


def _by_asking(waiting: "dict[str, Pending]") -> "list[Pending | Issued]":
    from pfl_node.enrolment.proofs import short_id

    if not waiting:
        raise ConfigError(_nobody("", waiting))
    chosen: list[Pending | Issued] = []
    for name, one in waiting.items():
        say(f"{name} asks with the id  {short_id(one.id)}")
        if typer.confirm(f"did {name} tell you this id, over a channel that you trust?"):
            chosen.append(one)
    return chosen


def _nobody(name: str, waiting: "dict[str, Pending]") -> str:
    there = f"; waiting: {', '.join(waiting)}" if waiting else ""
    who = f"{name} does not wait" if name else "no site waits"
    return f"{who} for a confirmation{there}: has it run `pfl-node join TOKEN`?"
