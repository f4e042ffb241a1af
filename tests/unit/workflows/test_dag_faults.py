"""Faults of DAG files: all of them at once, each with its file and line, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage_client.workflows import read_dag
from support.dag_texts import dag_faults, write_dag


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("# nothing\n", ["flow.dag:1: there is no node"]),
        ("JOBS A a.sub\n", ["flow.dag:1: JOBS is no statement of DAGMan; did you mean JOB?"]),
        ("JOB A\n", ["flow.dag:1: JOB A: there is no submit file"]),
        ("JOB\n", ["flow.dag:1: JOB without a name"]),
        ("JOB A+B a.sub\n", ["flow.dag:1: A+B cannot be the name of a node"]),
        ("JOB parent a.sub\n", ["flow.dag:1: parent cannot be the name of a node"]),
        ("JOB A a.sub NOW\n", ["flow.dag:1: NOW is unexpected; known are DIR, NOOP and DONE"]),
        ("JOB A a.sub DIR\n", ["flow.dag:1: JOB: the folder behind DIR is missing"]),
        ("JOB A a.sub\nJOB A a.sub\n", ["flow.dag:2: the name A is taken: flow.dag:1 has a node A"]),
        ("JOB A {\nexecutable = a\n", ["flow.dag:1: the inline description has no end; } ends it"]),
        ("JOB A @=\nexecutable = a\n", ["flow.dag:1: the inline description needs a mark behind @="]),
        ("JOB A { executable = a\n}\n", ["flow.dag:1: write the lines of the description below, not executable = a"]),
        (
            "JOB A {\nexecutable = a\nqueue x\n}\n",
            ["flow.dag:3: queue x: x is not a number of jobs (node A, flow.dag:1)"],
        ),
        ("JOB A {\n# no program\nexecutable =\n}\n", ["flow.dag:3: executable: is empty (node A, flow.dag:1)"]),
        (f"JOB A {'a' * 300}\n", [f"flow.dag:1: {'a' * 300}: file name too long"]),
        ("JOB A none.sub\n", ["flow.dag:1: none.sub: no such file or directory"]),
        ("JOB A inner.dag\n", ["flow.dag:1: inner.dag: a node needs a submit file, and this one is dag"]),
        ("JOB A two.sub\n", ["two.sub: the jobs of a node are one cluster with one executable (node A, flow.dag:1)"]),
        ("SPLICE S none.dag\n", ["flow.dag:1: none.dag: no such file or directory"]),
        ("SPLICE S inner.dag DONE\n", ["flow.dag:1: a splice takes neither NOOP nor DONE"]),
        ("SUBDAG S inner.dag\n", ["flow.dag:1: SUBDAG needs the word EXTERNAL"]),
        ("SPLICE S flow.dag\n", ["flow.dag:1: the file contains itself: flow.dag → flow.dag"]),
        ("INCLUDE loop.dag\n", ["loop.dag:2: the file contains itself: loop.dag → loop.dag"]),
        (
            "SPLICE S final.dag\n",
            ["final.dag:2: a splice has no FINAL node; write it into the DAG that has the splice"],
        ),
        (
            "# partial\nDONE A\nRETRY B 1\n",
            ["flow.dag:2: this is a rescue file; submit the DAG itself with --rescue flow.dag"],
        ),
        ("REJECT\n", ["flow.dag:1: REJECT: this is what DAGMan could read of a faulty file; submit the file itself"]),
    ],
)
def test_faulty_definition_is_named(text: str, faults: list[str]) -> None:
    files = {
        "inner.dag": "JOB A a.sub\n",
        "final.dag": "JOB A a.sub\nFINAL F a.sub\n",
        "loop.dag": "JOB A a.sub\nINCLUDE loop.dag\n",
        "two.sub": "executable = a\nqueue\nexecutable = b\nqueue\n",
    }
    assert dag_faults(text, files) == faults


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("PARENT A CHILD", "write PARENT NAME… CHILD NAME…"),
        ("PARENT A B", "write PARENT NAME… CHILD NAME…"),
        ("PARENT A CHILD C", "there is no node C"),
        ("PARENT F CHILD A", "F is the FINAL node, which has neither parents nor children"),
        ("RETRY A", "RETRY: the number of retries is missing"),
        ("RETRY A -1", "RETRY: -1 is not a whole number of at least 0"),
        ("RETRY A 1 UNLESS 2", "RETRY: UNLESS is unexpected; known is UNLESS-EXIT"),
        ("RETRY F 1", "RETRY does not apply to the FINAL node F"),
        ("RETRY S 1", "RETRY does not apply to a splice; write it into S's file"),
        ("RETRY C 1", "there is no node C"),
        ("VARS A", 'expected NAME="VALUE", found nothing'),
        ('VARS A x="1', 'expected NAME="VALUE", found x="1'),
        ('VARS A x="1" y', 'expected NAME="VALUE", found y'),
        ('VARS A queue="1"', "queue cannot be the name of a variable"),
        ('VARS A x="$(RETRY)"', "x: $(RETRY) is not replaced; a job keeps its text when it runs again"),
        ("PRIORITY A high", "PRIORITY: high is not a whole number"),
        ("CATEGORY A", "CATEGORY: the category is missing"),
        ("MAXJOBS c 0", "MAXJOBS: 0 is not a whole number of at least 1"),
        ("MAXJOBS c 1 2", "MAXJOBS: 2 is unexpected"),
        ("DONE C", "there is no node C"),
        ("FINAL G a.sub", "a DAG has one FINAL node; flow.dag:3 has another one"),
        ("SCRIPT A pre.sh", "SCRIPT needs PRE, POST or HOLD"),
        ('JOB "C a.sub', "a quote is not closed"),
    ],
)
def test_faulty_statement_is_named(statement: str, why: str) -> None:
    files = {"inner.dag": "JOB A a.sub\n"}
    text = f"JOB A a.sub\nSPLICE S inner.dag\nFINAL F a.sub\n{statement}\n"
    assert dag_faults(text, files) == [f"flow.dag:4: {why}"]


def test_all_faults_of_all_files_are_named_at_once() -> None:
    files = {"inner.dag": "JOB A a.sub\nRETRY B 1\n", "b.sub": "request_cpus = x\nqueue\n"}
    text = "JOB A b.sub\nSPLICE S inner.dag\nPARENT A CHILD C D\nSCRIPT PRE A pre.sh\n"
    assert [each.partition(": ")[0] for each in dag_faults(text, files)] == [
        "inner.dag:2",
        "flow.dag:3",
        "flow.dag:3",
        "flow.dag:4",
    ]
    assert dag_faults("JOB A b.sub\nJOB B b.sub\nJOB C none.sub\n", files) == [
        "b.sub:2: there is no executable (node A, flow.dag:1)",
        "flow.dag:3: none.sub: no such file or directory",
    ]


def test_circle_names_its_nodes_in_order() -> None:
    nodes = "".join(f"JOB {name} a.sub\n" for name in "XABCY")
    text = f"{nodes}PARENT X CHILD A\nPARENT A CHILD B\nPARENT B CHILD C\nPARENT C CHILD A Y\n"
    assert dag_faults(text) == ["flow.dag:2: nodes wait for each other in a circle: A → B → C → A"]
    assert dag_faults("JOB A a.sub\nPARENT A CHILD A\n") == ["flow.dag:1: nodes wait for each other in a circle: A → A"]


def test_file_beside_the_dag_is_not_in_the_working_directory() -> None:
    write_dag(Path("sub"), "JOB A a.sub\n")
    with pytest.raises(InvalidInputError) as caught:
        read_dag(Path("sub/flow.dag"))
    why = "paths in a DAG are relative to the working directory: run the command in sub"
    assert str(caught.value) == f"sub/flow.dag:1: a.sub: no such file or directory; {why}"


def test_unsupported_command_of_submit_file_needs_the_option() -> None:
    files = {"a.sub": "executable = a\nnice_user = true\nqueue\n"}
    first, hint = dag_faults("JOB A a.sub\nJOB B a.sub\n", files)
    assert first.startswith("a.sub:2: nice_user = true: ")
    assert "(node A, flow.dag:1)" in first
    assert "--ignore-unsupported" in hint


@pytest.mark.parametrize(
    ("retry", "command", "why"),
    [
        ("1", "retry_until = 3", "RETRY cannot be combined with retry_until of the submit file"),
        ("1 UNLESS-EXIT 5", "success_exit_code = 1", "UNLESS-EXIT cannot be combined with success_exit_code or max_"),
        ("1 UNLESS-EXIT 5", "max_retries = 1", "UNLESS-EXIT cannot be combined with max_retries of the submit file"),
    ],
)
def test_retries_that_cannot_be_combined_are_named(retry: str, command: str, why: str) -> None:
    files = {"a.sub": f"executable = a\n{command}\nqueue\n"}
    (fault,) = dag_faults(f"JOB A a.sub\nRETRY A {retry}\n", files)
    assert fault.startswith(f"flow.dag:1: node A: {why}")
    assert fault.endswith("keep only one of the two")


def test_missing_input_file_is_named_with_its_node() -> None:
    write_dag(Path(), "JOB A a.sub\n", {"a.sub": "executable = /bin/true\ntransfer_input_files = none\nqueue\n"})
    with pytest.raises(InvalidInputError) as caught:
        read_dag(Path("flow.dag"))
    assert str(caught.value) == "a.sub: input_files: none: no such file or directory (node A, flow.dag:1)"


def test_files_that_multiply_do_not_fill_the_memory() -> None:
    files = {f"{depth}.dag": f"SPLICE A {depth + 1}.dag\nSPLICE B {depth + 1}.dag\n" for depth in range(30)}
    (fault,) = dag_faults("SPLICE A 0.dag\n", {**files, "30.dag": "JOB A a.sub\n"})
    assert "the DAG has more than 50000 nodes and parts" in fault


def test_rescue_of_another_dag_is_refused() -> None:
    files = {"rescue": "DONE B\nJOB C a.sub\n"}
    assert dag_faults("JOB A a.sub\n", files, done=[Path("rescue")]) == [
        "rescue:2: JOB in a rescue file; known are DONE and RETRY, as in partial ones",
        "rescue:1: there is no node B",
    ]
    assert dag_faults("JOB A a.sub\n", done=[frozenset("B")]) == ["--rescue: there is no node B"]
