"""The page as a file, and as people see it: in a real browser, on a phone's width."""

import json
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium import webdriver

from jaxattn.parity.report import ParityReport, Row
from jaxattn.parity.trace_report import AttentionMap, Evidence, Layer, TraceReport
from jaxattn.parity.train_report import Step, TrainReport

from ..errors import refuses

ODD = "Odd<script>alert(1)</script>&Name"
LONG = "Twin" + "w" * 50
PHONE = 390
QUERIES, KEYS = 5, 7
PATH = "encoder.layers.0.a_very_long_name_that_no_phone_has_room_for.self_attn.out_proj"


def rows(problems: tuple[str, ...] = ()) -> tuple[Row, ...]:
    gradient = Row(f"gradient of {PATH}.weight", "gradient", (11, 13), 1e-15, 1e-11, 2e-7, 1e-7, 9e-7)
    zero = Row("gradient of k.bias", "gradient", (7,), 0.0, 1e-11, 0.0, 0.0, 1e-7, zero=True)
    output = Row("output", "output", (3, 5), math.inf if problems else 0.0, 1e-12, 2e-7, 1e-7, 9e-7, problems=problems)
    return (Row("state dict, bit for bit", "weights", (17,)), output, gradient, zero)


def trace(first: str | None) -> TraceReport:
    problems = () if first is None else ("local: 0.004 > 1e-12",)
    error = 1e-16 if first is None else 4e-3
    torch = np.full((2, QUERIES, KEYS), 1 / KEYS)
    return TraceReport(
        ODD,
        "Twin",
        (
            Layer("encoder.norm<1>", "norm", 0, "LayerNorm", "LayerNorm", (3, 5), 0.0, 1e-12, 1e-16, 1e-12),
            Layer(PATH, PATH, 0, "Linear", "Linear", (3, 5), error, 1e-12, error, 1e-12, problems),
            Layer("", "", 0, ODD, "Twin", (3, 5), None, None, error, 1e-12, problems),
        ),
        (Evidence("configuration", PATH, "`eps` is 1e-05 in torch and 1e-06 in Flax"),) if first else (),
        first,
        "epsilon: torch adds 1e-05 & Flax <1e-06>" if first else None,
        ("torch: pooler<b>",),
        (AttentionMap(PATH, torch, torch + (0.25 if first else 0.0)),),
    )


def training(first: int | None) -> TrainReport:
    steps = tuple(Step(i, 2.0 / (i + 1), 2.0 / (i + 1), 0.0, 1e-15, 1e-15, PATH) for i in range(3))
    problems = () if first is None else (f"`{PATH}` differs by 1, allowed 1e-09",)
    return TrainReport(ODD, "Twin", "SGD(lr=0.1)", steps, first, problems)


def report(*, fails: bool) -> ParityReport:
    """With everything that a page can hold, and texts that would break out of it."""
    return ParityReport(
        ODD,
        LONG,
        "float32",
        3,
        rows(("float64: inf > 1e-12",) if fails else ()),
        ("a note with <b>markup</b>",),
        {"torch": "cpu"},
        {"torch": "2<3"},
        {"matmul_precision": "highest"},
        trace(PATH if fails else None),
        training(1 if fails else None),
    )


def test_ok_means_all_that_is_present() -> None:
    bare = ParityReport("T", "F", "float32", 0, rows())
    assert bare.ok and report(fails=False).ok
    for failing in (replace(bare, trace=trace(PATH)), replace(bare, training=training(1))):
        assert not failing.ok and not failing.failed
        assert str(failing).startswith("Parity of torch T and Flax F (float32): FAILED\n")
        with pytest.raises(AssertionError, match="they part.*(epsilon|step 1)"):
            failing.assert_ok()


def test_json_includes_trace_and_training() -> None:
    full = replace(report(fails=True), _trace=lambda: trace(None))
    found = json.loads(json.dumps(full.to_json(), allow_nan=False))
    assert found["trace"]["first"] == PATH and found["training"]["ok"] is False
    assert "_trace" not in found and "_trace" not in repr(full)
    assert replace(full, trace=None, training=None).to_json()["trace"] is None


def test_the_page_is_escaped_whole_and_replaces_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("older")
    report(fails=True).save_html(path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and text.rstrip().endswith("</html>")
    assert "<script" not in text and "<b>markup" not in text and "pooler<b>" not in text and "2&lt;3" in text
    assert os.listdir(tmp_path) == ["page.html"]


def test_an_interrupted_write_leaves_the_older_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    path.write_text("older")

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        report(fails=False).save_html(path)
    assert path.read_text() == "older" and os.listdir(tmp_path) == ["page.html"]


def test_bad_destinations(tmp_path: Path) -> None:
    with refuses(FileNotFoundError, "directory `.*nowhere` does not exist: create it first"):
        report(fails=False).save_html(tmp_path / "nowhere" / "page.html")
    with refuses(FileExistsError, "is a directory: give the name of a file"):
        report(fails=False).save_html(tmp_path)


def test_layers_are_traced_when_the_page_is_written(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    compared = ParityReport("T", "F", "float32", 0, rows(), _trace=lambda: trace(PATH))
    compared.save_html(path)
    assert compared.ok and "Parity fails" in path.read_text() and 'id="divergence"' in path.read_text()

    def refuse() -> TraceReport:
        raise ValueError("inside <jit>")

    replace(compared, _trace=refuse).save_html(path)
    text = path.read_text()
    assert "Parity holds" in text and "the layers could not be traced: inside &lt;jit&gt;" in text


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    """Headless, with a log of every request and of the console."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.fail("This test looks at the page in a browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


def show(browser: webdriver.Chrome, path: Path, width: int, scheme: str = "light") -> None:
    metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(path.as_uri())


def requests(browser: webdriver.Chrome) -> list[str]:
    """Addresses asked for since the last call, those that hold their own data left out."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [address for address in sent if not address.startswith("data:")]


def text_of(browser: webdriver.Chrome, selector: str) -> str:
    return browser.find_element("css selector", selector).text


#: Elements that reach past the screen without a container that scrolls.
STICKING_OUT = """
return [...document.querySelectorAll('body *')].filter(
  element => element.getBoundingClientRect().right > innerWidth + 1 && !element.closest('.scroll')
).map(element => element.outerHTML.slice(0, 80))
"""
#: How far the tables of errors scroll sideways.
HIDDEN = """
const boxes = [...document.querySelectorAll('.scroll:has(.measured)')]
return Math.max(...boxes.map(box => box.scrollWidth - box.clientWidth))
"""
STYLE = "return getComputedStyle(document.querySelector(arguments[0])).getPropertyValue(arguments[1])"


@pytest.mark.parametrize("fails", [True, False], ids=["failing", "healthy"])
def test_in_a_browser(browser: webdriver.Chrome, tmp_path: Path, fails: bool) -> None:
    path = tmp_path / "page.html"
    report(fails=fails).save_html(path)
    requests(browser)
    for width in (PHONE, 1200):
        show(browser, path, width)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script(STICKING_OUT) == []
        assert browser.execute_script(HIDDEN) == 0
    assert set(requests(browser)) == {path.as_uri()}
    assert browser.get_log("browser") == []
    assert ("Parity fails" if fails else "Parity holds") in text_of(browser, "#verdict")
    assert text_of(browser, "#verdict .symbol") == ("✗" if fails else "✓")
    assert text_of(browser, "h1 .torch-name") == ODD and text_of(browser, "h1 .flax-name") == LONG
    widths = browser.execute_script(
        "return [...document.images].map(image => [image.naturalWidth, image.naturalHeight])"
    )
    assert widths == [[KEYS, QUERIES]] * (6 if fails else 4)
    assert ("equal" in text_of(browser, ".pictures td:last-child")) != fails
    assert len(browser.find_elements("css selector", "svg polyline")) == 5
    light = browser.execute_script(STYLE, "body", "background-color")
    show(browser, path, 1200, "dark")
    assert browser.execute_script(STYLE, "body", "background-color") != light


def test_the_first_divergence_stands_out(browser: webdriver.Chrome, tmp_path: Path) -> None:
    report(fails=True).save_html(tmp_path / "page.html")
    show(browser, tmp_path / "page.html", PHONE)
    divergence = text_of(browser, "#divergence")
    assert PATH in divergence and "torch adds 1e-05 & Flax <1e-06>" in divergence
    assert text_of(browser, "#first code") == PATH and "first divergence" in text_of(browser, "#first").lower()
    assert text_of(browser, ".layers .ok .measure").startswith("0 = equal")
    highlighted, plain = (browser.execute_script(STYLE, f"{row} td", "background-color") for row in ("#first", ".ok"))
    assert highlighted != plain
    bar, track = (browser.execute_script(STYLE, f"#first {part}", "width") for part in (".fill", ".track"))
    assert 0.5 < float(bar.removesuffix("px")) / float(track.removesuffix("px")) < 1
    browser.find_element("css selector", "#divergence a").click()
    top = browser.execute_script("return document.querySelector('#first').getBoundingClientRect().top")
    assert 0 <= top < 844
