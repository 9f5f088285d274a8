"""A headless Chromium, spoken to over two pipes: the DevTools protocol without a library."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEADLINE = 60.0
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--disable-dev-shm-usage", "--remote-debugging-pipe"),
)


def chromium() -> str | None:
    """Where there is one."""
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
        None,
    )


class Browser:
    """One page. What goes wrong in it (errors, refused files) is in `troubles`."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.troubles: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )

    def prefer(self, scheme: str) -> None:
        """`dark` or `light`, as the system would say."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def run(self, code: str) -> Any:
        """What the code says in the page; a promise is awaited."""
        answer = self._call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def until(self, code: str) -> Any:
        """The first answer that is something."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            if found := self.run(code):
                return found
            time.sleep(0.1)
        raise AssertionError(f"{code} did not come true; the page says:\n{self.text()[:3000]}\n{self.troubles}")

    def text(self) -> str:
        return str(self.run("document.body ? document.body.innerText : ''"))

    def click(self, selector: str) -> None:
        found = self.run(f"(e => e && (e.click(), true))(document.querySelector({json.dumps(selector)}))")
        assert found, f"there is no {selector}"

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._hear(answer)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 1 << 16)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))

    def _hear(self, message: dict[str, Any]) -> None:
        match message.get("method"), message.get("params", {}):
            case "Runtime.exceptionThrown", params:
                self.troubles.append(str(params["exceptionDetails"].get("exception", params)))
            case "Log.entryAdded", {"entry": entry} if entry["level"] == "error":
                self.troubles.append(f"{entry['text']} {entry.get('url', '')}")
            case "Network.requestWillBeSent", {"request": request}:
                self.requests.append(request["url"])


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser that knows nobody, and is gone afterwards."""
    program = chromium()
    assert program
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    def pipes() -> None:  # the browser reads from 3 and writes to 4
        os.dup2(to_read, 30)
        os.dup2(from_write, 31)
        os.dup2(30, 3)
        os.dup2(31, 4)

    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=pipes,
        pass_fds=(3, 4),
        close_fds=True,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Browser(to_write, from_read)
    finally:
        process.kill()
        process.wait()
        os.close(to_write)
        os.close(from_read)
