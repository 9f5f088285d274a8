"""Generate the gRPC stubs from proto/. A developer tool: needs grpcio-tools and a source tree.

    python -m pfl_node.wire.generate [--check]

The messages of membership.proto go to membership/, which has no gRPC; everything else goes to wire/. The stubs
require at least the protobuf and grpcio releases that generated them (7.35.1 and 1.85.1). With --check nothing is
written, and the exit code is 1 if a committed stub is out of date.
"""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "peer": "pfl_node/wire",
    "membership": "pfl_node/membership",
    "relay": "pfl_node/wire",
}  # where the messages of each file go
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")

# Version numbers depend on the release of the tools and do not make a stub stale.
VERSIONS = re.compile(
    r"# Protobuf Python Version: .*|GRPC_GENERATED_VERSION = .*|Domain\.PUBLIC,\s+\d+,\s+\d+,\s+\d+,"
)


def generate(root: Path, out: Path) -> dict[str, str]:
    """The stubs by their path in the source tree. `-Ipackage=proto` makes protoc write our package's imports."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    code = protoc.main(
        [
            "protoc",
            *(f"-I{package}={root / 'proto'}" for package in PACKAGES.values()),
            f"-I{files('grpc_tools') / '_proto'}",
            f"--python_out={out}",
            f"--pyi_out={out}",
            f"--grpc_python_out={out}",
            *(f"{package}/{name}.proto" for name, package in PACKAGES.items()),
        ]
    )
    if code:
        raise SystemExit(code)
    stubs: dict[str, str] = {}
    for name, package in PACKAGES.items():
        for suffix in SUFFIXES:
            target = "pfl_node/wire" if suffix == "_pb2_grpc.py" else package
            stubs[f"{target}/{name}{suffix}"] = (out / package / f"{name}{suffix}").read_text()
    return stubs


def stale(stubs: dict[str, str], root: Path = ROOT) -> list[str]:
    """Paths of the committed stubs that are missing, or differ in more than version numbers."""

    def without_versions(text: str) -> str:
        return VERSIONS.sub("", text)

    committed = {name: root / name for name in stubs}
    return [
        name
        for name, path in committed.items()
        if not path.exists() or without_versions(path.read_text()) != without_versions(stubs[name])
    ]


def main(arguments: list[str]) -> int:
    with TemporaryDirectory() as scratch:
        stubs = generate(ROOT, Path(scratch))
    if arguments == ["--check"]:
        old = stale(stubs)
        if old:
            print(f"stale: {', '.join(old)}; run `make proto`", file=sys.stderr)
        return 1 if old else 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    for name, text in stubs.items():
        (ROOT / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
