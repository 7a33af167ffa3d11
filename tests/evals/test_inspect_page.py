"""The page that shows a trace."""

import base64
import dataclasses
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

import fake_engine  # noqa: F401 - finds evals

import inspect_page  # noqa: E402
from made_trace import LIBRARY_MASSES, PLUGIN_MASSES, made  # noqa: E402


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_a_page_holds_the_trace_and_no_text_ends_its_script():
    trace = made(steps=2)
    trace = dataclasses.replace(trace, tokens=["</script><script>alert(1)</script>", *trace.tokens[1:]])
    page = inspect_page.page(trace)
    data = data_of(page)
    assert data["tokens"] == trace.tokens and page.count("<script") == 2 and "@DATA@" not in page
    assert not re.search(r"(src|href)=|url\(|@import|https?:", page)
    assert [step["tokens"] for step in data["steps"]] == [35, 36] and data["sequences"] == 1
    layer, shown = trace.steps[1].layers[0], data["steps"][1]["layers"][0]
    arrays = [*(layer.masses[name] for name in PLUGIN_MASSES), layer.attended, layer.completed]
    assert base64.b64decode(shown["arrays"]) == b"".join(array.tobytes() for array in arrays)
    assert data["steps"][0]["bytes"] == {name: 14 for name in ("score", "attend", "complete", "dense")}


def test_a_page_says_how_many_steps_it_has_no_room_for(monkeypatch):
    trace = made(steps=5)
    layer = 3 * 3 * 10 + inspect_page.LAYER_BYTES  # lists, pages, bytes of arrays
    monkeypatch.setattr(inspect_page, "MAX_BYTES", 2 * 2 * layer)  # steps, layers
    data = data_of(inspect_page.page(trace))
    assert len(data["steps"]) == 2
    assert data["facts"].endswith("Shown are the first 2 steps, which is as much as a browser opens")
    monkeypatch.setattr(inspect_page, "MAX_BYTES", 1)
    assert len(data_of(inspect_page.page(trace))["steps"]) == 1


def test_facts_are_means_over_steps():
    trace = made(layers=1, lists=1, tokens=32, steps=1)
    layer = trace.steps[0].layers[0]
    layer.attended[...], layer.completed[...] = [[0xFF, 1]], 0
    layer.masses["true_mass"][...], layer.masses["estimated_mass"][...] = [[0.75, 0.25]], [[0.5, 0.5]]
    layer.masses["covered_mass"][...] = [[0.5, 0.125]]
    layer.bytes.update(score=10, attend=20, complete=5, dense=140)
    facts = inspect_page.facts(trace)
    assert "32 tokens in 2 pages. 9 tokens attended, with 62.5 % of the true mass; 25.0 % of the mass estimated" in facts
    assert "25.0 % of the bytes of dense attention read. budget_tokens 9" in facts


def in_browser(page, probe, folder):
    """What the probe gives, run behind the page's own script."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("no chromium to open the page in")
    script = f"""<script>
    const seen = JSON.stringify({probe});
    document.body.append(Object.assign(document.createElement("pre"), {{ id: "seen", textContent: seen }}));
    </script>"""
    (folder / "x.html").write_text(page.replace("</body>", script + "</body>"), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    command = [browser, *flags, (folder / "x.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout)
    assert found, done.stderr[-2000:]
    return json.loads(found[1].replace("&lt;", "<").replace("&amp;", "&"))


def marked(trace):
    """Only token 20 is attended, in layer 0 by list 1; in layer 1 a summary stands in for page 2 of list 2."""
    for step in trace.steps:
        for layer in step.layers:
            layer.attended[...] = layer.completed[...] = 0
        step.layers[0].attended[1, 1] = 1 << 4
        step.layers[1].completed[2, 2] = 0b111
    return trace


def test_the_page_shows_a_step_in_a_browser(tmp_path):
    trace = marked(made(masses=LIBRARY_MASSES))
    probe = """(() => {
      const seen = [byId("hint").textContent, document.querySelectorAll("#text span").length];
      spans[20].onmouseenter();
      seen.push(byId("hint").textContent, spans.filter((span) => span.className.includes("here")).length);
      choose(0, 1);
      seen.push(spans.filter((span) => span.classList.contains("attended")).map((span) => span.textContent).join());
      choose(1, 2);
      seen.push(spans.filter((span) => span.classList.contains("completed")).length);
      seen.push(byId("heads").width, byId("pages").height);
      seen.push(byId("stepping").hidden, byId("compare").hidden, [...byId("shade").options].map((of) => of.value).join());
      return seen;
    })()"""
    first, spans, hover, here, underlined, dotted, width, height, one, compare, shades = in_browser(
        inspect_page.page(trace), probe, tmp_path
    )
    assert first == "1 of 35 tokens attended by any of the chosen heads" and spans == 36 and here == 16
    assert hover.startswith("token 20, page 1: true mass ") and hover.endswith("token attended by 1 of 6")
    true_mass = np.mean([layer.masses["true_mass"][:, 1].astype(float) for layer in trace.steps[0].layers])
    assert f"true mass {100 * true_mass:.1f} %" in hover and "given to them" in hover and "estimated" not in hover
    assert (underlined, dotted, width, height) == ("word 20", 3, 3 * 14, 2 * 14)
    assert one and compare and shades == "true,given"


def test_the_page_steps_through_an_answer_in_a_browser(tmp_path):
    trace = marked(made(steps=4, text=None, tokens=45))
    trace.steps[2].layers[0].attended[1, 1] = 1 << 5
    trace.steps[2].layers[1].bytes.update(score=1000000, dense=4000000)
    probe = """(() => {
      const words = (name) => spans.filter((span) => span.classList.contains(name)).map((span) => span.textContent).join("");
      const seen = [words("attended"), words("decoded"), words("later"), byId("steps").width, byId("steps").height];
      byId("next").onclick(); byId("next").onclick();
      seen.push(words("attended"), words("decoded"), words("later"), byId("read").textContent, byId("step").value);
      hover(21); seen.push(byId("hint").textContent);
      hover(47); seen.push(byId("hint").textContent);
      byId("steps").onclick({ offsetX: 3 * 14 + 1, offsetY: 1 });
      seen.push(chosen.step, byId("step").max);
      byId("next").onclick(); seen.push(chosen.step, pages);
      byId("step").value = 0; byId("step").oninput({ target: byId("step") }); seen.push(chosen.step, pages);
      const dots = byId("scatter").getContext("2d").getImageData(0, 0, 240, 240).data.filter((byte) => byte).length;
      seen.push(byId("compare").hidden, dots > 0);
      return seen;
    })()"""
    seen = in_browser(inspect_page.page(trace), probe, tmp_path)
    assert seen[:5] == ["20 ", "44 ", "45 46 47 ", 4 * 14, 2 * 5]
    assert seen[5:8] == ["21 ", "46 ", "47 "] and seen[9] == "2"
    assert seen[8].startswith("step 3 of 4: token 46, 1.00 MB read of 4.00 MB (25.0 %): 1.00 MB to choose, ")
    assert "estimated" in seen[10] and "given" not in seen[10] and seen[11] == "token 47 comes later than this step"
    assert seen[12:14] == [3, "3"] and seen[14:16] == [3, 3] and seen[16:18] == [0, 3] and seen[18:] == [False, True]
