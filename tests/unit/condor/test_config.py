"""HTCondor's configuration parser in a separate process: values, and faults where it would exit or hang."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.condor.config import ConfigurationContext, InvalidConfigurationError, KnobRequest, read_configuration
from pilotage.condor.text import definitions, find_cycle, reference_graph, undefined_macros

REQUEST = KnobRequest(("START", "CLAIM_WORKLIFE", "NUM_CPUS"), ("STARTD_ATTRS",), r"slot\d+_")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tmp_path / "policy.conf"


def _values(path: Path, text: str, context: ConfigurationContext | None = None) -> dict[str, str]:
    path.write_text(text)
    return dict(read_configuration(path, REQUEST, context).values)


def _refusal(path: Path, text: str | bytes, context: ConfigurationContext | None = None) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidConfigurationError) as refused:
        read_configuration(path, REQUEST, context)
    return str(refused.value)


def test_requested_knobs_are_expanded(policy: Path) -> None:
    text = "A = 1\nSTART = $(START) || $(B)\nB = $(A) + 2\nSLOT3_START = False\nSTARTD_ATTRS = Foo, Bar\nFOO = $(A)\n"
    values = _values(policy, text, ConfigurationContext(prologue="START = x\n"))
    assert values["start"] == "x || 1 + 2"
    assert values["slot3_start"] == "False"
    assert values["foo"] == "1"
    assert "bar" not in values


def test_integer_knob_keeps_its_expression(policy: Path) -> None:
    values = _values(policy, "CLAIM_WORKLIFE = ifThenElse(DynamicSlot =?= True, 3, 4)\nNUM_CPUS = MY.x + 2\n")
    assert values["claim_worklife"] == "ifThenElse(DynamicSlot =?= True, 3, 4)"
    assert values["num_cpus"] == "MY.x + 2"


def test_empty_knob_has_no_value(policy: Path) -> None:
    policy.write_text("START =\n")
    assert read_configuration(policy, REQUEST).get("START") is None


def test_subsystem_selects_its_knobs(policy: Path) -> None:
    text = "START = 1\nSTARTD.START = 2\nSCHEDD.START = 3\n"
    assert _values(policy, text)["start"] == "2"
    assert _values(policy, text, ConfigurationContext(subsystem="SCHEDD"))["start"] == "3"


def test_environment_has_no_effect(policy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("THIS IS NO CONFIGURATION\n")
    monkeypatch.setenv("_CONDOR_START", "leaked")
    monkeypatch.setenv("_condor_START", "leaked")
    monkeypatch.setenv("CONDOR_CONFIG", str(tmp_path / "broken"))
    assert _values(policy, "START = mine\n")["start"] == "mine"


def test_includes_are_relative_to_the_file(policy: Path) -> None:
    (policy.parent / "more.conf").write_text("START = more\n")
    (policy.parent / "json.py").write_text("raise SystemExit('not ours')\n")
    assert _values(policy, "include : more.conf\n")["start"] == "more"


def test_includes_are_relative_to_the_file_that_includes(policy: Path) -> None:
    shipped = policy.parent / "shipped"
    (shipped / "parts").mkdir(parents=True)
    (policy.parent / "common.conf").write_text("START = of the site\n")
    (shipped / "variant.conf").write_text("include : common.conf\nInclude ifexist:parts/more.conf\nCLAIM_WORKLIFE = 1")
    (shipped / "common.conf").write_text("START = shipped\ninclude ifexist : gone.conf\n")
    (shipped / "parts" / "more.conf").write_text("NUM_CPUS = 8\ninclude : ../last.conf\n")
    (shipped / "last.conf").write_text("FOO = last\nSTARTD_ATTRS = Foo\n")
    values = _values(policy, f"include : {shipped}/variant.conf\nSLOT3_START = $(START) too\n")
    assert [values[name] for name in ("start", "claim_worklife", "num_cpus", "foo", "slot3_start")] == [
        "shipped",
        "1",
        "8",
        "last",
        "shipped too",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A = 1\nB B\n", "{folder}/deep.conf, line 2: HTCondor's parser does not understand this: B B"),
        ("\ninclude : gone.conf\n", "{folder}/deep.conf, line 2: needs the file {folder}/gone.conf: No such file"),
    ],
)
def test_fault_in_nested_include_names_the_file(policy: Path, text: str, expected: str) -> None:
    folder = policy.parent / "below"
    folder.mkdir()
    (folder / "more.conf").write_text("include : deep.conf\n")
    (folder / "deep.conf").write_text(text)
    assert _refusal(policy, "include : below/more.conf\n").startswith(expected.format(folder=folder))


def test_file_that_includes_itself_is_refused(policy: Path) -> None:
    assert "include" in _refusal(policy, "include : policy.conf\n").lower()


def test_file_may_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / "$(x) policy |"
    assert _values(path, "START = 7")["start"] == "7"
    assert f"{path}, line 1: " in _refusal(path, "WRONG LINE")


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("A = 1\nFOO BAR\n", 2, "FOO BAR"),
        ("A = 1\nFOO BAR", 2, "FOO BAR"),
        ("A = 1 \\\n\n  && 2\n", 3, "&& 2"),
        ("use POLICY : NOT_THERE\n", 1, "does not recognise NOT_THERE"),
        ("\nif nonsense\nA = 1\nendif\n", 2, "not a valid if condition"),
        ("A @=end\n x\n", 2, "@end"),
        ("error : this needs more\n", 1, "this needs more"),
        ("$(B = 1\n", 1, "Illegal Identifier"),
        ("A = 1\ninclude : gone.conf\n", 2, "/gone.conf: No such file or directory"),
    ],
)
def test_fault_names_file_line_and_cause(policy: Path, text: str, line: int, expected: str) -> None:
    refusal = _refusal(policy, text)
    assert refusal.startswith(f"{policy}, line {line}: ")
    assert expected in refusal


def test_fault_in_included_file_names_that_file(policy: Path) -> None:
    (policy.parent / "more.conf").write_text("A = 1\nB B\n")
    expected = f"{policy.parent / 'more.conf'}, line 2: HTCondor's parser does not understand this: B B"
    assert _refusal(policy, "include : more.conf\n") == expected


def test_names_missing_local_configuration(policy: Path) -> None:
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
def test_commands_are_refused_by_default(policy: Path, text: str) -> None:
    ran = policy.parent / "ran"
    refusal = _refusal(policy, text.format(ran=ran))
    assert "wants to run a command: " in refusal
    assert f"touch {ran}" in refusal
    assert not ran.exists()


def test_allowed_command_runs(policy: Path) -> None:
    values = _values(policy, "include command : echo START = printed\n", ConfigurationContext(allow_commands=True))
    assert values["start"] == "printed"


def test_names_macros_in_a_cycle(policy: Path) -> None:
    text = "FINE = $(FINE) 1\n# START = $(NOTHING)\nSTART = $(A) || 1\nA = $(B)\nB = $(C:1) $(Start)\n"
    refusal = _refusal(policy, text, ConfigurationContext(timeout_s=1.0))
    assert refusal == f"{policy}, line 3: macros refer to one another in a circle: START → A → B → START"


def test_inactive_macro_cycle_is_ignored(policy: Path) -> None:
    assert _values(policy, "START = 1\nA = $(B)\nif false\nB = $(A)\nendif\n")["start"] == "1"


def test_names_command_that_cannot_run(policy: Path) -> None:
    text = "A = 1\ninclude command : /no/such/program\n"
    refusal = _refusal(policy, text, ConfigurationContext(allow_commands=True))
    assert refusal == f"{policy}, line 2: cannot run the command /no/such/program: No such file or directory"


def test_knob_that_macros_empty_is_told_from_inactive_one(policy: Path) -> None:
    policy.write_text("START = $(NO) $(SUCH)\nRANK =\nif false\nKILL = $(NO)\nendif\nPREEMPT = $(NO:x)\n")
    assert read_configuration(policy, REQUEST).emptied == {"start"}


def test_endless_command_times_out(policy: Path) -> None:
    context = ConfigurationContext(allow_commands=True, timeout_s=1.0)
    assert "did not end within 1 s" in _refusal(policy, "include command : sleep 600\n", context)


@pytest.mark.parametrize(("content", "why"), [(b"A=1\nB=\xff\n", "UTF-8"), (b"A=1\nB=\0\n", "NUL")])
def test_names_line_that_is_not_text(policy: Path, content: bytes, why: str) -> None:
    refusal = _refusal(policy, content)
    assert refusal.startswith(f"{policy}, line 2: ")
    assert why in refusal


def test_names_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigurationError, match="nothing: cannot be read: No such file"):
        read_configuration(tmp_path / "nothing", REQUEST)


def test_definitions_have_line_numbers() -> None:
    text = "# A = 1\nA = x \\\n  y\nB @=end\n 1\n@end\nif true\n Old : z\ninclude : f\nuse ROLE : Execute\n"
    assert [(found.name, found.value, found.line) for found in definitions(text)] == [
        ("A", "x  y", 2),
        ("B", " 1", 4),
        ("Old", "z", 8),
    ]


def test_macro_that_extends_itself_is_no_cycle() -> None:
    graph = reference_graph(definitions("A = $(B)\nA = $(A) $(C)\nB = 1\n"))
    assert find_cycle(graph) == ()
    assert set(graph["a"]) == {"b", "c"}


def test_finds_undefined_macros_transitively() -> None:
    graph = reference_graph(definitions("START = $(A) && $(D:1)\nA = $(B) $(KNOWN)\nB = $(Missing)\nX = $(Other)\n"))
    assert undefined_macros("START", graph, frozenset({"known"})) == ("missing",)


def test_program_keeps_its_own_macros_unexpanded(policy: Path, tmp_path: Path) -> None:
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
