"""What a policy's file may use: it asks its node and does nothing itself. Reads the text; runs nothing."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from pfl_node.policies.base import Policy
from pfl_node.testing.contract.harness import Broken, PolicyUnderTest

DOES = {"torch", "tensorflow", "jax", "grpc", "asyncio", "time", "socket", "threading", "multiprocessing",
        "subprocess", "requests", "httpx", "secrets", "uuid", "pickle"}  # fmt: skip
CHANCE = {"random", "numpy.random", "np.random"}  # everybody's, and nobody seeds it for a policy
OWN = {"Random", "Generator", "default_rng"}  # what makes chance of one's own, or names its type


def it_asks_and_does_nothing_itself(subject: PolicyUnderTest) -> None:
    """Its file and those of the classes it inherits from import nothing that acts, and use no chance but `rng`."""
    for module in modules_of(subject.policy):
        try:
            tree = ast.parse(inspect.getsource(module))
        except (OSError, TypeError):  # typed at a prompt
            continue
        if wrong := sorted({name for name in _imported(tree) if name.partition(".")[0] in DOES}):
            raise Broken(f"{_file(module)} imports {', '.join(wrong)}: a policy asks its node instead")
        if wrong := sorted(set(_chances(tree))):
            raise Broken(f"{_file(module)} uses {', '.join(wrong)}: a policy's chance is self.rng")


def modules_of(policy: type[Policy]) -> list[ModuleType]:
    names = {cls.__module__ for cls in policy.__mro__ if issubclass(cls, Policy)}
    return [sys.modules[name] for name in sorted(names)]


def _file(module: ModuleType) -> str:
    return Path(module.__file__ or module.__name__).name


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def _chances(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in CHANCE and node.attr not in OWN:
            yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and node.module in CHANCE:
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name not in OWN)
