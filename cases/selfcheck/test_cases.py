"""Case files: found, loaded, and when they are wrong, one clear error that says which line of which file."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cases import STANDARD_VARIANTS, Case, find_case, find_root, load_case, load_cases
from harness.errors import CaseError, ScenarioError
from harness.lab import Lab, Plan
from harness.scenario import Turn
from harness.targets.protocols import Capability

ROOT = Path(__file__).resolve().parents[2]

GOOD = '''"""Told in our words."""
from harness import Lab, Plan, issue


@issue("tiny#1", title="one request")
def scenarios(lab):
    yield lab.forced("a", k=1, plans={"r0": Plan(turns=((1, 2),))})
'''


@pytest.fixture
def lab(peaked: Path) -> Lab:
    return Lab(peaked, ROOT / "fixtures")


def case_in(folder: Path, text: str, name: str = "one") -> Path:
    """A case file in the place where cases are looked for."""
    path = folder / "cases" / "issues" / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_case_says_what_it_is(tmp_path: Path, lab: Lab) -> None:
    case = load_case(case_in(tmp_path, GOOD))
    assert (case.ref, case.number, case.title) == ("tiny#1", "1", "one request")
    assert case.story == "Told in our words."
    assert case.variants == STANDARD_VARIANTS
    assert case.needs == {Capability.SCRIPT, Capability.STATE, Capability.LOGITS}
    assert [scenario.name for scenario in case.build(lab)] == ["a"]


def test_a_function_may_return_its_scenarios(tmp_path: Path, lab: Lab) -> None:
    path = case_in(tmp_path, GOOD.replace("yield ", "return [") + "]\n")
    assert [scenario.name for scenario in load_case(path).build(lab)] == ["a"]


def test_cases_are_loaded_by_file_name(tmp_path: Path) -> None:
    for name in ("b", "a", "__init__"):
        case_in(tmp_path, GOOD.replace("tiny#1", f"tiny#{name}") if name != "__init__" else "", name)
    assert [case.ref for case in load_cases(tmp_path)] == ["tiny#a", "tiny#b"]


def test_a_folder_without_cases_is_told_so(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CaseError, match="saw no folder") as caught:
            load_cases(folder)
        assert str(folder / "cases" / "issues") in str(caught.value)
        assert "next: pass --cases" in str(caught.value)


def test_the_root_is_found_upwards_else_beside_the_package(tmp_path: Path) -> None:
    case_in(tmp_path, GOOD)
    deep = tmp_path / "cases" / "issues" / "deep"
    deep.mkdir()
    assert find_root(deep) == find_root(tmp_path) == tmp_path.resolve()
    assert find_root(Path("/")) == ROOT


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n", "does not load: SyntaxError"),
        ("import nothing_of_that_name\n", "does not load: ModuleNotFoundError"),
        ("1 / 0\n", "does not load: ZeroDivisionError"),
        ("from harness import issue\nissue('x#1')\n", "does not load: TypeError"),
        ("x = 1\n", "saw 0 functions with @issue(...), expected one"),
        (GOOD + GOOD.replace("def scenarios", "def more"), "saw 2 functions with @issue(...), expected one"),
    ],
)
def test_a_file_that_does_not_load_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = case_in(tmp_path, text)
    with pytest.raises(CaseError) as caught:
        load_case(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "next: " in str(caught.value)


def body(line: str) -> str:
    return GOOD[: GOOD.index("    yield")] + f"    {line}\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1 / 0", ":7: builds no scenarios: ZeroDivisionError"),
        ("yield lab.nothing()", ":7: builds no scenarios: AttributeError"),
        ("yield 'a name'", ": builds 'a name', expected scenarios"),
        ("pass", "builds no scenarios: TypeError"),
        ("return []", ": saw no scenario, expected one scenario or more"),
        (
            "yield from [lab.forced(name, k=1, plans={'r': Plan(turns=())}) for name in ('a b', 'A: b')]",
            ": saw 'a b', 'A: b', expected one scenario or more, each with its own name",
        ),
    ],
)
def test_a_file_that_builds_no_scenarios_is_named_with_its_line(
    tmp_path: Path, lab: Lab, line: str, said: str
) -> None:
    """Names that differ in punctuation alone would share their files in a run directory."""
    path = case_in(tmp_path, body(line))
    with pytest.raises(CaseError) as caught:
        load_case(path).build(lab)
    assert str(caught.value).startswith(f"{path}:")
    assert said in str(caught.value)


def test_a_request_may_go_on_from_what_another_one_wrote(lab: Lab) -> None:
    first = lab.forced("a", k=2, plans={"r0": Plan(prompt=5, turns=((2, 2),)), "r1": Plan(turns=())})
    both = lab.followed_by(first, Plan(prompt=7, arrival=4, turns=((1, 1),)))
    assert first.script is not None
    assert both.script is not None
    answer, draft, token = (
        first.script["r0"][0].token,
        first.script["r0"][1].drafts[0],
        first.script["r0"][1].token,
    )
    prompt = first.requests[0].prompt
    assert both.requests[:2] == first.requests
    assert (both.requests[2].id, both.requests[2].arrival) == ("next", 4)
    assert both.requests[2].prompt == (*prompt, answer, draft)
    longer = lab.followed_by(first, Plan(prompt=99, turns=()))
    assert longer.requests[2].prompt == (*prompt, answer, draft, token)
    assert [len(turn.drafts) for turn in both.script["next"]] == [0, 1]


def test_a_script_can_be_spelled(lab: Lab) -> None:
    x, y = (lab.encode(letter)[0] for letter in "xy")
    assert lab.spell(("", 1, "x"), ("y$", 2, "y")) == (
        Turn(token=x),
        Turn(drafts=(y, lab.end_token), accepted=2, token=y),
    )


def test_an_impossible_scenario_in_a_case_keeps_its_own_words(tmp_path: Path, lab: Lab) -> None:
    path = case_in(tmp_path, body("yield lab.forced('a', k=1, plans={'r0': Plan(turns=((1, 3),))})"))
    with pytest.raises(
        ScenarioError, match="scenario 'a': script of 'r0', turn 1: saw 1 drafts and accepted=3"
    ):
        load_case(path).build(lab)


@pytest.mark.parametrize(
    ("typo", "said"),
    [
        ("must_observe={'rolback': 1}", "saw must_observe 'rolback', expected one of: "),
        (
            "documented={'as-merge': Documented(failure='state')}",
            "saw documented 'as-merge', expected one of: ",
        ),
        (
            "documented={'as-merged': Documented(failure='stat')}",
            "saw failure 'stat', expected one of: crash, ",
        ),
        ("passes=('as-merge',)", "saw passes 'as-merge', expected one of: before-fix, as-merged, fixed"),
    ],
)
def test_a_typo_in_a_scenario_is_told_and_not_taken_for_what_never_happened(
    tmp_path: Path, lab: Lab, typo: str, said: str
) -> None:
    text = body(f"yield lab.forced('a', k=1, plans={{'r': Plan(turns=())}}, {typo})")
    path = case_in(tmp_path, text.replace("import Lab", "import Documented, Lab"))
    with pytest.raises(CaseError) as caught:
        list(load_case(path).scenarios(lab))
    assert f"{path}: 'a': {said}" in str(caught.value)


CASES = load_cases(ROOT)


@pytest.mark.parametrize(
    ("name", "ref"),
    [
        ("24881", "vllm#24881"),
        ("vllm#24881", "vllm#24881"),
        (" 24881 ", "vllm#24881"),
        ("#24881", "vllm#24881"),
        ("issue 24730", "vllm#24730"),
        ("issue_24730", "vllm#24730"),
        ("ISSUE-24730", "vllm#24730"),
        ("PR24957", "vllm#24957"),
        ("pr#24957", "vllm#24957"),
        ("pr_24957", "vllm#24957"),
        ("39273", "vllm#39273"),
        ("sglang#26351", "sglang#26351"),
        ("sglang_26351", "sglang#26351"),
        ("vllm-ascend#9956", "vllm-ascend#9956"),
        ("vllm_ascend_9956", "vllm-ascend#9956"),
        ("56375", "vllm#56375"),
    ],
)
def test_an_issue_is_found_by_what_people_call_it(name: str, ref: str) -> None:
    assert find_case(CASES, name).ref == ref


@pytest.mark.parametrize("name", ["99", "2488", "248811", "", "vllm", "sglang#24881", "issue"])
def test_an_unknown_issue_lists_what_exists(name: str) -> None:
    with pytest.raises(CaseError) as caught:
        find_case(CASES, name)
    assert f"saw {name!r}, no case of that name" in str(caught.value)
    assert all(case.ref in str(caught.value) and case.title in str(caught.value) for case in CASES)
    assert "next: specharness list issues" in str(caught.value)


def test_two_cases_of_one_name_are_not_guessed_between() -> None:
    twice: list[Case] = [CASES[0], CASES[0]]
    with pytest.raises(CaseError, match="several cases of that name"):
        find_case(twice, CASES[0].number)


def test_no_report_has_two_cases_and_files_are_named_by_it() -> None:
    refs = [case.ref for case in CASES]
    assert len(set(refs)) == len(refs) >= 35
    assert all(case.path.stem.endswith(f"_{case.number}") for case in CASES)
    assert [find_case(CASES, case.path.stem) for case in CASES] == CASES


def test_a_case_of_a_fault_cites_what_the_fault_does() -> None:
    """And every group of the catalogue has one."""
    from harness.engine.faults import faults

    known = faults()
    cited = [
        (case.ref, known[name])
        for case in CASES
        for name in case.variants
        if name in known and len(case.variants) == 2
    ]
    assert [
        ref for ref, fault in cited if ref not in fault.refs and ref.replace("#", " PR ") not in fault.refs
    ] == []
    assert {fault.group for _, fault in cited} == {fault.group for fault in known.values()}


def test_a_row_of_the_catalogue_is_a_fault_or_says_why_not() -> None:
    from harness.engine.faults import faults
    from harness.engine.faults.not_injected import NOT_INJECTED

    injected = {fault.row for fault in faults().values()}
    assert not injected & set(NOT_INJECTED)
    last = {"A": 10, "B": 13, "C": 10, "D": 14, "E": 11, "F": 14, "G": 8, "H": 10, "S": 3}
    unused = {"B10", "B11", "C8", "C9", "D9", "E2", "F6", "G7", "H2", "H5"}
    rows = {f"{group}{n}" for group, most in last.items() for n in range(1, most + 1)} - unused
    assert injected | set(NOT_INJECTED) == rows


@pytest.mark.parametrize("case", CASES, ids=[case.ref for case in CASES])
def test_a_shipped_case_tells_its_story_and_documents_variants_that_it_runs(case: Case, lab: Lab) -> None:
    from harness.engine.variants import variant

    assert len(case.story) > 100
    assert "fixed" in case.variants
    assert [variant(name).name for name in case.variants] == list(case.variants)
    documented = {name for scenario in case.build(lab) for name in scenario.documented}
    assert documented
    assert documented <= set(case.variants) - {"fixed"}
