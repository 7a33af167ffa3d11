"""tests/run counts each kind of result once."""

import importlib.machinery
import importlib.util
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOADER = importlib.machinery.SourceFileLoader("tests_run", str(ROOT / "tests" / "run"))
tests_run = importlib.util.module_from_spec(importlib.util.spec_from_loader("tests_run", LOADER))
LOADER.exec_module(tests_run)

GTEST = """<testsuites><testsuite name="S">
<testcase name="Passes" classname="S" status="run" result="completed"/>
<testcase name="Fails" classname="S" status="run" result="completed"><failure message="score_test.cc:7&#x0A;got 1&#x0A;want 2"/></testcase>
<testcase name="Skips" classname="S" status="run" result="skipped"><skipped message="score_test.cc:9&#x0A;no AVX-512 here"/></testcase>
<testcase name="DISABLED_Sleeps" classname="S" status="notrun" result="suppressed"/>
<testcase name="LeftOut" classname="S" status="notrun" result="filtered"/>
</testsuite></testsuites>"""

PYTEST = """<testsuites><testsuite>
<testcase classname="tests.test_x" name="test_passes"/>
<testcase classname="tests.test_x" name="test_breaks"><error message="fixture failed">trace</error></testcase>
<testcase classname="tests.test_x" name="test_skips"><skipped type="pytest.skip" message="no model">place</skipped></testcase>
</testsuite></testsuites>"""


def outcomes(cases):
    return [(case.outcome, case.reason) for case in cases]


def test_googletest_cases(tmp_path):
    file = tmp_path / "score_test.xml"
    file.write_text(GTEST)
    assert outcomes(tests_run.read_junit(file, "score_test")) == [
        ("passed", ""),
        ("failed", "got 1 / want 2"),
        ("skipped", "no AVX-512 here"),
        ("skipped", "disabled in the source"),
    ]


def test_pytest_cases(tmp_path):
    file = tmp_path / "pytest.xml"
    file.write_text(PYTEST)
    assert outcomes(tests_run.read_junit(file)) == [("passed", ""), ("failed", "fixture failed"), ("skipped", "no model")]


@pytest.mark.parametrize(
    ("xml", "outcome", "reason"),
    [
        ('<testcase name="a" status="run"><system-out>fine</system-out></testcase>', "passed", ""),
        ('<testcase name="a" status="fail"><failure message=""/><system-out>first\nlast</system-out></testcase>', "failed", "last"),
        ('<testcase name="a" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out>no data</system-out></testcase>', "skipped", "no data"),
        ('<testcase name="a" status="notrun"><skipped message="Unable to find executable"/></testcase>', "failed", ""),
    ],
)
def test_other_ctest_tests(xml, outcome, reason):
    assert outcomes([tests_run.ctest_case(ElementTree.fromstring(xml))]) == [(outcome, reason)]


def test_the_last_line_and_the_exit_code(capsys, monkeypatch, tmp_path):
    totals = tmp_path / "totals"
    monkeypatch.setenv("LOCKS_TEST_TOTALS", str(totals))
    case = tests_run.Case
    skipped = case("c", "skipped", "no model")
    assert tests_run.summarize([case("a", "passed"), skipped], None) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed, 1 skipped"
    assert tests_run.summarize([case("a", "passed"), case("b", "failed", "why"), skipped], "asan") == 1
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == "1 passed, 1 failed, 1 skipped"
    assert "b: why" in output and "1 x no model: c" in output
    assert tests_run.summarize([skipped], None) == 1, "a run in which nothing passed is no success"
    assert totals.read_text() == "1 0 1\n1 1 1\n0 0 1\n"
