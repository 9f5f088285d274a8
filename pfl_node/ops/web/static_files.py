"""The files of the page, read once. Their URLs contain a digest, so that browsers may cache them forever."""

from __future__ import annotations

import hashlib
from functools import cache
from html import escape
from importlib.resources import files

from starlette.responses import PlainTextResponse, Response

KINDS = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
FOREVER = {"cache-control": "public, max-age=31536000, immutable"}


@cache
def _read() -> dict[str, bytes]:
    folder = files("pfl_node.ops.web") / "static"
    return {
        file.name: file.read_bytes() for file in sorted(folder.iterdir(), key=lambda f: f.name) if file.is_file()
    }


class StaticFiles:
    def __init__(self) -> None:
        self._files = _read()
        self.digest = hashlib.sha256(b"\0".join(self._files.values())).hexdigest()[:16]

    def page(self, name: str, **words: str) -> str:
        """Replace each `{{word}}` by its HTML-escaped value."""
        text = self._files[name].decode()
        for word, value in {"static": f"/static/{self.digest}", **words}.items():
            text = text.replace("{{" + word + "}}", escape(value))
        return text

    def answer(self, digest: str, name: str) -> Response:
        kind = KINDS.get(name.rpartition(".")[2])
        if digest != self.digest or kind is None or name not in self._files:
            return PlainTextResponse("there is no such file; reload the page\n", 404)
        return Response(self._files[name], media_type=kind, headers=FOREVER)
