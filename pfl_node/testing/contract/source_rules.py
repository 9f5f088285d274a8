"""Checks the source of a policy: it must not act by itself, only through steps."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from pfl_node.policies.base import Policy
from pfl_node.testing.contract.harness import Broken, PolicyUnderTest

FORBIDDEN = {"torch", "tensorflow", "jax", "grpc", "asyncio", "time", "socket", "threading", "multiprocessing",
        "subprocess", "requests", "httpx", "secrets", "uuid", "pickle"}  # fmt: skip
GLOBAL_RNG = {"random", "numpy.random", "np.random"}  # shared by the process and not seeded for a policy
ALLOWED = {"Random", "Generator", "default_rng"}  # own generators and their types


def it_asks_and_does_nothing_itself(subject: PolicyUnderTest) -> None:
    """Its module and those of its base classes import no I/O, and use no randomness but `rng`."""
    for module in modules_of(subject.policy):
        try:
            tree = ast.parse(inspect.getsource(module))
        except (OSError, TypeError):  # defined at a prompt
            continue
        imported = {name for name in _imported(tree) if name.partition(".")[0] in FORBIDDEN}
        if wrong := sorted(imported - set(_imported_by_penalties(tree))):
            raise Broken(f"{_file(module)} imports {', '.join(wrong)}: a policy acts through steps only")
        if wrong := sorted(set(_global_rng(tree))):
            raise Broken(f"{_file(module)} uses {', '.join(wrong)}: a policy draws from self.rng only")


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


def _imported_by_penalties(tree: ast.Module) -> Iterator[str]:
    """The modules of torch that only penalties import: the functions that the file names as `FILE:FUNCTION`. They
    run in the learner."""
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    named = {text.rpartition(":")[2] for text in texts if ":" in text}
    penalties = [s for s in tree.body if isinstance(s, ast.FunctionDef) and s.name in named]
    others = ast.Module([s for s in tree.body if s not in penalties], [])
    theirs = {name for penalty in penalties for name in _imported(penalty)} - set(_imported(others))
    yield from (name for name in theirs if name.partition(".")[0] == "torch")


def _global_rng(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in GLOBAL_RNG and node.attr not in ALLOWED:
            yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and node.module in GLOBAL_RNG:
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name not in ALLOWED)
