"""The page at /ui in Chromium, used by keyboard alone and compared with what the server said.

check_page.py CHROMIUM URL URL_WITH_KEY KEY PICTURES [AXE]: the program, two servers of the demo
models, the key of the second, the folder for pictures, and the source of axe-core.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import urllib.request

from playwright.sync_api import TimeoutError as NotInTime, sync_playwright

PATIENCE_MS = 20_000
PRESSES_MAX = 40
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]
SERIOUS = """async () => {
    const { violations, passes } = await axe.run();
    const serious = violations.filter(({ impact }) => ['serious', 'critical'].includes(impact));
    return [passes.length, serious.map(({ id, help, nodes }) =>
        `${id}: ${help}: ${nodes.map((n) => n.html).join(' ')}`)];
}"""


class Page:
    """A server's page in a browser of its own."""

    def __init__(self, browser, url):
        self.url = url
        self.page = browser.new_page(viewport={"width": 1280, "height": 950})
        self.seen, self.complaints = [], []
        self.page.on("response", lambda answer: self.seen.append((answer.url, answer.headers)))
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(url + "/ui")

    def get(self, expression):
        return self.page.evaluate(f"() => {expression}")

    def each(self, selector, value):
        """Returns a value of each element `e` that a selector finds."""
        return self.get(f"Array.from(document.querySelectorAll('{selector}'), (e) => {value})")

    def until(self, what, expression):
        try:
            self.page.wait_for_function(f"() => Boolean({expression})", timeout=PATIENCE_MS)
        except NotInTime:
            shown = self.get("document.body.innerText")
            sys.exit(f"not so in time: {what}\nconsole: {self.complaints}\npage:\n{shown}")

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)

    def press_until(self, key, expression, wanted):
        """Presses a key until an expression has a value."""
        for _ in range(PRESSES_MAX):
            if self.get(expression) == wanted:
                return
            self.press(key)
        sys.exit(f"the key {key} does not lead to {wanted}")

    def tab_to(self, element, key="Tab"):
        self.press_until(key, "document.activeElement.id", element)

    def tab_back_to(self, element):
        self.tab_to(element, "Shift+Tab")

    def to_tab(self, name):
        """Shows a tab by the arrow keys."""
        shown = "document.querySelector('[role=tab][aria-selected=true]').id"
        self.tab_back_to(self.get(shown))
        self.press("Home")
        self.press_until("ArrowRight", shown, f"tab-{name}")

    def shot(self, name):
        self.get("window.scrollTo(0, 0)")
        self.page.screenshot(path=PICTURES / f"{name}.png")

    def decide(self):
        """Asks the example's questions and compares the answers' headings with the bars."""
        self.tab_to("state")
        self.press("Control+Enter")
        self.until("three answers", "document.querySelectorAll('#answers article').length === 3")
        said = self.each("#answers .said", "e.firstChild.textContent")
        assert said[0] == "card" and 0 <= float(said[2]) <= 2, said
        fill = "Array.from(e.querySelectorAll('.fill'), (e) => Number(e.getAttribute('width')))"
        bars = self.each("#answers article", fill)
        assert all(abs(sum(widths) - 100) < 1e-6 for widths in bars), f"bars are not of the whole: {bars}"

    def edit(self):
        """Adds a question of one's own, and removes it."""
        count = "document.querySelectorAll('#questions > li').length"
        self.tab_to("add-question")
        self.press("Enter")
        self.until("a fourth question", f"{count} === 4")
        assert self.get("document.activeElement.value") == "question4", "the new name has no focus"
        self.press("Tab", "Tab", "Tab", "Enter")
        self.until("three questions", f"{count} === 3")

    def programs(self):
        """Runs the programs that the page offers to copy: each prints the answer that is shown."""
        skipped = []
        for language, needed, command in [("curl", "curl", ["sh", "-s"]), ("python", "python3", ["python3", "-"]),
                                          ("node", "node", ["node", "--input-type=module", "-"])]:
            self.tab_to("ask")
            self.press_until("Tab", "document.activeElement.dataset.copy ?? ''", language)
            self.press("Enter")
            self.until("the program is shown", "document.getElementById('copied').textContent !== ''")
            text = self.get("document.getElementById('code').textContent")
            self.tab_back_to("ask")
            try:
                subprocess.run([needed, "--version"], capture_output=True, check=True)
            except OSError:
                skipped.append(needed)
                continue
            ran = subprocess.run(command, input=text, capture_output=True, text=True)
            printed = re.sub(r"\s", "", ran.stdout)
            assert ran.returncode == 0 and '"choice":"card"' in printed, f"{language}: {ran}\n{text}"
        if skipped:
            NOTES.append(f"SKIP programs that need {', '.join(skipped)}")

    def cost(self):
        """Compares the drawn tree and its figures with the responses' headers."""
        self.to_tab("cost")
        asked = lambda: [headers for url, headers in self.seen if url.endswith("/v1/systemone")]
        shown = self.get("({ ...document.getElementById('cost').dataset })")
        for name in ["prompt", "computed", "cached"]:
            assert shown[name] == asked()[-1][f"x-prelude-{name}-tokens"], (name, shown, asked()[-1])
        bar = "[Number(e.dataset.tokens), Number(e.getAttribute('width'))]"
        drawn = self.each("#forest-box rect[data-tokens]", bar)
        assert sum(tokens for tokens, _ in drawn) == int(shown["prompt"]), (drawn, shown)
        scales = [width / tokens for tokens, width in drawn]
        assert len(scales) >= 4 and max(scales) - min(scales) < 1e-6, f"not to scale: {scales}"
        self.tab_to("separately")
        self.press("Enter")
        self.until("the comparison", "document.querySelectorAll('#beside tbody tr').length === 2")
        computed = self.each("#beside tbody tr", "Number(e.cells[2].textContent.replaceAll(',', ''))")
        # Of the last round; tokens are the same in all rounds.
        together, *apart = [int(headers["x-prelude-computed-tokens"]) for headers in asked()[-4:]]
        assert computed == [together, sum(apart)] and sum(apart) > together, (computed, together, apart)

    def live(self):
        """Watches steps while requests run."""
        self.to_tab("live")
        self.until("it is live", "document.getElementById('live-state').textContent === 'Live'")
        last = "Number(document.querySelector('[data-model=demo-classifier]')?.dataset.step ?? -1)"
        before, is_seen, failed = self.get(last), threading.Event(), []

        def ask():
            body = json.dumps({"model": "demo-classifier", "input": "Where is my card?"}).encode()
            headers = {"Content-Type": "application/json", "X-Api-Key": KEY}
            try:
                while not is_seen.is_set():
                    urllib.request.urlopen(urllib.request.Request(self.url + "/classify", body, headers)).read()
            except OSError as error:
                failed.append(error)
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        self.until("steps are shown as they run", f"{last} > {before + 20}")
        is_seen.set()
        asking.join()
        assert not failed, failed
        part = "[data-model=demo-classifier]"
        self.until("the times of requests are shown", f"document.querySelector('{part} .histogram rect')")
        bars = self.get(f"document.querySelectorAll('{part} .strip rect').length")
        assert 20 <= bars <= 200, f"{bars} bars"

    def compare(self):
        """Classifies a text by a model's classes, and by labels of one's own."""
        best = "document.querySelector('#classify-form .best th')?.textContent === 'card_arrival'"
        labels = "document.getElementById('classify-labels-field').hidden"
        self.to_tab("compare")
        self.tab_to("classify-text")
        self.press("Enter")
        self.until("a class", best)
        self.tab_back_to("classify-model")
        assert self.get(labels), "a classifier is offered first"
        unable = self.each("#view-compare .unable:not([hidden])", "e.textContent")
        assert any(text.startswith("No served model embeds texts") for text in unable), unable
        # A language model takes labels of one's own.
        self.press("ArrowDown")
        self.until("labels are asked for", f"!{labels}")
        self.tab_to("classify-text")
        self.press("Enter")
        self.until("three labels", "document.querySelectorAll('#classify-form .bars tr').length === 3")
        self.until("the best label", best)

    def accessibility(self, axe):
        """Checks every tab in both colour schemes."""
        if axe:
            self.page.evaluate(axe)
        for scheme in ["light", "dark"]:
            self.page.emulate_media(color_scheme=scheme)
            for tab in ["decide", "cost", "live", "compare"]:
                self.to_tab(tab)
                if scheme == "dark":
                    self.shot(f"{tab}-dark")
                if axe:
                    passes, serious = self.page.evaluate(SERIOUS)
                    assert passes > 10, f"axe-core checked nothing: {passes}"
                    assert not serious, f"{tab}, {scheme}: {serious}"
        NOTES.append("axe-core finds nothing serious on 8 views" if axe else "SKIP axe-core (not installable here)")


def check(browser, url, axe):
    page = Page(browser, url)
    page.until("the page says what is served", "document.getElementById('served').textContent.includes('demo-lm')")
    page.press("Tab")
    assert page.get("document.activeElement.className") == "skip", "the first stop skips nothing"
    page.decide()
    page.shot("decide")
    page.edit()
    page.programs()
    for tab in ["cost", "live", "compare"]:
        getattr(page, tab)()
        page.shot(tab)
    page.accessibility(axe)
    assert not page.complaints, f"the console has: {page.complaints}"


def check_with_key(browser, url):
    """The page asks for the key, says that a wrong one is wrong, and works with the right one."""
    page = Page(browser, url)
    served = "document.getElementById('served').textContent"
    page.until("the page asks for a key", "document.activeElement?.id === 'key'")
    page.page.keyboard.type("wrong")
    page.press("Enter")
    page.until("a wrong key is refused", f"{served}.includes('not accept')")
    page.page.keyboard.type(KEY)
    page.press("Enter")
    page.until("the key is taken", f"document.getElementById('key-form').hidden && {served}.includes('demo-lm')")
    page.decide()
    page.live()
    assert page.get("localStorage.length + sessionStorage.length + document.cookie.length") == 0, "the key is stored"


CHROMIUM, URL, URL_WITH_KEY, KEY, pictures, *AXE = sys.argv[1:]
PICTURES, NOTES = pathlib.Path(pictures), ["the page works by keyboard"]
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=FLAGS)
    check(browser, URL, pathlib.Path(AXE[0]).read_text() if AXE else None)
    check_with_key(browser, URL_WITH_KEY)
    browser.close()
print("; ".join(NOTES))
