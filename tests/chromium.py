"""Headless Chromium without a network, driven over a pipe: what a page asks for, complains of and looks like."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-extensions", "--disable-dev-shm-usage", "--no-first-run",
    "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
_TIMEOUT_S = 90.0
_PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"


@dataclass
class Page:
    """An open page. `asked`: every address it requested; `complaints`: console, exceptions, refused loads."""

    to: int
    back: int
    session: str = ""
    number: int = 0
    rest: bytes = b""
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    loaded: bool = False

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def open(self, file: Path, width: int, scheme: str) -> None:
        """Show a file in a window of a width, light or dark, and wait until it is painted."""
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **screen)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.loaded = False
        self.call("Page.navigate", url=file.as_uri())
        while not self.loaded:
            self._read()
        self.call("Runtime.evaluate", expression=_PAINTED, awaitPromise=True)

    def value(self, expression: str) -> Any:
        """Return what an expression is in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self) -> bytes:
        """Return the whole page as a PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def printed(self) -> bytes:
        """Return the page as a PDF."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + _TIMEOUT_S
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.back], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "Chromium says nothing"
            part = os.read(self.back, 1 << 20)
            assert part, "Chromium went away"
            self.rest += part
        line, _, self.rest = self.rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded = True
        elif method in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.complaints.append(json.dumps(params))


@contextmanager
def chromium(program: Path, folder: Path) -> Iterator[Page]:
    """Run Chromium in a network namespace of its own, its profile in `folder`; gives a blank page."""
    there, to = os.pipe()
    back, here = os.pipe()
    script = f'exec unshare --map-root-user --net "$@" 3<&{there} 4>&{here}'
    argv = ["bash", "-c", script, "bash", str(program), *_FLAGS, f"--user-data-dir={folder / 'profile'}"]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(argv, pass_fds=(there, here), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    os.close(there)
    os.close(here)
    page = Page(to, back)
    try:
        target = page.call("Target.createTarget", url="about:blank")["targetId"]
        page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            page.call(f"{domain}.enable")
        yield page
        page.session = ""
        page.call("Browser.close")
        process.wait(timeout=30)
    finally:
        process.kill()
        process.wait()
        os.close(to)
        os.close(back)
