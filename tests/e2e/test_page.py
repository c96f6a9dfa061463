"""The page at / in a headless Chromium, on the scripted engine: what a person sees and presses."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2e.conftest import StartServer
from support.browser import Chromium, Page, find_chromium
from support.demo_results import demo_results
from support.scripted_engine import TEXT
from support.server_process import ServerProcess, until

from nextn.bench.completion import Step
from nextn.bench.report import write_report

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine")

VERDICT = "document.getElementById('verdict').textContent"
SPANS = (
    "[...document.querySelectorAll('#panes article:first-child pre span[title]')]"
    ".map(s => [s.textContent, s.className])"
)
REJECTED = "[...document.querySelectorAll('#panes del')].map(s => [s.textContent, s.className, s.title])"
METRICS = (
    "Object.fromEntries([...document.querySelectorAll('#panes article:first-child dl div')].map("
    "d => [d.firstChild.textContent, d.lastChild.textContent]))"
)
TITLES = "[...document.querySelectorAll('#panes h2')].map(e => e.textContent)"
SAID = "document.getElementById('said').textContent"
HELP = "document.getElementById('help').innerText"
SHOWN = "document.getElementById('source').textContent.startsWith('A recorded example')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as made:
        yield made


@pytest.fixture
def page(browser: Chromium, scripted: ServerProcess) -> Iterator[Page]:
    browser.events.clear()
    page = browser.open(scripted.url + "/")
    page.until("document.getElementById('model').textContent.includes('MTP')")
    page.until(SHOWN)
    yield page
    assert page.complaints() == []
    page.close()


def fill(page: Page, name: str, value: str) -> None:
    page.get(f"document.getElementById({name!r}).value = {value!r}")


def click(page: Page, name: str) -> None:
    page.get(f"document.getElementById({name!r}).click()")


def generate(page: Page) -> None:
    click(page, "run")
    page.until(f"!({SHOWN}) && {VERDICT}.includes('identical')")


def test_an_example_is_there_from_the_start(page: Page) -> None:
    assert page.get(TITLES) == ["With MTP, 3 drafts", "Without MTP"]
    assert page.get(VERDICT).startswith("✓ identical")
    assert len(page.get(REJECTED)) > 10
    assert page.get("document.querySelectorAll('#plot polyline').length") == 2


def test_tokens_by_how_they_came(page: Page) -> None:
    """By keyboard alone; markup in a prompt stays text. The scripted engine adds a draft that is rejected."""
    page.get("document.getElementById('prompt').focus(); document.getElementById('prompt').select()")
    page.type("<img src=x onerror=alert(1)>")
    fill(page, "max-tokens", "30")
    page.press("Enter", ctrl=True)
    page.until(f"!({SHOWN}) && {VERDICT}.includes('identical')")
    spans = page.get(SPANS)
    assert [kind for _, kind in spans] == ["d1", "d2", "d0"] * 10
    assert "".join(text for text, _ in spans) == TEXT[:30]
    steps = "[...document.querySelectorAll('#panes article:first-child pre .step')].map(e => e.innerText)"
    assert len(page.get(steps)) == 9  # the first is the prompt's
    assert page.get(REJECTED)[1] == ["d", "rejected d3", "step 1: draft 3, rejected"]
    order = "[...document.querySelector('#panes .step').children].map(e => e.className)"
    assert page.get(order) == ["d1", "d2", "rejected d3", "d0"]  # where it stood
    assert page.get("document.querySelector('.given').textContent") == "<img src=x onerror=alert(1)>"
    assert page.get("document.querySelector('#panes img')") is None
    shown = page.get(METRICS)
    assert (shown["accept length"], shown["tokens"], shown["steps"]) == ("3.00", "30", "10")
    legend = "[...document.querySelector('.legend').children].map(e => e.textContent)"
    accepted = ["draft 1 10 of 10 accepted", "draft 2 10 of 10 accepted", "draft 3 0 of 10 accepted"]
    assert page.get(legend) == ["the model's own 10", *accepted]


def test_rejected_drafts_can_be_hidden(page: Page) -> None:
    shown = "document.querySelector('#panes del').checkVisibility()"
    assert page.get(shown) is True
    click(page, "rejected")
    assert page.get(shown) is False


def test_the_player_tells_a_step(page: Page) -> None:
    fill(page, "max-tokens", "12")
    generate(page)
    scene = "[...document.querySelectorAll('#scene li')].map(e => e.innerText.split('\\n'))"
    assert page.get(SAID).startswith("Step 1. The root is the last token")
    assert [name for name, *_ in page.get(scene)] == ["root"]
    assert page.get("document.getElementById('position').max") == "11"  # three steps of four phases
    click(page, "next")
    assert [name for name, *_ in page.get(scene)] == ["root", "draft 1", "draft 2", "draft 3"]
    click(page, "next")
    assert [said[-1] for said in page.get(scene)[1:]] == ["✓ accepted", "✓ accepted", "✗ rejected"]
    assert "2 of 3 are the same tokens" in page.get(SAID)
    click(page, "next")
    assert page.get(scene)[-1][0] == "bonus"
    assert "committed 3 tokens in one pass" in page.get(SAID)
    page.get(
        "{ const bar = document.getElementById('position'); bar.value = 4;"
        " bar.dispatchEvent(new Event('input')); }"
    )
    assert page.get(SAID).startswith("Step 2. The root")
    assert page.get("document.getElementById('position').getAttribute('aria-valuetext')") == "step 2, root"


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_side_by_side(page: Page, temperature: str) -> None:
    """Seeds are the same for both. The ratio is of the engine's times."""
    fill(page, "max-tokens", "20")
    fill(page, "temperature", temperature)
    click(page, "run")
    page.until(f"!({SHOWN}) && {VERDICT}.includes('identical')")
    assert page.get(TITLES) == ["With MTP, 3 drafts", "Without MTP"]
    own = "[...document.querySelectorAll('#panes article:last-child pre span[title]')].map(s => s.className)"
    assert set(page.get(own)) == {"d0"}
    assert page.get("document.querySelectorAll('#plot polyline').length") == 2
    found = re.search(
        r"; ([\d.]+) x the tokens/s with MTP, .*the median of \d runs each\.$", page.get(VERDICT)
    )
    assert found is not None
    speeds = page.get("[...document.querySelectorAll('#panes dd')].map(e => e.textContent)")[::5]
    with_mtp, without = (float(speed.replace(",", "")) for speed in speeds)
    assert float(found[1]) == pytest.approx(with_mtp / without, abs=0.01)


def test_what_is_asked_for(page: Page) -> None:
    """Three drafts by default; automatic is a choice. Code of it can be copied."""
    page.call("Network.enable")
    for depth in ("3", "server", "8"):
        assert depth != "3" or page.get("document.getElementById('drafts').value") == "3"
        fill(page, "drafts", depth)
        generate(page)
    events = [e["params"] for e in page.browser.events if e["method"] == "Network.requestWillBeSent"]
    bodies = [json.loads(e["request"]["postData"]) for e in events if "postData" in e["request"]]
    asked = [body.get("speculative") for body in bodies]
    three, eight = {"num_steps": 3}, {"num_steps": 8}
    # A warm-up, then both in turn, several times
    assert [key for key, _ in itertools.groupby(asked) if key is not False] == [
        value for value in (three, None, eight) for _ in range(asked.count(value) - 1)
    ]
    assert asked[:3] == [three, three, False]
    assert asked.count(False) == len(asked) - asked.count(False) - 3
    fill(page, "prompt", "it's")
    snippet = "document.getElementById('snippet').textContent"
    click(page, "curl")
    shown = page.get(snippet)
    found = subprocess.run(["bash", "-c", f'curl() {{ echo "${{@: -1}}"; }}; {shown}'], capture_output=True)
    assert json.loads(found.stdout) == {
        "prompt": "it's", "max_tokens": 128, "temperature": 0, "speculative": {"num_steps": 8},
    }  # fmt: skip
    click(page, "python")
    code = page.get(snippet)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, {})
    assert output.getvalue().startswith("def add(a, b)")
    page.browser.events.clear()


def test_nothing_is_asked_of_another_host(browser: Chromium, scripted: ServerProcess) -> None:
    page = browser.open("about:blank")
    page.call("Network.enable")
    page.call("Page.navigate", url=scripted.url + "/")
    page.until(f"document.getElementById('source') && {SHOWN}")
    generate(page)
    click(page, "tab-chat")
    events = [e for e in browser.events if e.get("sessionId") == page.session]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert len(urls) > 20
    assert [url for url in urls if not url.startswith((scripted.url, "data:"))] == []
    page.close()


def test_chat(page: Page) -> None:
    click(page, "tab-chat")
    assert page.get("document.getElementById('compare').hidden") is True
    fill(page, "max-tokens", "20")
    fill(page, "message", "hello")
    click(page, "send")
    page.until("document.querySelector('#talk .assistant .note')?.textContent.includes('accept length')")
    assert page.get("document.querySelector('#talk .user .content').textContent") == "hello"
    assert page.get("document.querySelector('#talk .assistant .content').textContent") == TEXT[:20]
    note = page.get("document.querySelector('#talk .assistant .note').textContent")
    assert note == "20 tokens, accept length 2.86 (100 % 86 %)"
    click(page, "clear")
    assert page.get("document.getElementById('talk').children.length") == 0


def test_texts_that_differ_are_seen_to(page: Page) -> None:
    """The scripted engine does not: the second answer is changed on its way."""
    page.get(
        "{ const real = window.fetch; let calls = 0; window.fetch = async (path, options) => {"
        "  const answer = await real(path, options);"
        "  if (path !== 'v1/completions' || ++calls < 3) return answer;"
        # A "c" of a text; on a busy machine it is one event with its neighbours.
        "  const text = await answer.text();"
        """  return new Response(text.replace(/"text":"([^"]*?)c/, '"text":"$1k')); }; }"""
    )
    click(page, "run")
    page.until(f"{VERDICT}.includes('different')")


def test_stop_frees_the_request(browser: Chromium, slow: ServerProcess) -> None:
    page = browser.open(slow.url + "/")
    page.until(SHOWN)
    fill(page, "max-tokens", "500")
    click(page, "run")
    page.until("document.querySelectorAll('#panes pre .step').length > 3 && !(" + SHOWN + ")")
    page.until("document.querySelector('#sparks figure:last-child b').textContent.startsWith('1,')")
    page.press("Escape")
    page.until("document.querySelector('.error').textContent == 'Stopped.'")
    until(lambda: slow.metrics()["nextn:num_running_reqs"] == 0)
    page.close()


def test_the_last_minutes(page: Page) -> None:
    """From the server's counters: tokens/s, accept length and running requests."""
    names = "[...document.querySelectorAll('#sparks figcaption')].map(e => e.firstChild.textContent)"
    assert page.get(names) == ["tokens/s", "accept length", "running requests"]
    generate(page)
    value = "document.querySelectorAll('#sparks b')[{}].textContent"
    page.until(f"/at most [1-9]/.test({value.format(0)})")
    # Three tokens a step with drafts, one without
    page.until(f"/at most [12][.]/.test({value.format(1)})")
    assert "% of the KV cache in use" in page.get("document.getElementById('load').textContent")


def test_what_automatic_depth_does(browser: Chromium, page: Page, start: StartServer) -> None:
    """In the log's words; nothing where the depth is fixed."""
    auto = "document.getElementById('auto').textContent"
    page.until("document.getElementById('load').textContent.includes('queued')")
    assert page.get(auto) == ""
    with start(SCRIPT_AUTO="0.94") as server:
        of_auto = browser.open(server.url + "/")
        of_auto.until("document.getElementById('drafts').options.length == 9")
        of_auto.until("document.getElementById('drafts').lastChild.textContent == 'automatic'")
        fill(of_auto, "drafts", "server")
        click(of_auto, "run")
        of_auto.until(f"{auto} != ''")
        shown = of_auto.get(auto)
        assert shown.startswith("auto: not drafting at ")
        assert shown.endswith("; drafts would make 0.94 x the tokens/s")
        of_auto.close()


def test_load_of_replicas(browser: Chromium, start: StartServer) -> None:
    """Counters are added up; automatic depth is that of each."""
    with start("--dp-size", "2", "--device", "cpu", SCRIPT_AUTO="0.94") as server:
        for rank in (0, 1):
            body = {"prompt": "x" * 10, "max_tokens": 4, "routed_dp_rank": rank}
            httpx.post(server.url + "/v1/completions", json=body).raise_for_status()
        page = browser.open(server.url + "/")
        load, auto = (f"document.getElementById('{name}').textContent" for name in ("load", "auto"))
        page.until(f"{load}.includes('of prompt tokens found')")
        assert "45 % of prompt tokens" in page.get(load).replace("\xa0", " ")
        page.until(f"{auto} != ''")
        first, second = page.get(auto).split("; replica ")
        assert first.startswith("replica 0: auto: not drafting at ")
        assert second.startswith("1: auto: not drafting at ")
        page.close()


def test_errors_and_key(page: Page) -> None:
    """An error is shown in the server's words. The key goes with every request, and is this tab's only."""
    page.call("Network.enable")
    page.get(
        "{ const key = document.getElementById('key'); key.value = 'geheim';"
        " key.dispatchEvent(new Event('change')); }"
    )
    fill(page, "prompt", "x" * 2000)
    click(page, "run")
    page.until("document.querySelector('.error')?.textContent.includes('context')")
    sent = [e["params"]["request"] for e in page.browser.events if e["method"] == "Network.requestWillBeSent"]
    keys = {
        name: {r["headers"].get("Authorization") for r in sent if r["url"].endswith(f"/{name}")}
        for name in ("completions", "server_info")
    }
    assert keys == {"completions": {"Bearer geheim"}, "server_info": {"Bearer geheim"}}
    assert page.get("[Object.values(sessionStorage), Object.values(localStorage)]") == [["geheim"], ["auto"]]
    refused = page.complaints()  # Chromium's own lines for the 400s: of the warm-up and of the run
    assert len(refused) == 2
    assert all("400" in line for line in refused)
    page.browser.events.clear()


def test_what_to_do_without_a_key_and_without_a_server(browser: Chromium, start: StartServer) -> None:
    server = start("--api-key", "right").wait_ready()
    page = browser.open(server.url + "/")
    page.until(f"{HELP}.includes('This server asks for an API key')")
    key = "const key = document.getElementById('key'); key.dispatchEvent(new Event('change'));"
    page.get(f"{{ document.getElementById('key').value = 'wrong'; {key} }}")
    page.until(f"{HELP}.includes('does not accept this API key')")
    page.get(f"{{ document.getElementById('key').value = 'right'; {key} }}")
    page.until("document.getElementById('help').hidden")
    page.until("document.getElementById('model').textContent.includes('MTP')")
    server.kill()
    page.until(f"{HELP}.includes('No server answers at {server.url}')")
    page.close()
    browser.events.clear()


CONTRAST = """(() => {
  const probe = document.createElement('canvas').getContext('2d');
  const light = (colour) => {
    probe.fillStyle = colour; probe.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...probe.getImageData(0, 0, 1, 1).data].map(
      (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const pre = document.querySelector('#panes pre');
  return [1, 2, 3, 4, 5, 6, 7, 8, 'given', 'rejected'].map((depth) => {
    const token = document.createElement('span');
    const plain = isNaN(depth);
    token.className = plain ? depth : `d${depth}`;
    pre.append(token);
    const { color, backgroundColor } = getComputedStyle(token);
    token.remove();
    const ground = plain ? getComputedStyle(pre).backgroundColor : backgroundColor;
    const pair = [light(color), light(ground)];
    return Math.max(...pair) / Math.min(...pair);
  });
})()"""


def test_every_token_can_be_read_in_both_themes(page: Page) -> None:
    """WCAG's ratio for text, 4.5, on the ground of every depth."""
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        ratios = page.get(CONTRAST)
        assert min(ratios) >= 4.5, (scheme, ratios)
        assert max(ratios) < 21


def test_depths_differ_by_more_than_colour(page: Page) -> None:
    lines = page.get(
        "[1, 2, 3, 4, 5, 6, 7, 8].map((depth) => { const token = document.createElement('span');"
        " token.className = `d${depth}`; document.body.append(token); const style = getComputedStyle(token);"
        " const found = style.borderTopStyle + ' ' + style.borderBottomStyle;"
        " token.remove(); return found; })"
    )
    assert len(set(lines)) == 8


def test_the_keyboard_reaches_everything(page: Page) -> None:
    """In the order in which it stands on the page."""
    page.get("document.activeElement.blur()")
    reached = []
    for _ in range(20):
        page.press("Tab")
        reached.append(page.get("document.activeElement.id || document.activeElement.tagName"))
    names = ["key", "theme", "tab-compare", "tab-chat", "drafts", "max-tokens", "temperature", "seed"]
    names += ["preset", "prompt", "run", "curl", "python", "rejected", "PRE", "PRE"]
    assert reached == [*names, "next", "play", "position", "A"]
    unnamed = (
        "[...document.querySelectorAll('input, select, textarea')]"
        ".filter(e => !e.labels.length && !e.ariaLabel).length"
    )
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


@pytest.mark.parametrize("tab", ["tab-compare", "tab-chat"])
def test_nothing_sticks_out(page: Page, tab: str) -> None:
    """Neither of the window nor, sideways, of the box that it is in."""
    click(page, "python")
    click(page, tab)
    for width in (1280, 390, 360):
        page.resize(width, 900)
        for scheme in ("light", "dark"):
            page.prefer(scheme)
            assert page.get("document.documentElement.scrollWidth") <= width
            wider = "e => e.getBoundingClientRect().right > innerWidth"
            found = f"[...document.querySelectorAll('body *')].filter({wider})"
            assert page.get(f"{found}.map(e => e.outerHTML.slice(0, 80))") == []
            wider = "e => e.scrollWidth > e.clientWidth"
            assert page.get(f"[...document.querySelectorAll('pre')].filter({wider}).length") == 0


def test_the_report_of_the_demo(browser: Chromium, tmp_path: Path) -> None:
    """It fits its page, and nothing in it scrolls sideways."""
    results = demo_results()
    results.completion.steps[2:] = [
        Step([(f" token{depth}", depth)], [(" no", depth)]) for depth in range(10)
    ]
    for point in results.points:
        point.spec.proposed[:] = point.spec.accepted[:] = [100] * 8
    write_report(results, tmp_path)
    page = browser.open((tmp_path / "report.html").as_uri())
    for width in (390, 1280):
        for scheme in ("light", "dark"):
            page.prefer(scheme)
            page.resize(width, 900)
            assert page.get("document.documentElement.scrollWidth") <= width
            inner = "[...document.querySelectorAll('.card, pre')].filter(e => e.scrollWidth > e.clientWidth)"
            assert page.get(f"{inner}.length") == 0
    assert page.complaints() == []
    page.close()
