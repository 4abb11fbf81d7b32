"""Chromium over its DevTools pipe: pages are opened, looked at, typed at and photographed. No library is needed.

The pipe is a pair of file descriptors, 3 and 4 of the browser, with JSON messages that end with a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from typing import Any

from cases.browser.chromium import chromium

FLAGS = (
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--hide-scrollbars",
    "--proxy-server=127.0.0.1:9",  # nobody listens there: a page that needs a network fails
    "--remote-debugging-pipe",
)
SECONDS = 30.0
PLACE = """
import os, sys
ends = [os.dup2(int(end), 100 + place) for place, end in enumerate(sys.argv[1:3])]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Puts the two ends where the browser looks for them, and becomes the browser."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What a page did since it was opened: lines of its console, exceptions, and addresses that it asked for."""

    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


class Browser:
    """A browser with one tab."""

    def __init__(self) -> None:
        found = chromium()
        self._home = tempfile.mkdtemp(prefix="chromium-")
        there, self._out = os.pipe()
        self._in, back = os.pipe()
        flags = [*FLAGS, f"--user-data-dir={self._home}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        self._process = subprocess.Popen(
            [sys.executable, "-c", PLACE, str(there), str(back), found.path, *flags, "about:blank"],
            pass_fds=(there, back),
            env={**os.environ, **found.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(back)
        self._rest, self._number, self._session = b"", 0, ""
        self.seen = Seen()
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        """End it."""
        for pipe in (self._out, self._in):
            os.close(pipe)
        self._process.terminate()
        self._process.wait(10)
        shutil.rmtree(self._home, ignore_errors=True)

    def open(
        self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False, at: str = ""
    ) -> Seen:
        """Open a file with a clean record of what it does."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self.seen = Seen()
        answer = self._call("Page.navigate", url=f"{path.resolve().as_uri()}{at}")
        assert not answer.get("errorText"), f"{path}: {answer['errorText']}"
        self.until(lambda: self.run("document.readyState") == "complete")
        return self.seen

    def run(self, script: str) -> Any:
        """The value of an expression of the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """A key goes down and up."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self._call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **(text if kind == "keyDown" else {}),
            )

    def photograph(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def until(self, happened: Callable[[], bool]) -> None:
        """Wait for something."""
        end = time.monotonic() + SECONDS
        while not happened():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.02)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._number:
                assert "error" not in told, f"{method}: {told['error']}"
                return told["result"]
            self._hear(told)

    def _hear(self, told: dict[str, Any]) -> None:
        method, params = told.get("method"), told.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.seen.said.append(" ".join(str(one.get("value")) for one in params["args"]))
        elif method == "Runtime.exceptionThrown":
            self.seen.said.append(params["exceptionDetails"]["text"])
        elif method == "Log.entryAdded":
            self.seen.said.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.seen.asked.append(params["request"]["url"])

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"Chromium did not answer within {SECONDS:g} s"
            read = os.read(self._in, 1 << 20)
            assert read, (
                f"Chromium ended with {self._process.poll()}: python -m cases.browser.chromium says which"
            )
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(line)
        return told
