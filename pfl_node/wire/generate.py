"""Makes the stubs beside this file from proto/. A tool for developers: needs grpcio-tools and a source tree.

    python -m pfl_node.wire.generate [--check]

The stubs carry guards: they import with at least the protobuf and grpcio that made them (7.35.1 and 1.85.1). With
--check nothing is written; the exit code is 1 when a stub does not say what its proto says.
"""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NAMES = ("peer", "membership")
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")

# Another release of the tools writes other versions; that alone does not make a stub stale.
VERSIONS = re.compile(
    r"# Protobuf Python Version: .*|GRPC_GENERATED_VERSION = .*|Domain\.PUBLIC,\s+\d+,\s+\d+,\s+\d+,"
)


def generate(root: Path, out: Path) -> dict[str, str]:
    """The stubs by file name. `pfl_node/wire=proto` makes protoc write imports that fit our package."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    code = protoc.main(
        [
            "protoc",
            f"-Ipfl_node/wire={root / 'proto'}",
            f"-I{files('grpc_tools') / '_proto'}",
            f"--python_out={out}",
            f"--pyi_out={out}",
            f"--grpc_python_out={out}",
            *(f"pfl_node/wire/{name}.proto" for name in NAMES),
        ]
    )
    if code:
        raise SystemExit(code)
    made = out / "pfl_node" / "wire"
    return {name + suffix: (made / (name + suffix)).read_text() for name in NAMES for suffix in SUFFIXES}


def stale(stubs: dict[str, str], directory: Path = HERE) -> list[str]:
    """Names of the committed stubs that differ in more than versions, or are missing."""

    def says(text: str) -> str:
        return VERSIONS.sub("", text)

    committed = {name: directory / name for name in stubs}
    return [n for n, path in committed.items() if not path.exists() or says(path.read_text()) != says(stubs[n])]


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
        (HERE / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
