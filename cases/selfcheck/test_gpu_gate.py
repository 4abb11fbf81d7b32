"""The gate for a GPU: jobs beside each other, what they came to, and what it tells people and CI services.

Its jobs need a GPU; that they are run, ended, judged and told of does not.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from xml.etree import ElementTree

import pytest

from harness.cli import _parser, main
from harness.errors import Unsupported
from harness.gpu import sanitizer, told
from harness.gpu.jobs import Done, Ended, Job, Outcome, Place, Runner
from harness.gpu.judges import findings, of_pytest, of_sanitizer, of_verb
from harness.gpu.plan import plan
from harness.gpu_cli import PARTS
from harness.verdict import Verdict

MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at gating_kernel+0x510 in gating.py:48
========= ERROR SUMMARY: {} errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at decode_kernel+0x90 in decode.py:91
========= RACECHECK SUMMARY: {} hazards displayed ({} errors, 1 warnings)
"""
NO_RACE = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"


VERB = partial(of_verb, file="x.py")


def python(name, code, judge=VERB, seconds=20.0):
    return Job(
        name=name,
        part="cases, slots",
        command=(sys.executable, "-c", code),
        judge=judge,
        again=f"specharness repro {name}",
        seconds=seconds,
    )


def run(folder, *jobs, at_once=4, seconds=60.0):
    runner = Runner(folder, at_once, time.monotonic() + seconds)
    return {one.job.name: one for one in runner.run(jobs)}


def ended(folder, out="", code=0):
    return Ended(code=code, out=out, seconds=1.0, folder=folder)


def says(**line):
    return f"print({json.dumps(json.dumps(line))!s}); raise SystemExit({line['exit']})"


# What jobs come to.


def test_jobs_come_to_what_their_last_line_says(tmp_path):
    done = run(
        tmp_path,
        python("right", says(exit=0, verdicts={"fixed": "PASS"})),
        python("wrong", says(exit=1, told="state at step 2")),
        python("open", says(exit=125)),
        python("lacking", says(exit=125, error="the target cannot do it")),
        python("broken", "raise SystemExit(3)"),
        python("lying", "import os; print('{\"exit\": 0}', flush=True); os._exit(9)"),
    )
    verdicts = {name: one.outcome.verdict for name, one in done.items()}
    assert verdicts == {
        "right": Verdict.PASS,
        "wrong": Verdict.FAIL,
        "open": Verdict.INCONCLUSIVE,
        "lacking": Verdict.UNSUPPORTED,
        "broken": Verdict.FAIL,
        "lying": Verdict.FAIL,
    }
    assert done["wrong"].outcome.places == (Place(file="x.py", told="state at step 2"),)
    assert done["wrong"].log.read_text().startswith("{")


def test_a_job_that_hangs_is_ended_with_its_children_and_red(tmp_path):
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    started = time.monotonic()
    done = run(tmp_path, python("hanging", child, seconds=0.7), python("next", says(exit=0)), at_once=1)
    assert time.monotonic() - started < 20
    assert done["hanging"].outcome.verdict is Verdict.FAIL
    assert "did not end within 1 s" in done["hanging"].outcome.told
    assert done["next"].outcome.verdict is Verdict.PASS


def test_jobs_that_no_time_is_left_for_are_inconclusive_and_never_green(tmp_path):
    done = run(tmp_path, python("late", says(exit=0)), seconds=-1)
    assert done["late"].outcome.verdict is Verdict.INCONCLUSIVE
    done = run(tmp_path, python("cut", "import time; time.sleep(60)"), seconds=0.7)
    assert done["cut"].outcome.verdict is Verdict.INCONCLUSIVE
    assert told.verdict_of(list(done.values())).exit_code == 125


def test_an_interruption_ends_the_children(tmp_path):
    marker = tmp_path / "ended"
    code = (
        "import signal, sys, time, pathlib\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(marker)!r}).touch(), sys.exit(0)))\n"
        "print('{}', flush=True)\ntime.sleep(60)"
    )
    jobs = Runner(tmp_path, 2, time.monotonic() + 60).run(
        [python("quick", says(exit=0)), python("slow", code)]
    )
    assert next(jobs).job.name == "quick"
    log = tmp_path / "slow" / "log.txt"
    while not (log.is_file() and log.read_text()):
        time.sleep(0.05)
    jobs.close()  # as an exception in the loop over it does
    assert marker.exists()
    assert threading.active_count() < 10


def test_pytests_report_gives_counts_and_places(tmp_path):
    (tmp_path / "test_x.py").write_text(
        "import pytest\ndef test_right(): pass\n\ndef test_wrong():\n    assert 1 == 2\n"
        "@pytest.mark.skip\ndef test_not_here(): pass\n"
    )
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "junit_family=xunit1"]
    options += [f"--rootdir={tmp_path}", f"--junitxml={tmp_path}/tests/junit.xml"]
    job = replace(
        python("tests", "", of_pytest),
        command=(sys.executable, "-m", "pytest", *options, str(tmp_path / "test_x.py")),
    )
    outcome = run(tmp_path, job)["tests"].outcome
    assert outcome.verdict is Verdict.FAIL
    assert outcome.counts == {"passed": 1, "failed": 1, "skipped": 1}
    assert [(place.file, place.line) for place in outcome.places] == [("test_x.py", 4)]


def test_tests_that_were_all_skipped_prove_nothing(tmp_path):
    report = '<testsuites><testsuite><testcase name="a"><skipped/></testcase></testsuite></testsuites>'
    (tmp_path / "junit.xml").write_text(report)
    assert of_pytest(ended(tmp_path)).verdict is Verdict.INCONCLUSIVE
    (tmp_path / "junit.xml").unlink()
    assert of_pytest(ended(tmp_path, code=4)).verdict is Verdict.FAIL


RAN = '{"part": "float32", "launches": 90, "kernels": {}}\n'


@pytest.mark.parametrize(
    ("tool", "log", "out", "planted", "verdict"),
    [
        ("memcheck", MEMCHECK.format(0), RAN, False, Verdict.PASS),
        ("memcheck", MEMCHECK.format(3), RAN, False, Verdict.FAIL),
        ("memcheck", MEMCHECK.format(0), "", False, Verdict.FAIL),  # it did not come to its end
        ("memcheck", MEMCHECK.format(3), "", True, Verdict.PASS),
        ("memcheck", MEMCHECK.format(0), RAN, True, Verdict.INCONCLUSIVE),
        ("memcheck", "========= Error: Device not supported\n", RAN, False, Verdict.INCONCLUSIVE),
        ("racecheck", NO_RACE, RAN, False, Verdict.PASS),
        ("racecheck", RACECHECK.format(2, 20), RAN, False, Verdict.FAIL),
        ("racecheck", RACECHECK.format(0, 0), RAN, False, Verdict.FAIL),  # a warning is a finding
        ("racecheck", RACECHECK.format(2, 2), RAN, True, Verdict.PASS),
        ("racecheck", NO_RACE, RAN, True, Verdict.INCONCLUSIVE),
    ],
)
def test_a_sanitizer_is_believed_only_where_it_finds_what_was_planted(
    tmp_path, tool, log, out, planted, verdict
):
    (tmp_path / "sanitizer.txt").write_text(log)
    outcome = of_sanitizer(ended(tmp_path, out), tool, planted)
    assert outcome.verdict is verdict, outcome.told
    assert findings(tool, tmp_path / "nothing.txt") == (None, "")


# What is run.


def test_the_sanitizer_is_found_on_the_path_or_in_cuda_home(tmp_path, monkeypatch):
    monkeypatch.setattr(sanitizer, "of_wheel", lambda: None)
    with pytest.raises(Unsupported, match="no compute-sanitizer on PATH"):
        sanitizer.find({"PATH": str(tmp_path)})
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert sanitizer.find({"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path)}) == program
    assert sanitizer.find({"PATH": str(program.parent)}) == program


def test_the_plan_names_every_case_under_both_layouts_and_every_file_with_gpu_tests(tmp_path):
    from harness.cases import find_root, load_cases

    root = find_root()
    jobs = plan(["recompile", "kernels", "cases", "matrix"], root, tmp_path, 0, 500)
    names = [job.name for job in jobs]
    assert len(set(names)) == len(names)
    assert {
        f"{case.path.stem}-{layout}" for case in load_cases(root) for layout in ("slots", "replay")
    } < set(names)
    assert {
        "kernels-kernel_triton",
        "kernels-kernel_replay",
        "kernels-kernel_decode",
        "kernels-kernel_warmup",
    } < set(names)
    for job in jobs:
        if job.command[2] == "harness.cli":
            _parser().parse_args(job.command[3:])
    assert {job.part.split(",")[0] for job in jobs} | {"sanitize"} == set(PARTS)


# What is told.


def done(name, verdict, part="kernels", words="3 passed", places=()):
    outcome = Outcome(verdict=verdict, told=words, places=places)
    return Done(job=replace(python(name, ""), part=part), outcome=outcome, seconds=2.0, log=None)


MIXED = [
    done("a", Verdict.PASS),
    done("b", Verdict.FAIL, words="100% wrong: a|b <c>\nmore \x07", places=(Place(file="a,b.py", line=7),)),
    done("c", Verdict.INCONCLUSIVE, part="recompile"),
]


def test_the_first_screen_names_the_red_job_and_the_next_command():
    lines = [str(line) for line in told.screen(MIXED, 12.0)][1:]
    assert lines[0].startswith("FAIL  b: 100% wrong")
    assert "next: specharness repro b" in lines[1]
    assert lines[-1] == "FAIL  3 jobs in 12 s: 1 FAIL, 1 INCONCLUSIVE, 1 PASS"


def test_what_cannot_be_done_here_is_told_of_and_decides_nothing_while_the_rest_is_sound():
    lacking = done("d", Verdict.UNSUPPORTED, words="cannot act in layout replay")
    assert told.verdict_of([MIXED[0], lacking]) is Verdict.PASS
    assert told.verdict_of([*MIXED, lacking]) is Verdict.FAIL
    assert told.verdict_of([lacking]) is Verdict.UNSUPPORTED
    assert "UNSUPPORTED  d: cannot act" in "".join(map(str, told.screen([MIXED[0], lacking], 1.0)))


def test_junit_counts_and_survives_what_xml_cannot_hold():
    root = ElementTree.fromstring(told.junit(MIXED))
    assert [(s.get("name"), s.get("tests"), s.get("failures"), s.get("skipped")) for s in root] == [
        ("kernels", "2", "1", "0"),
        ("recompile", "1", "0", "1"),
    ]


def test_markdown_escapes_what_jobs_say():
    page = told.markdown(MIXED, 12.0, "NVIDIA H200")
    assert page.startswith("## ❌ GPU gate: FAIL")
    assert "100% wrong: a\\|b &lt;c> more ?" in page
    assert told.markdown(MIXED[:1], 1.0, "").startswith("## ✅ GPU gate: PASS")


def test_annotations_stand_on_the_file_and_are_escaped():
    first, second = told.workflow_commands(MIXED)
    assert first.startswith("::error file=a%2Cb.py,line=7,title=b::100%25 wrong: a|b <c>%0Amore")
    assert first.endswith("%0Anext: specharness repro b")
    assert second.startswith("::warning file=Makefile,line=1,title=c::")


@pytest.mark.parametrize("verb", ["gpu-gate", "sanitize"])
def test_without_a_gpu_the_gate_is_unsupported_and_says_what_to_do(verb, capsys):
    from harness.doctor import find_gpus

    if find_gpus()[0]:
        pytest.skip("a GPU is here")
    assert main([verb]) == 125
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["exit"] == 125
    assert "there is none here" in said["error"]
    assert "next: make test" in said["error"]
