"""Chromium, driven as a person would: open a page, press, click and choose, and see what it shows and saves."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


class Browser:
    """Chromium without a window, driven over its debugging pipe: JSON that ends in NUL, on descriptors 3 and 4."""

    LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for place, end in zip((3, 4), ends): os.dup2(end, place)
os.execv(sys.argv[3], sys.argv[3:])
"""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        there, self.out = os.pipe()
        self.back, here = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]
        command = [sys.executable, "-c", self.LAUNCH, str(there), str(here), CHROMIUM, *options]
        self.process = subprocess.Popen(
            [*command, f"--user-data-dir={folder / 'profile'}"],
            pass_fds=(there, here),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(here)
        self.numbers = itertools.count(1)
        self.unread = b""
        self.session: str | None = None
        self.problems: list[str] = []
        self.downloads = folder / "downloads"
        allow = {"behavior": "allow", "downloadPath": str(self.downloads)}
        self.call("Browser.setDownloadBehavior", **allow)

    def call(self, method: str, **parameters: Any) -> Any:
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while (answer := self.read()).get("id") != number:
            self.notice(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def read(self) -> dict[str, Any]:
        while b"\0" not in self.unread:
            assert select.select([self.back], [], [], 60)[0], "Chromium says nothing"
            part = os.read(self.back, 1 << 20)
            assert part, "Chromium has ended"
            self.unread += part
        first, _, self.unread = self.unread.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def notice(self, event: dict[str, Any]) -> None:
        """Keep what should not happen: errors, what the policy refused, questions to the outside."""
        method, content = event.get("method"), event.get("params", {})
        if method in ("Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening"):
            self.problems.append(json.dumps(content))
        if method == "Network.requestWillBeSent":
            address = content["request"]["url"]
            if not address.startswith(("file:", "data:", "blob:")):
                self.problems.append(address)

    def open(self, path: Path, before: str = "") -> None:
        """Show a page in a new tab; `before` runs ahead of its own script."""
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{part}.enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        self.call("Page.navigate", url=path.as_uri())
        self.until("document.readyState === 'complete' && document.querySelector('[data-place]') !== null")

    def run(self, code: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, code: str) -> None:
        deadline = time.monotonic() + 30
        while not self.run(code):
            assert time.monotonic() < deadline, f"not within 30 s: {code}"
            time.sleep(0.02)

    def press(self, *keys: str) -> None:
        for key in keys:
            text = {"text": "\r" if key == "Enter" else key} if key == "Enter" or len(key) == 1 else {}
            code = {"Enter": 13, "ArrowUp": 38, "ArrowDown": 40}.get(key, 0)
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def click(self, selector: str) -> None:
        place = self.run(  # two frames later: what was scrolled is where it is drawn
            f"(async () => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center', behavior: 'instant'});"
            " await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def choose(self, selector: str, value: str) -> None:
        """What choosing from a list does; the list itself is drawn by the system, out of reach."""
        tell = " ".join(f"e.dispatchEvent(new Event('{kind}', {{bubbles: true}}));" for kind in ("input", "change"))
        found = f"const e = document.querySelector({json.dumps(selector)});"
        self.run(f"{{ {found} e.focus(); e.value = {json.dumps(value)}; {tell} }}")

    def listed(self) -> list[int]:
        indexes: list[int] = self.run("nodes().map((node) => Number(node.dataset.index))")
        return indexes

    def text(self, selector: str) -> str:
        text: str = self.run(f"document.querySelector({json.dumps(selector)}).textContent")
        return text

    def export(self) -> Path:
        """The file that a click on the button leaves."""
        shutil.rmtree(self.downloads, ignore_errors=True)
        self.click("#export")
        path, deadline = self.downloads / "decisions.csv", time.monotonic() + 30
        while not (path.exists() and path.stat().st_size):  # the name is taken first, the file follows
            assert time.monotonic() < deadline, "no file within 30 s"
            time.sleep(0.02)
        return path

    def close(self) -> None:
        self.session = None
        try:
            self.call("Browser.close")
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.out)
            os.close(self.back)
