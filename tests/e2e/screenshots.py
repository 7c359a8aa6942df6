"""Makes the pictures of docs/console.md from a real model: `scripts/screenshots`. Look at them before you commit them.

Fonts are the system's; the pictures in the docs were made with Debian's fonts-inter and fonts-urw-base35.
"""

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.e2e.browser import PHONE, Browser, browsing
from tests.server.test_process_ends import running
from tests.server.test_run import free_port

MODEL = "smollm2-135m-instruct"
IMAGES = Path(__file__).parents[2] / "docs" / "images"
MAX_BYTES = 150_000

QUESTION = "Write a recipe for bread: a list of ingredients, then numbered steps."
SETTINGS = '{"max_tokens": "170", "repetition_penalty": "1.1"}'
MOST_IN_DOUBT = """
const read = (token) => Number(token.style.getPropertyValue("--doubt"));
const tokens = [...document.querySelectorAll(".token-list .token")].slice(0, 20);
tokens.sort((one, other) => read(other) - read(one))[0].focus();
"""
CLERK = "You are the clerk of a library. " * 24


def main() -> None:
    """Serve the model, use the console, and take four pictures."""
    IMAGES.mkdir(exist_ok=True)
    options = ("--max-num-seqs", "16", "--num-gpu-blocks-override", "512")
    with running(free_port(), MODEL, *options) as server, tempfile.TemporaryDirectory() as profile:
        server.wait_until_ready()
        with browsing(f"http://127.0.0.1:{server.port}", Path(profile)) as browser:
            browser.resize(1160, 740)
            browser.prefer("light")
            browser.fresh()
            browser.run("localStorage.setItem('octavo.settings', arguments[0])", SETTINGS)
            browser.open()
            browser.ask(QUESTION, 120)
            browser.run("document.getElementById('scroll').scrollTop = 0")
            take(browser, "console-chat")
            browser.prefer("dark")
            browser.button("New chat").click()
            browser.one("#sure").click()
            browser.ask("Who wrote the first encyclopedia?", 120)
            browser.run(MOST_IN_DOUBT)
            take(browser, "console-sure")
            browser.prefer("light")
            browser.resize(1160, 780)
            browser.open("#engine")
            with_load(browser.url, lambda: (wait(browser, 25), take(browser, "console-engine")))
            browser.resize(*PHONE, phone=True)
            browser.open("#chat")
            browser.all("#show-library")[0].click()
            browser.one("#conversations .title").click()
            take(browser, "console-phone")


def wait(browser: Browser, seconds: float) -> None:
    """Let the page live for a while."""
    browser.run("return new Promise((resolve) => setTimeout(resolve, 1000 * arguments[0]))", seconds)


def take(browser: Browser, name: str) -> None:
    """Write a picture of what is seen."""
    path = IMAGES / f"{name}.png"
    wait(browser, 0.4)
    browser.driver.save_screenshot(str(path))
    assert path.stat().st_size < MAX_BYTES, f"{path} is too large for a page"
    print(path)


def with_load(url: str, action: Callable[[], object]) -> None:
    """Do something while twenty requests with one beginning come and go."""
    over = threading.Event()

    def ask_again(number: int) -> None:
        body = {"messages": [{"role": "system", "content": CLERK}, {"role": "user", "content": f"Book {number}?"}],
                "max_tokens": 120 + 23 * number, "ignore_eos": True}  # fmt: skip
        while not over.is_set():
            httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)

    threads = [threading.Thread(target=ask_again, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    try:
        action()
    finally:
        over.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
