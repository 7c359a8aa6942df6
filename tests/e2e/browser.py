"""A real Chromium without a window, and what a test asks of it."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
         "--hide-scrollbars", "--force-color-profile=srgb")  # fmt: skip

PHONE = (390, 844)

VISIBLE = """
const shown = (node) => node.checkVisibility({ opacityProperty: true, visibilityProperty: true })
  && node.getBoundingClientRect().width * node.getBoundingClientRect().height > 0;
return [...document.querySelectorAll(arguments[0])].filter(shown);
"""


class Browser:
    """One window.

    Args:
        url: of the server whose page it looks at.
    """

    def __init__(self, driver: Chrome, url: str) -> None:
        self.driver = driver
        self.url = url
        self._seen: list[dict[str, Any]] = []

    def open(self, fragment: str = "") -> None:
        """Load the page anew."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/{fragment}")

    def fresh(self) -> None:
        """The page as somebody sees it who was never here."""
        self.driver.get(f"{self.url}/console/files/octavo.svg")
        self.run("localStorage.clear(); sessionStorage.clear()")
        self.open()

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript in the page; a promise is waited for."""
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        """Elements that can be seen."""
        found: list[WebElement] = self.run(VISIBLE, selector)
        return found

    def one(self, selector: str, timeout_s: float = 10.0) -> WebElement:
        """The first element that can be seen, once there is one."""
        return self.until(lambda: next(iter(self.all(selector)), None), timeout_s, selector)

    def button(self, name: str, inside: str = "body") -> WebElement:
        """The last button of this name."""
        return self.until(
            lambda: next((b for b in reversed(self.all(f"{inside} button")) if b.text == name), None), 10.0, name
        )

    def until(self, condition: Callable[[], Any], timeout_s: float = 10.0, what: str = "it") -> Any:
        """The first true value of `condition`."""
        wait = WebDriverWait(self.driver, timeout_s, 0.05, ignored_exceptions=[StaleElementReferenceException])
        return wait.until(lambda _: condition(), f"{what} did not come about")

    def ask(self, text: str, timeout_s: float = 10.0) -> None:
        """Send a message in the console and wait for the end of the answer."""
        ended = ".message.assistant .facts, .message.assistant .error"
        count = len(self.all(ended))
        self.one("#input").send_keys(text + Keys.ENTER)
        self.until(lambda: len(self.all(ended)) > count and self.all("#send"), timeout_s, "the answer")

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """Set the size of the page; as a phone, with a finger."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 0, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """The system's colour scheme: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def requests(self) -> list[str]:
        """Addresses that have been asked for since the start."""
        return [request["url"] for request in self._read_requests()]

    def bodies(self, path: str) -> list[Any]:
        """What has been posted to a path."""
        return [json.loads(r["postData"]) for r in self._read_requests() if r["url"] == self.url + path]

    def _read_requests(self) -> list[dict[str, Any]]:
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self._seen.append(message["params"]["request"])
        return self._seen

    def foreign_requests(self) -> list[str]:
        """Those that went to anybody but the server."""
        home = urlsplit(self.url).netloc
        urls = [url for url in self.requests() if urlsplit(url).scheme in ("http", "https", "ws", "wss", "ftp")]
        return [url for url in urls if urlsplit(url).netloc != home]

    def complaints(self) -> list[str]:
        """What the console of the browser says: errors, violations of the policy, warnings."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def browsing(url: str, profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile. Fails if there is none on this machine."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert chromium and driver, "no Chromium here; run scripts/install-browser (Debian: chromium, chromium-driver)"
    options = ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    chrome = Chrome(options=options, service=Service(driver))
    try:
        browser = Browser(chrome, url)
        browser.resize(1280, 800)
        yield browser
    finally:
        chrome.quit()
