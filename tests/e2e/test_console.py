"""The console in a real browser, over a model that says what the tests want. After every test the browser had nothing
to complain about, and nothing was asked of anybody but the server.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from octavo.config import ServerConfig
from tests.e2e.browser import PHONE, Browser, browsing
from tests.script_model import pieces_of, write_script_model
from tests.server.world import World, serve_app

pytestmark = pytest.mark.slow

KEY = "open-the-book"
TEMPLATE = "{{ messages[-1]['content'] }}"
"""The last character of a message chooses the script."""

ANSWER = (
    "# On *books*\n\nA **page** has `two` sides. <img src=x onerror=alert(1)><script>alert(2)</script>\n\n"
    "1. recto\n2. verso\n   - both are read\n\n```py\nleaf = sheet / 8\n```\n\n"
    "| name | leaves |\n|---|---|\n| octavo | 8 |\n"
)
THOUGHT, SAID = "Fold it three times.", "Eight leaves, then!"
CALL = '<tool_call>\n{"name": "bind", "arguments": {"leaves": 8}}\n</tool_call>'
WORDS = [f" word{number:04d}" for number in range(1500)]

TOOLS = '[{"type": "function", "function": {"name": "bind", "parameters": {"type": "object"}}}]'


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = write_script_model(
        tmp_path_factory.mktemp("console"),
        pieces_of(ANSWER, 5),
        started_by={"?": pieces_of(f"<think>{THOUGHT}</think>{SAID}", 7), "@": pieces_of(CALL, 9), "!": WORDS},
        runners_up={2: ["ks\n", "ok"]},
        context_length=4096,
        chat_template=TEMPLATE,
    )
    server = ServerConfig(
        api_key=(KEY,), tool_call_parser="hermes", reasoning_parser="qwen3", disable_log_stats=True
    )  # fmt: skip
    with serve_app(folder, server, max_num_seqs=4) as world:
        world.http.headers["Authorization"] = f"Bearer {KEY}"
        yield world


@pytest.fixture(scope="module")
def browser(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(world.url, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Browser]:
    """Somebody who has not been here before, on a light desktop."""
    browser.resize(1280, 800)
    browser.prefer("light")
    browser.fresh()
    browser.complaints()
    yield browser
    assert browser.complaints() == []
    assert browser.foreign_requests() == []


@pytest.fixture
def page(visitor: Browser) -> Browser:
    """The page, unlocked."""
    unlock(visitor)
    return visitor


def unlock(browser: Browser, key: str = KEY) -> None:
    browser.one("#key-input").send_keys(key + Keys.ENTER)
    browser.until(lambda: not browser.all("#key-dialog"))


def answer(browser: Browser, selector: str = ".text") -> Any:
    found = browser.all(f".message.assistant:last-child {selector}")
    assert found, browser.one(".message:last-child").text
    return found[-1]


# ---------------------------------------------------------------- the key


def test_a_key_is_asked_for_once_and_a_wrong_one_is_told(visitor: Browser) -> None:
    visitor.one("#key-input").send_keys("wrong" + Keys.ENTER)
    assert visitor.one("#key-trouble").text == "This key is not valid."
    assert all("401" in complaint for complaint in visitor.complaints())
    unlock(visitor)
    visitor.until(lambda: visitor.one("#model").text == "test")
    visitor.open()
    visitor.until(lambda: visitor.one("#model").text == "test")
    assert visitor.run("return Object.values(localStorage)") == []  # only for as long as the window is open
    visitor.button("Forget key").click()
    visitor.one("#key-input")
    visitor.button("Cancel").click()
    assert "key" in visitor.one("#notice").text


# ---------------------------------------------------------------- answers


def test_an_answer_is_shown_as_it_was_meant_and_never_run(page: Browser) -> None:
    page.ask("hello")
    text = answer(page)
    shown = page.run("return arguments[0].innerHTML", text)
    for part in ("<h2>On <em>books</em></h2>", "<strong>page</strong>", "<code>two</code>", "<li><p>verso</p><ul>",
                 "<td>octavo</td>", "leaf = sheet / 8"):  # fmt: skip
        assert part in shown
    assert "<img src=x onerror=alert(1)><script>alert(2)</script>" in text.text
    assert page.run("return arguments[0].querySelectorAll('img, script').length", text) == 0
    facts = answer(page, ".facts").text
    assert "tokens" in facts and "/s" in facts and "first after" in facts


WATCH_SHIFTS = """
window.shifted = [];
new PerformanceObserver((list) => {
  for (const { node } of list.getEntries().flatMap((entry) => entry.sources)) {
    if (node instanceof Element && !node.closest("footer")) window.shifted.push(node.outerHTML);
  }
}).observe({ type: "layout-shift" });
"""
"""What moves while an answer grows, but for the line below it and the cursor."""


def test_a_stopped_answer_stays_and_the_engine_goes_idle(page: Browser, world: World) -> None:
    page.one("#input").send_keys("go!" + Keys.ENTER)
    page.until(lambda: "word0020" in answer(page).text)
    page.one("#stop").click()
    page.one("#send")
    world.wait_until_idle()
    text = answer(page).text
    assert "word0020" in text and "word1499" not in text
    assert "stopped" in answer(page, ".facts").text
    page.run(WATCH_SHIFTS)
    page.button("Again", ".message.assistant").click()
    page.until(lambda: "word0300" in answer(page).text)
    page.one("#input").send_keys(Keys.ESCAPE)
    page.one("#send")
    assert len(page.all(".message")) == 2 and page.run("return window.shifted") == []


def test_a_question_is_changed_and_asked_again(page: Browser) -> None:
    page.ask("hello")
    page.ask("why?")
    page.run("document.querySelector('.message.user').scrollIntoView()")
    page.all(".message.user")[0].click()
    first = page.all(".message.user:first-child button")
    next(button for button in first if button.text == "Edit").click()
    field = page.one(".edit")
    field.send_keys(Keys.CONTROL + "a")
    field.send_keys("how?" + Keys.ENTER)
    page.until(lambda: [m.text.split("\n")[1] for m in page.all(".message.user")] == ["how?"])
    page.until(lambda: page.all(".thinking") and SAID in answer(page).text)
    assert len(page.all(".message")) == 2


def test_the_way_down_is_offered_only_where_something_is_below(page: Browser) -> None:
    page.resize(1280, 500)

    def goes_down() -> bool:
        return bool(page.all("#latest"))

    def go_up() -> None:
        page.until(lambda: page.run("document.getElementById('scroll').scrollTop = 0") or goes_down())

    page.ask("hello")
    page.ask("hello")
    assert not goes_down()  # the answer was followed
    go_up()
    page.resize(1280, 5000)
    page.until(lambda: not goes_down())  # all of it is in view now
    page.resize(1280, 500)
    go_up()
    page.one("#latest").click()
    page.until(lambda: not goes_down())
    go_up()
    page.one("#to-engine").click()
    page.one("#to-chat").click()
    page.until(goes_down)  # as it was left
    page.button("New chat").click()
    page.until(lambda: not goes_down())  # an empty conversation


DOUBTS = """
const read = (token) => Number(token.style.getPropertyValue("--doubt"));
return [...document.querySelectorAll(".token-list .token")].map(read);
"""


def test_each_token_tells_how_sure_it_was(page: Browser) -> None:
    page.one("#sure").click()
    page.ask("hello")
    said = page.run("return [...document.querySelectorAll('.token-list .token')].map((token) => token.textContent)")
    assert said == pieces_of(ANSWER, 5)
    doubts = page.run(DOUBTS)
    assert all(0 <= doubt <= 1 for doubt in doubts) and doubts[2] == max(doubts) > doubts[0]
    page.run("document.querySelector('.token-list .token').focus()")
    for _ in range(2):
        page.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    card = page.one(".token-card").text
    assert "ks↵" in card and "ok" in card and "%" in card
    page.button("How sure", ".message.assistant").click()
    assert answer(page).text.startswith("On books") and not page.all(".token-list")


def test_thinking_is_folded_away(page: Browser) -> None:
    page.ask("why?")
    assert answer(page).text == SAID
    assert not page.all(".thought")
    answer(page, "summary").click()
    assert page.one(".thought").text == THOUGHT


def test_a_tool_is_called_and_its_result_sent_back(page: Browser) -> None:
    page.one("#show-settings").click()
    page.one("#set-tools").send_keys(TOOLS)
    page.ask("@")
    assert answer(page, ".call-name").text == "bind" and '"leaves": 8' in answer(page, ".call pre").text
    assert "calls a tool" in answer(page, ".facts").text
    page.one(".results textarea").send_keys("bound?")
    page.button("Send results").click()
    page.until(lambda: len(page.all(".message.assistant")) == 2 and SAID in answer(page).text)
    call, result = page.bodies("/v1/chat/completions")[-1]["messages"][-2:]
    assert call["tool_calls"][0]["function"] == {"name": "bind", "arguments": '{"leaves": 8}'}
    assert result == {"role": "tool", "content": "bound?", "tool_call_id": call["tool_calls"][0]["id"]}


def test_settings_go_with_the_request_and_mistakes_are_told(page: Browser) -> None:
    page.one("#show-settings").click()
    values = {"system": "Be brief.", "temperature": "0.5", "top_p": "0.9", "top_k": "40", "min_p": "0.1", "seed": "7",
              "max_tokens": "4", "presence_penalty": "0.1", "frequency_penalty": "0.2", "repetition_penalty": "1.1",
              "stop": "END"}  # fmt: skip
    for name, value in values.items():
        page.one(f"#set-{name}").send_keys(value)
    page.ask("hello")
    assert "cut at the limit" in answer(page, ".facts").text
    sent = page.bodies("/v1/chat/completions")[-1]
    numbers = {name: float(value) for name, value in values.items() if name not in ("system", "stop")}
    assert {name: sent[name] for name in numbers} == numbers and sent["stop"] == ["END"]
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    page.one("#set-response_format").send_keys("{")
    page.ask("hello")
    assert "JSON schema: this is not JSON" in answer(page, ".error").text
    page.button("Back to defaults").click()
    page.one("#set-response_format").send_keys('{"const": "yes"}')
    page.ask("well?")
    assert answer(page).text == '"yes"'


def test_conversations_stay_until_they_are_deleted(page: Browser) -> None:
    page.ask("first?")
    page.button("New chat").click()
    page.ask("second?")
    page.open()
    assert [title.text for title in page.all("#conversations .title")] == ["second?", "first?"]
    page.all("#conversations .title")[1].click()
    assert SAID in answer(page).text and "first?" in page.one(".message.user").text
    page.button("Delete all").click()
    page.button("Delete all", "#clear-dialog").click()
    page.until(lambda: not page.all("#conversations .title") and not page.all(".message"))
    page.open()
    assert not page.all("#conversations .title")


# ---------------------------------------------------------------- everybody


CONTRAST = """
const [front, behind] = arguments;
const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
const light = (colour) => {
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
};
const read = (selector, name) => getComputedStyle(document.querySelector(selector))[name];
const pair = [light(read(front, "color")), light(read(behind, "backgroundColor"))];
return Math.max(...pair) / Math.min(...pair);
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_in_the_systems_theme_and_the_switch_turns_it(page: Browser, scheme: str) -> None:
    page.prefer(scheme)
    page.ask("why?")
    dark = scheme == "dark"

    def is_dark() -> bool:
        return page.run("return getComputedStyle(document.body).backgroundColor") == "rgb(24, 22, 19)"

    assert is_dark() == dark
    for _ in range(2):
        for front, behind in (("body", "body"), (".facts", "body"), (".who", "body"), (".user .who", "body"),
                              ("#model", "body"), ("#send", "#send"), (".tools .quiet", ".composer")):  # fmt: skip
            assert page.run(CONTRAST, front, behind) >= 4.5, (front, scheme)
        page.one("#theme").click()
        assert is_dark() != dark
        dark = not dark
    page.one("#theme").click()
    page.open()
    assert is_dark() != (scheme == "dark")  # the choice is kept


FITS = """
return document.documentElement.scrollWidth <= innerWidth
  && [...document.querySelectorAll(".scroll, .engine, .panel")].every((node) => node.scrollWidth <= node.clientWidth);
"""


def test_a_phone_shows_everything_without_scrolling_sideways(page: Browser) -> None:
    page.resize(*PHONE, phone=True)
    page.ask("hello")
    page.one("#sure").click()
    page.ask("hello")

    def fits() -> bool:
        return bool(page.run(FITS))

    assert fits()
    for panel in ("library", "settings"):
        page.one(f"#show-{panel}").click()
        assert fits() and page.one(f"#{panel}").is_displayed()
        page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        page.until(lambda panel=panel: not page.all(f"#{panel}"))  # type: ignore[misc]
    page.one("#to-engine").click()
    page.one(".requests td")
    assert fits()


def test_all_of_it_can_be_done_with_the_keyboard(page: Browser) -> None:
    def focused(attribute: str = "id") -> str:
        return page.run(
            f"return document.activeElement.getAttribute('{attribute}') ?? document.activeElement.className"
        )

    def tab_to(name: str) -> None:
        """Press Tab until that element has the focus; it must show."""
        for _ in range(40):
            page.driver.switch_to.active_element.send_keys(Keys.TAB)
            if focused() == name:
                assert page.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
                return
        raise AssertionError(f"Tab does not reach {name}")

    press = page.driver.switch_to.active_element.send_keys
    assert focused() == "input"
    press("why?" + Keys.SHIFT + Keys.ENTER + Keys.SHIFT + "now?" + Keys.ENTER)
    page.until(lambda: page.all(".message.assistant .facts"))
    assert page.one(".message.user .text").text == "why?\nnow?"
    tab_to("show-settings")
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.all("#settings")
    tab_to("to-engine")
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    page.one(".requests td")
    tab_to("to-chat")
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    page.one("#input")
    unnamed = page.run(
        "return [...document.querySelectorAll('button, a, input, textarea')].filter((n) => !(n.textContent.trim() "
        "|| n.ariaLabel || n.labels?.length)).map((n) => n.outerHTML)"
    )
    assert unnamed == []
    assert page.run("return document.getElementById('messages').getAttribute('aria-live')") == "polite"


# ---------------------------------------------------------------- the engine


def test_the_map_of_pages_and_the_figures_move_while_requests_run(page: Browser, world: World) -> None:
    page.run("location.hash = '#engine'")
    page.one(".pagemap canvas")
    counts = (
        "return [...document.querySelectorAll('.pagemap-head b')].map((n) => Number(n.textContent.replace(',', '')))"
    )
    picture = "return document.querySelector('.pagemap canvas').toDataURL()"
    page.until(lambda: sum(page.run(counts)) == 256)
    pictures = [page.run(picture)]
    headers = {"Authorization": f"Bearer {KEY}"}
    bodies = [
        {"prompt": "A shared beginning of many words. " * 8 + f"{i}!", "max_tokens": 1500, "stream": True}
        for i in (1, 2)
    ]
    with (
        world.http.stream("POST", "/v1/completions", json=bodies[0], headers=headers) as first,
        world.http.stream("POST", "/v1/completions", json=bodies[1], headers=headers) as second,
    ):
        streams = [first.iter_raw(), second.iter_raw()]
        assert all(next(stream) for stream in streams)
        page.until(lambda: page.run(counts)[2] > 10)
        assert page.one("#running").text == "2 of 4"
        page.until(lambda: page.run(counts)[3] >= 16)  # 272 tokens in common
        pictures.append(page.run(picture))
        used = page.run(counts)[2]
        page.until(lambda: page.run(counts)[2] > used)
        pictures.append(page.run(picture))
        page.until(lambda: float(page.one("#rate-generated").text.replace(",", "")) > 0)
        assert page.all(".requests .runs")
    page.until(lambda: page.run(counts)[2:] == [0, 0])
    pictures.append(page.run(picture))
    assert all(one != other for one, other in pairwise(pictures))
    assert "abort" in page.one(".requests tbody tr").text or "length" in page.one(".requests tbody tr").text
    page.run("location.hash = '#chat'")
    page.one("#input")
    asked = sum(url.endswith("/console/state") for url in page.requests())
    page.run("return new Promise((resolve) => setTimeout(resolve, 900))")
    assert sum(url.endswith("/console/state") for url in page.requests()) <= asked + 1  # nobody looks


# ---------------------------------------------------------------- the writer

SPLIT = """
return import(new URL("console/files/markdown.js", document.baseURI)).then(({ Markdown }) => {
  const render = (pieces) => {
    const root = document.createElement("div");
    const writer = new Markdown(root);
    for (const piece of pieces) writer.write(piece);
    writer.end();
    return root.innerHTML;
  };
  const texts = arguments[0];
  const wrong = [];
  for (const text of texts) {
    const whole = render([text]);
    for (const size of [1, 2, 3, 7, 50]) {
      const pieces = text.match(new RegExp(`[^]{1,${size}}`, "g")) ?? [];
      if (render(pieces) !== whole) wrong.push([text, size, whole, render(pieces)]);
    }
  }
  return wrong;
});
"""

TEXTS = [
    "a **b *c* d** e", "2 * 3 * 4 and snake_case_name", "**never closed", "*a **b* c**", "`code ** here` and `open",
    "\\*not\\* \\n x\\", "***both*** ~~gone~~ ****", "_a_ __b__ _c", "a\nb\n\nc", "\n\n\n", "  indented", "1.\n2.",
    "-\n-", "- one\n- two\n  - deep\n  more\n\n- three\n\nend", "3. c\n4. d\n- other", "> said\n> more\nlazy\n\nend",
    "---\n***\n- - -\n-x\n--", "# a\n####### b\n#c\n## *d*", "```js\nlet `a` = 1;\n\n  ``\n```\nafter",
    "~~~\nnever closed\n``", "- code:\n  ```\n  x\n  ```\n- next", "|a|b|\n|-|-|\n|1|**2**|\nend",
    "|a|\nno table\n|b|", "|x",
]  # fmt: skip

LONG = """
return import(new URL("console/files/markdown.js", document.baseURI)).then(({ Markdown }) => {
  const root = document.body.appendChild(document.createElement("div"));
  const writer = new Markdown(root);
  writer.write("first **words**\\n\\n");
  const first = root.firstChild, strong = first.querySelector("strong");
  const begin = performance.now();
  for (let i = 0; i < 20000; i++) writer.write(i % 40 ? ` word${i}` : "\\n\\n");
  writer.write("```\\n");
  for (let i = 0; i < 20000; i++) writer.write(i % 10 ? `x${i} ` : "\\n");
  writer.end();
  const same = root.firstChild === first && first.querySelector("strong") === strong;
  root.remove();
  return [same, performance.now() - begin];
});
"""


def test_markdown_is_the_same_page_however_it_arrives(page: Browser) -> None:
    assert page.run(SPLIT, [*TEXTS, ANSWER, "\n".join(TEXTS)]) == []


def test_long_answers_are_written_quickly_and_nothing_is_written_twice(page: Browser) -> None:
    same, milliseconds = page.run(LONG)
    assert same and milliseconds < 4000
