"""The page at / in a headless Chromium, on the scripted engine: what a person sees and presses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.conftest import StartServer
from support.browser import Chromium, Page, find_chromium
from support.scripted_engine import TEXT
from support.server_process import ServerProcess, until

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine")

VERDICT = "document.getElementById('verdict').textContent"
SPANS = "[...document.querySelectorAll('#panes pre span:not(.given)')].map(s => [s.textContent, s.className])"
METRICS = (
    "Object.fromEntries([...document.querySelectorAll('#panes dl div')].map("
    "d => [d.firstChild.textContent, d.lastChild.textContent]))"
)
TITLES = "[...document.querySelectorAll('#panes h2')].map(e => e.textContent)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as made:
        yield made


@pytest.fixture
def page(browser: Chromium, scripted: ServerProcess) -> Iterator[Page]:
    page = browser.open(scripted.url + "/")
    page.until("document.getElementById('model').textContent.includes('MTP')")
    yield page
    assert page.complaints() == []
    page.close()


def fill(page: Page, name: str, value: str) -> None:
    page.get(f"document.getElementById({name!r}).value = {value!r}")


def test_tokens_by_how_they_came(page: Page) -> None:
    """By keyboard alone; markup in a prompt stays text."""
    page.get("document.getElementById('prompt').focus(); document.getElementById('prompt').select()")
    page.type("<img src=x onerror=alert(1)>")
    fill(page, "max-tokens", "30")
    page.press("Enter", ctrl=True)
    page.until(f"{VERDICT}.startsWith('Done')")
    spans = page.get(SPANS)
    assert [kind for _, kind in spans] == ["d1", "d2", "d0"] * 10
    assert "".join(text for text, _ in spans) == TEXT[:30]
    assert page.get("document.querySelector('.given').textContent") == "<img src=x onerror=alert(1)>"
    assert page.get("document.querySelector('#panes img')") is None
    shown = page.get(METRICS)
    assert (shown["accept length"], shown["tokens"], shown["of them cached"]) == ("3.00", "30", "14")
    legend = "[...document.querySelectorAll('.legend li')].map(e => e.textContent)"
    assert page.get(legend) == ["the model's own 10", "draft 1, accepted 10", "draft 2, accepted 10"]


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_side_by_side(page: Page, temperature: str) -> None:
    """DrawParams seeds are the same for both."""
    page.get("document.getElementById('compare').click()")
    fill(page, "max-tokens", "20")
    fill(page, "temperature", temperature)
    page.get("document.getElementById('run').click()")
    page.until(f"{VERDICT}.includes('identical')")
    assert page.get(TITLES) == [
        "With MTP",
        "Without MTP",
    ]
    assert {kind for _, kind in page.get(SPANS)[-20:]} == {"d0"}
    assert page.get("document.querySelectorAll('#plot polyline').length") == 2


def test_texts_that_differ_are_seen_to(page: Page) -> None:
    """The scripted engine does not: the second answer is changed on its way."""
    page.get(
        "{ const real = window.fetch; let calls = 0; window.fetch = async (path, options) => {"
        "  const answer = await real(path, options);"
        "  if (path !== 'v1/completions' || ++calls < 3) return answer;"
        '  return new Response((await answer.text()).replace(\'"text":"c"\', \'"text":"k"\')); }; }'
    )
    page.get("document.getElementById('compare').click()")
    page.get("document.getElementById('run').click()")
    page.until(f"{VERDICT}.includes('different')")


def test_stop_frees_the_request(browser: Chromium, slow: ServerProcess) -> None:
    page = browser.open(slow.url + "/")
    fill(page, "max-tokens", "500")
    page.get("document.getElementById('run').click()")
    page.until("document.querySelectorAll('#panes pre span').length > 3")
    page.until("document.querySelector('#load dd').textContent == '1'")  # running
    page.press("Escape")
    page.until("document.querySelector('.error').textContent == 'Stopped.'")
    until(lambda: slow.metrics()["nextn:num_running_reqs"] == 0)
    page.close()


def test_what_automatic_depth_does(browser: Chromium, page: Page, start: StartServer) -> None:
    """Nothing where the depth is fixed."""
    page.until("document.querySelector('#load dd')?.textContent == '0'")
    assert page.get("document.getElementById('auto').hidden") is True
    with start(SCRIPT_AUTO="0.94") as server:
        of_auto = browser.open(server.url + "/")
        of_auto.get("document.getElementById('run').click()")
        of_auto.until("!document.getElementById('auto').hidden")
        shown = of_auto.get("document.getElementById('auto').textContent")
        assert shown == "auto: not drafting at this load; drafts would make 0.94 x"
        of_auto.close()


def test_errors_and_key(page: Page) -> None:
    """An error is shown in the server's words. The key goes with every request, and is this tab's only."""
    page.call("Network.enable")
    page.get(
        "{ const key = document.getElementById('key'); key.value = 'geheim';"
        " key.dispatchEvent(new Event('change')); }"
    )
    fill(page, "prompt", "x" * 2000)
    page.get("document.getElementById('run').click()")
    page.until("document.querySelector('.error')?.textContent.includes('context')")
    sent = [e["params"]["request"] for e in page.browser.events if e["method"] == "Network.requestWillBeSent"]
    assert {request["headers"].get("Authorization") for request in sent} == {"Bearer geheim"}
    assert {request["url"].rpartition("/")[2] for request in sent} >= {"completions", "server_info"}
    assert page.get("[Object.values(sessionStorage), Object.values(localStorage)]") == [["geheim"], ["auto"]]
    (refused,) = page.complaints()  # Chromium's own line for the 400
    assert "400" in refused
    page.browser.events.clear()


CONTRAST = """(() => {
  const probe = document.createElement('canvas').getContext('2d');
  const light = (colour) => {
    probe.fillStyle = colour; probe.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...probe.getImageData(0, 0, 1, 1).data].map(
      (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const pre = document.querySelector('#panes pre');
  return [1, 2, 3, 4, 5, 'given'].map((depth) => {
    const token = document.createElement('span');
    token.className = depth === 'given' ? 'given' : `d${depth}`;
    pre.append(token);
    const { color, backgroundColor } = getComputedStyle(token);
    token.remove();
    const ground = depth === 'given' ? getComputedStyle(pre).backgroundColor : backgroundColor;
    const pair = [light(color), light(ground)];
    return Math.max(...pair) / Math.min(...pair);
  });
})()"""


def test_every_token_can_be_read_in_both_themes(page: Page) -> None:
    """WCAG's ratio for text, 4.5, on the ground of every depth."""
    page.get("document.getElementById('run').click()")
    page.until(f"{VERDICT}.startsWith('Done')")
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        ratios = page.get(CONTRAST)
        assert min(ratios) >= 4.5, (scheme, ratios)
        assert max(ratios) < 21


def test_the_keyboard_reaches_everything(page: Page) -> None:
    """In the order in which it stands on the page."""
    page.get("document.getElementById('run').click()")
    page.until(f"{VERDICT}.startsWith('Done')")
    page.get("document.activeElement.blur()")
    reached = []
    for _ in range(12):
        page.press("Tab")
        reached.append(page.get("document.activeElement.id || document.activeElement.tagName"))
    names = ["key", "theme", "prompt", "max-tokens", "temperature", "seed", "drafts", "compare", "run", "PRE"]
    assert reached[:10] == names
    unnamed = "[...document.querySelectorAll('input, select, textarea')].filter(e => !e.labels.length).length"
    assert page.get(unnamed) == 0


def test_themes(page: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    page.prefer("light")
    light = page.get(ground)
    page.prefer("dark")
    dark = page.get(ground)
    assert light != dark
    for theme, colour in (("light", light), ("dark", dark), ("auto", dark)):
        page.get("document.getElementById('theme').focus()")
        page.press("Enter", text="\r")
        assert page.get("document.getElementById('theme').textContent") == f"Theme: {theme}"
        assert page.get(ground) == colour


def test_narrow(page: Page) -> None:
    """Nothing sticks out of a telephone's screen."""
    page.resize(360, 700)
    assert page.get("document.documentElement.scrollWidth") <= 360
