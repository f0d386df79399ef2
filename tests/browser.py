"""A real browser for tests: headless Chromium, driven over the pipe of its DevTools protocol."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13, "Tab": 9, " ": 32}

CUT_OFF = """(() => { const right = %d; return [...document.querySelectorAll("body *")].filter((e) => {
  const box = e.getBoundingClientRect();
  const hidden = e.closest(".unseen, .headline h2, details pre, svg :not(text), option");
  return !hidden && box.width && (box.left < 0 || box.right > right + 0.5);
}).map((e) => e.outerHTML.slice(0, 120)); })()"""
CONTRASTS = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const luminance = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const linear = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const behind = (e) => {
    const colour = getComputedStyle(e).backgroundColor;
    return colour === "rgba(0, 0, 0, 0)" ? behind(e.parentElement) : colour;
  };
  const ratio = (e, colour) => {
    const [dark, light] = [luminance(colour), luminance(behind(e))].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const hasText = (e) => e.checkVisibility() && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  return [...document.querySelectorAll("body *:not(script)")].flatMap((e) => {
    const style = getComputedStyle(e), drawn = e.namespaceURI.endsWith("svg");
    if (hasText(e)) return [[ratio(e, drawn ? style.fill : style.color), 4.5, e.outerHTML.slice(0, 99)]];
    return e.matches(".curve, .slope") ? [[ratio(e, style.stroke), 3, e.outerHTML.slice(0, 99)]] : [];
  });
})()"""


def find() -> str | None:
    """Where the browser is."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def cannot_test(missing: str) -> NoReturn:
    """Skip tests of pages; with BESPOKE_REQUIRE_BROWSER, as in CI, they fail."""
    pytest.fail(missing) if os.environ.get("BESPOKE_REQUIRE_BROWSER") else pytest.skip(missing)


class Browser:
    """One process; `close` ends it. Commands go to its descriptor 3, answers come from 4, each ended by a zero byte."""

    def __init__(self, executable: str, profile: Path) -> None:
        (theirs_in, self._to), (self._from, theirs_out) = os.pipe(), os.pipe()
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (theirs_in, theirs_out)]
        switches = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars"
        self._process = subprocess.Popen(
            [executable, *switches.split(), "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=lambda: [os.dup2(fd, as_) for fd, as_ in zip(theirs, (3, 4), strict=True)],
        )
        for fd in (theirs_in, theirs_out, *theirs):
            os.close(fd)
        self._rest, self._last = b"", 0
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        self.call("Browser.close")
        self._process.wait(20)
        os.close(self._to)
        os.close(self._from)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The answer to a command; what else arrives goes into `events`."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        os.write(self._to, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        deadline = time.monotonic() + 30
        while True:
            answer = self._next(deadline)
            if answer.get("id") != self._last:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            chunk = os.read(self._from, 1 << 20)
            if not chunk:
                raise RuntimeError("the browser has gone")
            self._rest += chunk
        one, _, self._rest = self._rest.partition(b"\0")
        return json.loads(one)


class Page:
    """A page, a file or one that is served, in a window of its own, of a given size and colour scheme."""

    def __init__(
        self, browser: Browser, where: Path | str, width: int = 1200, height: int = 900, scheme: str = "light"
    ) -> None:
        self.browser, self.width = browser, width  # a phone's window itself grows with what does not fit into it
        # A file needs no other; a served page may ask its own server.
        url, self.own = (where, ("data:", where)) if isinstance(where, str) else (where.resolve().as_uri(), ("data:",))
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def close(self) -> None:
        self.browser.call("Target.closeTarget", targetId=self.target)

    def js(self, expression: str) -> Any:
        """The value of an expression, awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = 10) -> Any:
        """The value of an expression as soon as it is true."""
        deadline = time.monotonic() + seconds
        while not (found := self.js(expression)):
            if time.monotonic() > deadline:
                raise AssertionError(f"never true: {expression}")
            time.sleep(0.02)
        return found

    def press(self, key: str, times: int = 1) -> None:
        """A key, on whatever has the focus."""
        text = {"text": {"Enter": "\r"}.get(key, key)} if key in ("Enter", " ") else {}
        for _ in range(times):
            code = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": KEYS[key]}
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **code, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def pointer(self, selector: str, x: float = 0.5, y: float = 0.5, click: bool = False) -> None:
        """Move to a place of an element, given as shares of its size, and click."""
        box = self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center', "
            "behavior: 'instant'}); const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
        )
        at = {"x": box[0] + x * box[2], "y": box[1] + y * box[3]}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def printed(self, expression: str) -> Any:
        """The value of an expression on paper: as in a browser, the page is told before it gets paper's styles."""
        self.js("dispatchEvent(new Event('beforeprint'))")
        self.call("Emulation.setEmulatedMedia", media="print")
        found = self.js(expression)
        self.call("Emulation.setEmulatedMedia", media="")
        self.js("dispatchEvent(new Event('afterprint'))")
        return found

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of the console, scripts that failed, and requests to anywhere else."""
        found = []
        for event in self.browser.events:
            kind, parameters = event["method"], event["params"]
            if event.get("sessionId") != self.session:
                continue
            if (
                kind == "Runtime.exceptionThrown"
                or (kind == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"))
                or (kind == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"))
                or (
                    kind == "Network.requestWillBeSent"
                    and parameters["type"] != "Document"
                    and not parameters["request"]["url"].startswith(self.own)
                )
            ):
                found.append(json.dumps(parameters)[:500])
        return found

    def cut_off(self) -> list[str]:
        """The elements that reach out of the width, but for what scrolls on its own."""
        return self.js(CUT_OFF % self.width)

    def contrasts(self) -> list[tuple[float, float, str]]:
        """The contrast of each text and curve to what is behind it, the least that WCAG (AA) asks for, which it is."""
        return self.js(CONTRASTS)

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
