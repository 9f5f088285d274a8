"""What all sites of a run share: settings, and the files of the task and of the policy. A token has its digest."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl_node.enrolment.join_token import digest_of
from pfl_node.errors import ConfigError
from pfl_node.settings import Settings
from pfl_node.settings.redact import is_secret
from pfl_node.settings.schema import NAMED, dotted

OF_THE_SITE = ("name", "listen", "advertise", "peer_seed", "data_dir", "insecure", "tls")  # keys and sections
FILES_LIMIT = 128 << 10  # bytes of all files together; escaped twice, they fit into a message
FILE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\.py")


@dataclass(frozen=True, slots=True)
class SitePlan:
    settings: dict[str, Any]  # nested, those that were given; files are named without a directory
    files: dict[str, str]  # by name

    def encode(self) -> str:
        """The same text for the same plan."""
        tree = {"settings": self.settings, "files": self.files}
        return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @property
    def run(self) -> str:
        return str(self.settings.get("run", Settings().run))

    @property
    def digest(self) -> bytes:
        return digest_of(self.encode().encode())

    @classmethod
    def decode(cls, text: str) -> SitePlan:
        """A plan whose digest was checked, so that only its maker can be wrong. Raises ConfigError."""
        try:
            tree = json.loads(text)
            made = cls(dict(tree["settings"]), dict(tree["files"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"the settings of the invitation cannot be read ({error})") from error
        if bad := [name for name in made.files if not FILE_NAME.fullmatch(name)]:
            raise ConfigError(f"the invitation has a file with the name {bad[0]!r}: do not trust it")
        return made

    @classmethod
    def of(cls, settings: Settings) -> SitePlan:
        """Raises ConfigError for settings that differ between sites, and for secrets."""
        tree: dict[str, Any] = json.loads(settings.model_dump_json(exclude_unset=True, exclude_none=True))
        _check(tree)
        files: dict[str, str] = {}
        for section in NAMED & tree.keys():
            where, colon, name = str(tree[section].get("name", "")).rpartition(":")
            if colon and where.endswith(".py"):
                files |= files_of(Path(where))
                tree[section]["name"] = f"{Path(where).name}:{name}"
        if (size := sum(len(text.encode()) for text in files.values())) > FILES_LIMIT:
            raise ConfigError(f"the files of the task have {size} bytes, and {FILES_LIMIT} can be sent")
        return cls(tree, files)

    def with_own_task(self, task: str) -> SitePlan:
        """The plan for a site that has the task's file already. Raises ConfigError if it is another one."""
        path, colon, name = task.rpartition(":")
        if not colon:
            raise ConfigError(f"--task {task}: write FILE:NAME, the file and the function of the task in it")
        wanted, mine = str(self.settings.get("task", {}).get("name", "")), files_of(Path(path))
        if f"{Path(path).name}:{name}" != wanted or any(
            self.files.get(file) != text for file, text in mine.items()
        ):
            text = f"{task} is another task than that of the token ({wanted})"
            raise ConfigError(f"{text}: use the operator's version of the file, or leave --task out to receive it")
        settings = {**self.settings, "task": {**self.settings["task"], "name": f"{Path(path).absolute()}:{name}"}}
        return SitePlan(settings, {file: text for file, text in self.files.items() if file not in mine})

    def at(self, directory: Path) -> dict[str, Any]:
        """The settings for a site that has the files in this directory."""
        tree = {key: dict(value) if isinstance(value, Mapping) else value for key, value in self.settings.items()}
        for section in NAMED & tree.keys():
            where, colon, name = str(tree[section].get("name", "")).rpartition(":")
            if colon and where in self.files:
                tree[section]["name"] = f"{directory / where}:{name}"
        return tree


def files_of(path: Path) -> dict[str, str]:
    """A Python file and those beside it that it imports, by name. Raises ConfigError."""
    files: dict[str, str] = {}
    _add(files, path)
    return files


def _check(tree: Mapping[str, Any]) -> None:
    for key in OF_THE_SITE:
        if key in tree:
            raise ConfigError(f"{key!r} is not the same at all sites: leave it out, `pfl-node join` sets it")
    for key in dotted(dict(tree)):
        if is_secret(key):
            text = f"{key!r} looks like a secret, and the bootstrap would store it"
            raise ConfigError(f"{text}: leave it out, and give it at the site (--set, or in the environment)")


def _add(files: dict[str, str], path: Path) -> None:
    if path.name in files:
        return
    if not FILE_NAME.fullmatch(path.name):
        raise ConfigError(f"{path}: a file that is sent needs a name of letters, digits and _")
    try:
        files[path.name] = text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    for name in _imported(tree):
        if (beside := path.with_name(f"{name}.py")).is_file():
            _add(files, beside)


def _imported(tree: ast.AST) -> Iterator[str]:
    """The first part of each module that the file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
