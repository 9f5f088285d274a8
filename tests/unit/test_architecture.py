"""The dependency rule between packages, and the sizes and names that keep the modules readable.

Reads the source files; imports only what must stay light.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from pathlib import Path

import pytest

import pfl_node
from pfl_node.policies import POLICIES
from pfl_node.policies.base import Policy

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("_pb2.py", "_pb2_grpc.py")
BESIDE_TORCH = {"torchvision", "torch._dynamo", "torch._inductor", "torch.onnx", "sympy", "sklearn", "scipy"}
PICKLES = {"pickle", "dill", "marshal", "shelve", "cloudpickle", "joblib"}

# A package may import itself and the packages before it. The modules directly in pfl_node are the vocabulary.
VOCABULARY = "vocabulary"
LAYERS = (
    *(VOCABULARY, "settings", "policies", "protocol", "store", "security", "learning", "node", "tracking"),
    *("membership", "wire", "ops", "daemon", "enrolment", "sim", "swarm", "lab", "testing", "cli"),
)
RANK = {layer: rank for rank, layer in enumerate(LAYERS)}
APART = {("sim", "ops"), ("sim", "daemon")}  # forbidden although the order would allow them
FORBIDDEN = sorted({(a, b) for a, b in product(LAYERS, LAYERS) if RANK[b] > RANK[a]} | APART, key=str)

Edge = tuple[str, str]  # importing module, imported module


@cache
def files(*tops: str) -> tuple[Path, ...]:
    found = [path for top in tops or ("pfl_node", "bootstrap") for path in sorted((ROOT / top).rglob("*.py"))]
    return tuple(path for path in found if not path.name.endswith(GENERATED))


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(node: ast.AST, package: list[str], *, typing: bool = True) -> Iterator[str]:
    """Every name that the code imports, also inside functions; with `typing` also for the type checker only."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import():
                yield from (alias.name for alias in child.names)
            case ast.ImportFrom():
                base = package[: len(package) - child.level + 1] if child.level else []
                source = ".".join([*base, *filter(None, [child.module])])
                yield from (f"{source}.{alias.name}" for alias in child.names)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) if not typing:
                continue
            case _:
                yield from imports(child, package, typing=typing)


def imports_of(path: Path, *, typing: bool = True) -> Iterator[str]:
    name = module(path).split(".")
    return imports(tree(path), name if path.name == "__init__.py" else name[:-1], typing=typing)


def within(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


# -- the dependency rule ---------------------------------------------------------------------------------------


@cache
def graph() -> frozenset[Edge]:
    return frozenset((module(path), name) for path in files("pfl_node") for name in imports_of(path))


def layer(name: str) -> str | None:
    """None: not a module of the package, or an entry point, which may import everything: the command, and the root
    package, whose lazy names belong to the packages that implement them."""
    top, *rest = name.split(".")
    if top != "pfl_node" or not rest or rest[0] == "__main__":
        return None
    if rest in ([name] for name in pfl_node._HOMES):
        return layer(f"{pfl_node._HOMES[rest[0]]}.{rest[0]}")
    return rest[0] if rest and rest[0] in RANK else VOCABULARY


def violations(edges: Iterable[Edge]) -> set[Edge]:
    return {
        (importer, imported)
        for importer, imported in edges
        if (a := layer(importer)) and (b := layer(imported)) and a != b
        if RANK[b] > RANK[a] or (a, b) in APART
    }


def test_every_package_has_a_layer() -> None:
    packages = {path.parent.name for path in (ROOT / "pfl_node").glob("*/__init__.py")}
    assert packages == set(LAYERS) - {VOCABULARY}
    assert len(list((ROOT / "pfl_node").glob("*.py"))) <= 14


def test_packages_import_only_the_layers_before_them() -> None:
    assert violations(graph()) == set()


@pytest.mark.parametrize(("importer", "imported"), FORBIDDEN)
def test_a_planted_import_in_a_forbidden_direction_is_found(importer: str, imported: str) -> None:
    home = ["pfl_node"] if importer == VOCABULARY else ["pfl_node", importer]
    source = "errors" if imported == VOCABULARY else imported
    planted = ast.parse(f"if TYPE_CHECKING:\n    from pfl_node.{source} import planted")
    edges = {(".".join([*home, "planted"]), name) for name in imports(planted, home)}
    assert violations(edges) == edges


def test_the_python_api_is_imported_from_the_packages_that_implement_it() -> None:
    assert set(pfl_node.__all__) == set(pfl_node._HOMES) <= set(dir(pfl_node))
    for name in pfl_node.__all__:
        assert getattr(pfl_node, name).__name__.rpartition(".")[2] == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(pfl_node, "nothing")  # noqa: B009
    edge = ("pfl_node.store.planted", "pfl_node.load")
    assert violations([edge]) == {edge}


def test_an_import_of_a_layer_before_is_none() -> None:
    assert (
        violations([("pfl_node.sim.planted", "pfl_node.node.driver"), ("pfl_node.cli.x", "pfl_node.lab")]) == set()
    )


def test_every_kind_of_import_is_seen() -> None:
    text = "import a.b\nfrom .g import h\nfrom .. import i\ndef f():\n    from c import d\n"
    text += "if TYPE_CHECKING:\n    import e"
    package = ["pfl_node", "x"]
    found = {"a.b", "c.d", "e", "pfl_node.x.g.h", "pfl_node.i"}
    assert set(imports(ast.parse(text), package)) == found
    assert set(imports(ast.parse(text), package, typing=False)) == found - {"e"}


# -- libraries -------------------------------------------------------------------------------------------------


def users(libraries: set[str], *tops: str) -> set[str]:
    named = [path for path in files(*tops) if any(library in path.read_text() for library in libraries)]
    return {module(path) for path in named for name in imports_of(path, typing=False) if within(name, libraries)}


def test_only_learning_imports_torch() -> None:
    assert [user for user in sorted(users({"torch"})) if not within(user, {"pfl_node.learning"})] == []


def test_nothing_is_ever_pickled() -> None:
    assert users(PICKLES, "pfl_node", "bootstrap", "tests", "benchmarks") == set()


def test_policies_do_no_input_or_output_and_read_no_clock() -> None:
    effects = {"grpc", "asyncio", "time", "socket", "threading", "subprocess"}
    assert users(effects, "pfl_node/policies") == set()


def test_policies_use_only_their_own_random_generator() -> None:
    """`random.Random` is a type there; `random.random()` would draw from the generator of the process."""
    for path in files("pfl_node/policies"):
        used = {
            node.attr
            for node in ast.walk(tree(path))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
        }
        assert used <= {"Random"}, path


@pytest.mark.parametrize(
    ("start", "never"),
    [
        ("pfl_node", {"torch", "numpy", "grpc", "pydantic", "asyncio"}),
        ("pfl_node.policies", {"torch", "grpc", "asyncio"}),
        ("pfl_node.settings.load", {"torch", "grpc", "numpy"}),
        ("pfl_node.daemon.preflight", {"torch", "grpc"}),
        ("pfl_node.testing.contract", {"torch", "grpc", "sklearn"}),
        ("pfl_node.__main__", {"torch", "sklearn"}),
        ("pfl_node.cli", {"torch", "sklearn"}),
        ("pfl_node.node.lifecycle", {"torch"}),
        ("pfl_node.learning.tasks", {"torch"}),
        ("pfl_node.daemon.process", {"torch", "sklearn", "scipy", "cryptography", "uvicorn"}),
        ("pfl_node.learning.learner, pfl_node.learning.digits", BESIDE_TORCH),
        ("pfl_node.membership", {"torch", "numpy"}),
        ("pfl_node.membership.service", {"torch", "numpy"}),
        ("bootstrap.__main__", {"torch", "numpy"}),
        ("bootstrap.seed", {"torch", "numpy", "pydantic", "cryptography"}),
    ],
)
def test_importing_this_does_not_load_that(start: str, never: set[str]) -> None:
    code = f"import sys, {start}; print(*sorted({never!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


# -- names and sizes -------------------------------------------------------------------------------------------


def test_no_two_modules_share_a_file_name() -> None:
    named = defaultdict(list)
    for path in files("pfl_node"):
        if path.stem not in ("__init__", "__main__"):
            named[path.stem].append(module(path))
    assert {name: modules for name, modules in named.items() if len(modules) > 1} == {}


def test_no_two_classes_share_a_name() -> None:
    named = defaultdict(set)
    for path in files("pfl_node"):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named[node.name].add(module(path))
    assert {name: modules for name, modules in named.items() if len(modules) > 1} == {}


def test_files_and_functions_are_short() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in files()}
    assert {module(p): n for p, n in lines.items() if n > 400} == {}
    policies = {sys.modules[cls.__module__].__file__ for cls in POLICIES.values()}
    assert {module(p): n for p, n in lines.items() if str(p) in policies and n > 80} == {}
    functions = [
        (f"{module(path)}.{node.name}", node.end_lineno - node.lineno + 1)
        for path in files()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    ]
    assert [(name, n) for name, n in functions if n > 45] == []


@pytest.mark.parametrize("cls", POLICIES.values(), ids=POLICIES)
def test_every_policy_names_its_paper_and_explains_its_knobs(cls: type[Policy]) -> None:
    assert cls.__doc__
    assert "20" in cls.__doc__, "which paper, of which year?"
    assert [name for name, field in cls.Config.model_fields.items() if not field.description] == []
