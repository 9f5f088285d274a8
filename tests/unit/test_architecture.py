"""The import directions and the sizes that keep the parts apart. Reads the files; runs only what must be light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pfl_node.policies import POLICIES
from pfl_node.policies.base import Policy

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pfl_node", "bootstrap")
GENERATED = ("_pb2.py", "_pb2_grpc.py")
PICKLES = {"pickle", "dill", "marshal", "shelve", "cloudpickle", "joblib"}

# What nobody below may know: a module of the left must not import, when it is loaded or later, one of the right.
FORBIDDEN = {
    "pfl_node.types": {"pfl_node.steps", "pfl_node.policies"},
    "pfl_node.steps": {"pfl_node.policies"},
    "pfl_node.policies": {
        *("torch", "grpc", "asyncio", "time", "socket", "threading", "subprocess"),
        *(f"pfl_node.{part}" for part in ("driver", "node", "wire", "learning", "membership", "sim", "store")),
        *(f"pfl_node.{part}" for part in ("swarm", "cli", "ops", "config", "settings", "mailbox", "recorder")),
    },
    "pfl_node.node.driver": {
        "pfl_node.node.lifecycle",
        "pfl_node.membership",
        "pfl_node.sim",
        "pfl_node.cli",
        "pfl_node.swarm",
    },
    "pfl_node.node.lifecycle": {"pfl_node.sim", "pfl_node.cli", "pfl_node.swarm"},
    "pfl_node.learning": {
        "pfl_node.policies",
        "pfl_node.node.driver",
        "pfl_node.node.lifecycle",
        "pfl_node.wire",
        "pfl_node.sim",
    },
    "pfl_node.wire": {
        "pfl_node.policies",
        "pfl_node.node.driver",
        "pfl_node.node.lifecycle",
        "pfl_node.learning",
        "pfl_node.sim",
    },
    "pfl_node.store": {
        "pfl_node.policies",
        "pfl_node.node.driver",
        "pfl_node.node.lifecycle",
        "pfl_node.learning",
        "pfl_node.wire",
    },
    "pfl_node.membership": {"numpy", "torch", "pfl_node.policies", "pfl_node.node.driver", "pfl_node.learning"},
    "pfl_node.security": {
        *("grpc", "numpy", "torch", "pydantic"),
        *(f"pfl_node.{part}" for part in ("wire", "membership", "node", "driver", "settings", "cli", "learning")),
    },
    "pfl_node.sim": {"pfl_node.node.lifecycle", "pfl_node.node.driver", "pfl_node.swarm", "grpc"},
    "pfl_node.testing.contract": {
        *("torch", "grpc", "asyncio"),
        *(f"pfl_node.{part}" for part in ("node", "driver", "learning", "wire", "swarm", "cli", "membership")),
    },
    "bootstrap": {
        "numpy",
        "torch",
        "pfl_node.policies",
        "pfl_node.learning",
        "pfl_node.node.lifecycle",
        "pfl_node.model",
    },
}
PURE = ("types", "errors", "model", "steps", "mailbox", "overdue", "patience", "waits", "topology", "aggregate")
TORCH_LIVES_IN = ("pfl_node.learning",)
GRPC_LIVES_IN = ("pfl_node.wire", "pfl_node.membership", "bootstrap", "pfl_node.node.lifecycle", "pfl_node.cli")


def files() -> list[Path]:
    found = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [path for path in found if not path.name.endswith(GENERATED)]


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def imports(path: Path) -> frozenset[tuple[str, bool]]:
    """Every module a file imports, and whether only for the type checker."""
    return frozenset(_imports(ast.parse(path.read_text()), path, typing=False))


def _imports(node: ast.AST, path: Path, *, typing: bool) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import():
                yield from ((alias.name, typing) for alias in child.names)
            case ast.ImportFrom():
                parts = module(path).split(".") if path.name == "__init__.py" else module(path).split(".")[:-1]
                base = ".".join(parts[: len(parts) - child.level + 1]) if child.level else ""
                source = ".".join(filter(None, (base, child.module or "")))
                yield source, typing
                yield from ((f"{source}.{alias.name}", typing) for alias in child.names)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from _imports(child, path, typing=True)
            case _:
                yield from _imports(child, path, typing=typing)


def within(name: str, packages: tuple[str, ...] | set[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("owner", FORBIDDEN)
def test_imports_go_one_way(owner: str) -> None:
    wrong = [
        f"{module(path)} imports {name}"
        for path in files()
        if within(module(path), (owner,))
        for name, typing in imports(path)
        if not typing and within(name, FORBIDDEN[owner])
    ]
    assert wrong == []


@pytest.mark.parametrize("name", PURE)
def test_the_pure_parts_know_each_other_only(name: str) -> None:
    known = {f"pfl_node.{part}" for part in PURE}
    wrong = [
        n
        for n, _ in imports(ROOT / "pfl_node" / f"{name}.py")
        if within(n, ("pfl_node",)) and not within(n, known)
    ]
    assert wrong == []


@pytest.mark.parametrize(("library", "home"), [("torch", TORCH_LIVES_IN), ("grpc", GRPC_LIVES_IN)])
def test_a_heavy_library_has_one_home(library: str, home: tuple[str, ...]) -> None:
    users = {
        module(path)
        for path in files()
        for name, typing in imports(path)
        if not typing and within(name, (library,))
    }
    assert [user for user in sorted(users) if not within(user, home)] == []


def test_policies_use_no_chance_but_their_own() -> None:
    """`random.Random` is a type there; `random.random()` and its like would be everybody's."""
    for path in (ROOT / "pfl_node" / "policies").glob("*.py"):
        used = {
            node.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
        }
        assert used <= {"Random"}, path


def test_nothing_is_ever_pickled() -> None:
    everything = [*files(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    wrong = [f"{path}: {name}" for path in everything for name, _ in imports(path) if within(name, PICKLES)]
    assert wrong == []


def test_the_files_are_short() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in files()}
    assert {module(p): n for p, n in lines.items() if n > 300} == {}
    table = {sys.modules[cls.__module__].__file__ for cls in POLICIES.values()}
    assert {module(p): n for p, n in lines.items() if str(p) in table and n > 80} == {}


@pytest.mark.parametrize("cls", POLICIES.values(), ids=POLICIES)
def test_every_policy_names_its_paper_and_explains_its_knobs(cls: type[Policy]) -> None:
    assert cls.__doc__
    assert "20" in cls.__doc__, "which paper, of which year?"
    assert [name for name, field in cls.Config.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    ("start", "never"),
    [
        ("pfl_node", {"torch", "numpy", "grpc", "pydantic"}),
        ("pfl_node.policies", {"torch", "grpc", "asyncio"}),
        ("pfl_node.testing.contract", {"torch", "grpc", "sklearn"}),
        ("pfl_node.__main__", {"torch", "sklearn"}),
        ("pfl_node.cli", {"torch", "sklearn"}),
        ("pfl_node.node.lifecycle", {"torch"}),
        ("pfl_node.learning.tasks", {"torch"}),
        ("pfl_node.membership", {"torch", "numpy"}),
        ("pfl_node.membership.service", {"torch", "numpy"}),
        ("bootstrap.__main__", {"torch", "numpy"}),
        ("bootstrap.seed", {"torch", "numpy", "pydantic", "cryptography"}),
    ],
)
def test_importing_this_does_not_load_that(start: str, never: set[str]) -> None:
    place = ROOT / Path(*start.split("."))
    if not place.with_suffix(".py").is_file() and not (place / "__init__.py").is_file():
        pytest.skip(f"there is no {start} yet")
    code = f"import sys, {start}; print(*sorted({never!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_the_guard_itself_sees_every_kind_of_import() -> None:
    text = (
        "import a.b\ndef f():\n    from c import d\nif TYPE_CHECKING:\n    import e\n"
        "from .g import h\nfrom .. import i\n"
    )
    found = set(_imports(ast.parse(text), ROOT / "pfl_node" / "x" / "y.py", typing=False))
    assert {("a.b", False), ("c", False), ("c.d", False), ("e", True)} <= found
    assert {
        ("pfl_node.x.g", False),
        ("pfl_node.x.g.h", False),
        ("pfl_node", False),
        ("pfl_node.i", False),
    } <= found
