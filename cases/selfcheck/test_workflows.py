"""The workflows for GitHub: they parse, and name only verbs, files and settings that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TOP = {"name", "on", "permissions", "concurrency", "jobs"}
JOB = {"if", "runs-on", "timeout-minutes", "steps"}
STEP = {"name", "uses", "with", "run", "if", "env"}


def flow(path):
    """A workflow; YAML 1.1 takes the key ``on`` for true."""
    read = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in read.items()}


def jobs(path):
    return list(flow(path)["jobs"].values())


@pytest.mark.parametrize("path", FLOWS, ids=lambda path: path.name)
def test_a_workflow_has_known_keys_a_time_limit_and_may_only_read(path):
    found = flow(path)
    assert set(found) <= TOP
    assert found["permissions"] == {"contents": "read"}
    for job in jobs(path):
        assert set(job) <= JOB
        assert 0 < job["timeout-minutes"] <= 120
        for step in job["steps"]:
            assert set(step) <= STEP
            assert ("run" in step) != ("uses" in step)
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", "actions/checkout@v4"))
    assert "secrets." not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FLOWS, ids=lambda path: path.name)
def test_every_verb_and_variable_that_a_workflow_names_is_one_of_the_makefile(path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = [step["run"] for job in jobs(path) for step in job["steps"] if "run" in step]
    assert lines
    for line in lines:
        words = re.fullmatch(r"make ([a-z-]+)((?: [A-Z_]+=\S+| ARGS=\".*\")*)", line)
        assert words, f"{line!r} is no call of the Makefile"
        assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), f"no verb {words[1]}"
        for variable in re.findall(r"([A-Z_]+)=", words[2]):
            assert re.search(rf"\$\({variable}\)|\b{variable}\b", makefile), f"no variable {variable}"
        asked = subprocess.run(
            ["sh", "-c", f"{line} -n VENV=none"], cwd=ROOT, capture_output=True, text=True, timeout=20
        )
        assert asked.returncode == 0, asked.stderr


def test_what_needs_a_gpu_runs_on_a_runner_that_has_one_and_keeps_its_reports():
    for name in ("gpu-gate.yml", "nightly.yml"):
        (job,) = jobs(ROOT / ".github" / "workflows" / name)
        assert job["runs-on"] == ["self-hosted", "gpu"]
        kept = job["steps"][-1]
        assert kept["uses"].startswith("actions/upload-artifact@")
        assert kept["if"] == "always()"
        assert "reports/" in kept["with"]["path"]
    assert (
        "head.repo.full_name == github.repository" in jobs(ROOT / ".github/workflows/gpu-gate.yml")[0]["if"]
    )
    assert set(flow(ROOT / ".github/workflows/nightly.yml")["on"]) == {"schedule", "workflow_dispatch"}
