"""A headless Chromium for tests of pages, spoken to over its debugging pipe: no driver is needed."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
    "--remote-debugging-pipe", "--disable-dev-shm-usage",
)  # fmt: skip


class Page:
    """One tab: what it shows, what it loaded, what it complained about."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self.browser, self.session = browser, session
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def call(self, method: str, **params: Any) -> Any:
        """Send a command of the DevTools protocol and return its result."""
        return self.browser.call(method, self.session, **params)

    def open(self, path: Path, width: int, dark: bool = False, height: int = 900) -> None:
        """Show a local file in a window of so many CSS pixels."""
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.call("Network.enable")
        self.call("Log.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.absolute().as_uri())
        self.browser.wait("Page.loadEventFired", self.session)

    def value(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release one key."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind, more in (("keyDown" if text else "rawKeyDown", text), ("keyUp", {})):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key,
                windowsVirtualKeyCode=code, nativeVirtualKeyCode=code, **more,
            )  # fmt: skip

    def picture(self, path: Path, whole: bool = True) -> None:
        """Write a PNG of the page, or of what the window shows of it."""
        found = self.call(
            "Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole)
        )
        path.write_bytes(base64.b64decode(found["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        """The area of the whole page."""
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {
            "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        }


class Browser:
    """A Chromium process and the two pipes to it; messages end with a zero byte."""

    def __init__(self, program: str, folder: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        self._read, self._write = ours_in, ours_out
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs_in, theirs_out)]

        def pipes_to_3_and_4() -> None:
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={folder}"],
            preexec_fn=pipes_to_3_and_4,  # the browser wants these numbers
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (theirs_in, theirs_out, *high):
            os.close(fd)
        self._buffer, self._number = b"", 0
        self._pages: dict[str, Page] = {}
        self._events: list[tuple[str, str | None]] = []

    def page(self) -> Page:
        """Open a tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._pages[session] = Page(self, session)
        return self._pages[session]

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Send one command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def wait(self, event: str, session: str) -> None:
        """Wait until an event has come, also one that came before."""
        while (event, session) not in self._events:
            self._next()
        self._events.clear()

    def close(self) -> None:
        """End the process that was started."""
        try:
            self.call("Browser.close")
            self._process.wait(timeout=20)
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            self._process.kill()
        os.close(self._read)
        os.close(self._write)

    def _next(self) -> Any:
        """Return the next message; requests and complaints are kept with their page."""
        while b"\0" not in self._buffer:
            block = os.read(self._read, 1 << 16)
            if not block:
                raise OSError("the browser has ended")
            self._buffer += block
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        method, session = message.get("method", ""), message.get("sessionId")
        page, params = self._pages.get(session), message.get("params", {})
        self._events.append((method, session))
        if page is not None and method == "Network.requestWillBeSent":
            page.requests.append(params["request"]["url"])
        elif page is not None and method in ("Runtime.exceptionThrown", "Log.entryAdded"):
            page.complaints.append(json.dumps(params))
        return message


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A running headless Chromium; skips where none is installed."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no browser: install chromium-headless-shell (or chromium)")
    started = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


@pytest.fixture
def page(browser: Browser) -> Page:
    """A new tab."""
    return browser.page()
