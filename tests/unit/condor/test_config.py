"""HTCondor's own parser behind a wall: what it reads, and what is said where it ends the process or never ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.condor.config import ConfigurationContext, InvalidConfigurationError, KnobRequest, read_configuration
from pilotage.condor.text import definitions, find_cycle, reference_graph, undefined_macros

ASKED = KnobRequest(("START", "CLAIM_WORKLIFE", "NUM_CPUS"), ("STARTD_ATTRS",), r"slot\d+_")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tmp_path / "policy.conf"


def _values(path: Path, text: str, around: ConfigurationContext | None = None) -> dict[str, str]:
    path.write_text(text)
    return dict(read_configuration(path, ASKED, around).values)


def _refusal(path: Path, text: str | bytes, around: ConfigurationContext | None = None) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidConfigurationError) as refused:
        read_configuration(path, ASKED, around)
    return str(refused.value)


def test_what_is_asked_for_comes_expanded(policy: Path) -> None:
    text = "A = 1\nSTART = $(START) || $(B)\nB = $(A) + 2\nSLOT3_START = False\nSTARTD_ATTRS = Foo, Bar\nFOO = $(A)\n"
    values = _values(policy, text, ConfigurationContext(prologue="START = x\n"))
    assert values["start"] == "x || 1 + 2"
    assert values["slot3_start"] == "False"
    assert values["foo"] == "1"
    assert "bar" not in values


def test_an_integer_knob_keeps_its_expression(policy: Path) -> None:
    values = _values(policy, "CLAIM_WORKLIFE = ifThenElse(DynamicSlot =?= True, 3, 4)\nNUM_CPUS = MY.x + 2\n")
    assert values["claim_worklife"] == "ifThenElse(DynamicSlot =?= True, 3, 4)"
    assert values["num_cpus"] == "MY.x + 2"


def test_a_knob_that_is_defined_as_nothing_has_no_value(policy: Path) -> None:
    policy.write_text("START =\n")
    assert read_configuration(policy, ASKED).get("START") is None


def test_a_text_is_read_as_its_daemon_reads_it(policy: Path) -> None:
    text = "START = 1\nSTARTD.START = 2\nSCHEDD.START = 3\n"
    assert _values(policy, text)["start"] == "2"
    assert _values(policy, text, ConfigurationContext(subsystem="SCHEDD"))["start"] == "3"


def test_the_environment_does_not_change_a_text(policy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("THIS IS NO CONFIGURATION\n")
    monkeypatch.setenv("_CONDOR_START", "leaked")
    monkeypatch.setenv("_condor_START", "leaked")
    monkeypatch.setenv("CONDOR_CONFIG", str(tmp_path / "broken"))
    assert _values(policy, "START = mine\n")["start"] == "mine"


def test_files_are_included_from_the_folder_of_the_text(policy: Path) -> None:
    (policy.parent / "more.conf").write_text("START = more\n")
    (policy.parent / "json.py").write_text("raise SystemExit('not ours')\n")
    assert _values(policy, "include : more.conf\n")["start"] == "more"


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / "$(x) policy |"
    assert _values(path, "START = 7")["start"] == "7"
    assert f"{path}, line 1: " in _refusal(path, "WRONG LINE")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("A = 1\nFOO BAR\n", 2, "FOO BAR"),
        ("A = 1\nFOO BAR", 2, "FOO BAR"),
        ("A = 1 \\\n\n  && 2\n", 3, "&& 2"),
        ("use POLICY : NOT_THERE\n", 1, "does not recognise NOT_THERE"),
        ("\nif nonsense\nA = 1\nendif\n", 2, "not a valid if condition"),
        ("A @=end\n x\n", 2, "@end"),
        ("error : this needs more\n", 1, "this needs more"),
        ("$(B = 1\n", 1, "Illegal Identifier"),
        ("A = 1\ninclude : gone.conf\n", 2, "needs the file gone.conf: No such file or directory"),
    ],
)
def test_a_fault_says_file_line_and_the_parsers_words(policy: Path, text: str, line: int, words: str) -> None:
    refusal = _refusal(policy, text)
    assert refusal.startswith(f"{policy}, line {line}: ")
    assert words in refusal


def test_a_fault_in_an_included_file_names_that_file(policy: Path) -> None:
    (policy.parent / "more.conf").write_text("A = 1\nB B\n")
    said = f"{policy.parent / 'more.conf'}, line 2: HTCondor's parser does not understand this: B B"
    assert _refusal(policy, "include : more.conf\n") == said


def test_a_local_configuration_that_is_missing_is_named(policy: Path) -> None:
    assert "needs the file /nowhere/local.conf" in _refusal(policy, "LOCAL_CONFIG_FILE = /nowhere/local.conf\n")


@pytest.mark.parametrize(
    "text",
    [
        "include command : touch {ran}\n",
        "include : touch {ran} |\n",
        "HIDDEN = touch {ran} |\ninclude : $(HIDDEN)\n",
        "LOCAL_CONFIG_FILE = /usr/bin/touch {ran}|\n",
        "include command into {ran}.cache : touch {ran}\n",
    ],
)
def test_no_text_runs_a_command_unless_it_may(policy: Path, text: str) -> None:
    ran = policy.parent / "ran"
    refusal = _refusal(policy, text.format(ran=ran))
    assert "wants to run a command: " in refusal
    assert f"touch {ran}" in refusal
    assert not ran.exists()


def test_a_text_that_may_run_commands_does(policy: Path) -> None:
    values = _values(policy, "include command : echo START = said\n", ConfigurationContext(allow_commands=True))
    assert values["start"] == "said"


def test_macros_in_a_circle_are_named(policy: Path) -> None:
    text = "FINE = $(FINE) 1\n# START = $(NOTHING)\nSTART = $(A) || 1\nA = $(B)\nB = $(C:1) $(Start)\n"
    refusal = _refusal(policy, text, ConfigurationContext(timeout_s=1.0))
    assert refusal == f"{policy}, line 3: macros refer to one another in a circle: START → A → B → START"


def test_macros_in_a_circle_that_is_not_in_force_do_no_harm(policy: Path) -> None:
    assert _values(policy, "START = 1\nA = $(B)\nif false\nB = $(A)\nendif\n")["start"] == "1"


def test_a_command_that_does_not_end_is_ended(policy: Path) -> None:
    around = ConfigurationContext(allow_commands=True, timeout_s=1.0)
    assert "did not end within 1 s" in _refusal(policy, "include command : sleep 600\n", around)


@pytest.mark.parametrize(("content", "why"), [(b"A=1\nB=\xff\n", "UTF-8"), (b"A=1\nB=\0\n", "NUL")])
def test_what_is_no_text_is_refused_with_its_line(policy: Path, content: bytes, why: str) -> None:
    refusal = _refusal(policy, content)
    assert refusal.startswith(f"{policy}, line 2: ")
    assert why in refusal


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigurationError, match="nothing: cannot be read: No such file"):
        read_configuration(tmp_path / "nothing", ASKED)


def test_definitions_are_found_with_their_lines() -> None:
    text = "# A = 1\nA = x \\\n  y\nB @=end\n 1\n@end\nif true\n Old : z\ninclude : f\nuse ROLE : Execute\n"
    assert [(each.name, each.value, each.line) for each in definitions(text)] == [
        ("A", "x  y", 2),
        ("B", " 1", 4),
        ("Old", "z", 8),
    ]


def test_a_macro_that_adds_to_itself_is_no_circle() -> None:
    graph = reference_graph(definitions("A = $(B)\nA = $(A) $(C)\nB = 1\n"))
    assert find_cycle(graph) == ()
    assert set(graph["a"]) == {"b", "c"}


def test_what_nothing_defines_is_found_over_any_number_of_steps() -> None:
    graph = reference_graph(definitions("START = $(A) && $(D:1)\nA = $(B) $(KNOWN)\nB = $(Missing)\nX = $(Other)\n"))
    assert undefined_macros("START", graph, frozenset({"known"})) == ("missing",)


def test_a_program_keeps_its_macros_and_those_of_the_configuration_come_with_it(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "more").write_text("PROGRAM_Two @=end\n  SET B $F(MY.b)\n@end\n")
    policy.write_text(
        "Pool = long\nPROGRAM_One @=end\n  # a comment\n  SET A $(Pool) $(MY.a:1) \\\n    $INT(Cores)\n@end\n"
        "Other = 1\nCores = 4\ninclude : more\n"
    )
    found = read_configuration(policy, KnobRequest(programs=r"program_\w+"))
    assert found.programs == {
        "PROGRAM_One": "SET A $(Pool) $(MY.a:1) $INT(Cores)",
        "PROGRAM_Two": "SET B $F(MY.b)",
    }
    assert found.values == {"pool": "long", "cores": "4"}
