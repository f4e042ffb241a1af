"""The statements of DAGMan: what each one does to nodes and dependencies, and which ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.dag_texts import dag, dag_faults, parents

AB = "JOB A a.sub\nJOB B a.sub\n"


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names(text: str, **files: str) -> list[str]:
    return [job.name for job in dag(text, files).descriptions]


def test_diamond_has_its_parents() -> None:
    flow = dag(
        "# a diamond\njob A a.sub\nJOB B a.sub\nJob C a.sub\nJOB D a.sub\nPARENT A CHILD B C\nparent B C child D\n"
    )
    assert (flow.name, flow.nodes, flow.left_out) == ("flow.dag", 4, 0)
    assert [job.name for job in flow.descriptions] == ["A", "B", "C", "D"]
    assert parents(flow) == {"B": {"A"}, "C": {"A"}, "D": {"B", "C"}}


def test_order_of_statements_does_not_matter() -> None:
    flow = dag('PARENT A CHILD B\nVARS B x="1"\nRETRY B 1\n// comment\n' + AB)
    assert parents(flow) == {"B": {"A"}}
    assert [job.retries for job in flow.descriptions] == [None, 1]


def test_many_parents_of_many_children_are_one_range() -> None:
    nodes = "".join(f"JOB {kind}{index} a.sub\n" for kind in "pc" for index in range(50))
    line = " ".join(f"p{index}" for index in range(50)), " ".join(f"c{index}" for index in range(50))
    flow = dag(f"{nodes}PARENT {line[0]} CHILD {line[1]}\n")
    assert {each.ranges for each in flow.dependencies} == {((0, 49),)}
    assert len(flow.dependencies) == 50


def test_node_of_several_jobs_is_one_cluster_and_children_wait_for_all() -> None:
    files = {"b.sub": "executable = /bin/echo\narguments = $(x) $(Process)\nqueue x in (u, v, w)\n"}
    flow = dag("JOB A a.sub\nJOB B b.sub\nJOB C a.sub\nPARENT A CHILD B\nPARENT B CHILD C\n", files)
    assert [job.name for job in flow.descriptions] == ["A", "B", "B", "B", "C"]
    assert [job.continues_cluster for job in flow.descriptions] == [False, False, True, True, False]
    assert [job.arguments for job in flow.descriptions[1:4]] == ["u $(Process)", "v $(Process)", "w $(Process)"]
    assert flow.dependencies[-1].ranges == ((1, 3),)


def test_inline_descriptions_are_read() -> None:
    flow = dag(
        "JOB A {\n executable = /bin/a\n}\nSUBMIT-DESCRIPTION shared @=end\nexecutable = /bin/b\narguments = $(JOB)\n"
        "@end\nJOB B shared\nJOB C {\nexecutable = /bin/c\n} NOOP\nFINAL F shared\n"
    )
    assert [(job.name, job.executable) for job in flow.descriptions] == [
        ("A", "/bin/a"),
        ("B", "/bin/b"),
        ("F", "/bin/b"),
    ]
    assert flow.descriptions[1].arguments == "B"


def test_inline_description_may_have_its_queue_statement() -> None:
    flow = dag("JOB A {\nexecutable = /bin/a\nqueue 2\n}\nJOB B {\nexecutable = /bin/b\nQueue\n}\n")
    assert [(job.name, job.count) for job in flow.descriptions] == [("A", 2), ("B", None)]


def test_variables_replace_macros() -> None:
    files = {
        "a.sub": "executable = /bin/echo\nkept = file\nif defined early\nerror = $(early)\nendif\n"
        "arguments = $(x) $(kept) $(over) $(JOB)\nover = file\nqueue\n"
    }
    text = (
        AB + 'VARS ALL_NODES x="$(JOB)-x" y = "unused"\nVARS A PREPEND kept="dag" early="e"\nVARS A APPEND over="dag"\n'
    )
    a, b = dag(text, files).descriptions
    assert (a.arguments, a.stderr) == ("A-x file dag A", "e")
    assert (b.arguments, b.stderr) == ("B-x file file B", None)
    assert a.attributes == {}
    assert a.warnings == ()


def test_last_variable_counts_and_quotes_are_removed() -> None:
    files = {"a.sub": "executable = /bin/echo\narguments = $(x)\nqueue\n"}
    text = 'JOB A a.sub\nVARS A x="1" x=\'2\'\nVARS ALL_NODES APPEND x="say \\\\\\"hi\\\\\\" it\'s"\n'
    (job,) = dag(text, files).descriptions
    assert job.arguments == """say '"hi"' 'it'"'"'s'"""


def test_variables_set_attributes_and_commands() -> None:
    a, b = dag(AB + 'VARS A +Kind="\\"long\\"" MY.Size="3" request_memory="2GB"\n').descriptions
    assert (a.attributes["Kind"], a.attributes["Size"], a.request_memory_mib) == ("long", 3, 2048)
    assert b.request_memory_mib is None


@pytest.mark.parametrize(
    ("statement", "submit", "retries", "until"),
    [
        ("RETRY A 3", "", 3, None),
        ("RETRY A 3 UNLESS-EXIT 2", "", 3, "2"),
        ("RETRY A 0", "", None, None),
        ("RETRY A 2", "max_retries = 1\n", 5, None),
        ("RETRY A 0 UNLESS-EXIT 7", "", 0, "7"),
    ],
)
def test_retry_is_of_each_job(statement: str, submit: str, retries: int | None, until: str | None) -> None:
    (job,) = dag(f"JOB A a.sub\n{statement}\n", {"a.sub": f"executable = a\n{submit}queue\n"}).descriptions
    assert (job.retries, job.retry_until) == (retries, until)


def test_retries_of_all_nodes_unless_exit_leave_out_sub_dags() -> None:
    text = "JOB X a.sub\nSUBDAG EXTERNAL S inner.dag\nSUBDAG EXTERNAL T inner.dag\nRETRY ALL_NODES 2 UNLESS-EXIT 4\n"
    flow = dag(text, {"inner.dag": "JOB A a.sub\n"})
    assert {job.name: (job.retries, job.retry_until) for job in flow.descriptions} == {
        "X": (2, "4"),
        "S+A": (None, None),
        "T+A": (None, None),
    }
    why = "a sub-DAG has no exit code, so this does not apply to S, T; write UNLESS-EXIT into their files"
    assert flow.warnings == (f"flow.dag:4: {why}",)
    (fault,) = dag_faults(text.replace("ALL_NODES", "S"), {"inner.dag": "JOB A a.sub\n"})
    assert fault == "flow.dag:4: a sub-DAG has no exit code; write UNLESS-EXIT into the file of S"


def test_priority_overrides_submit_file_unless_it_is_zero() -> None:
    files = {"a.sub": "executable = a\npriority = 7\nqueue\n"}
    flow = dag(AB + "PRIORITY ALL_NODES 0\nPRIORITY B -3\n", files)
    assert {job.name: job.priority for job in flow.descriptions} == {"A": 7, "B": -3}
    assert [job.name for job in dag(AB + "PRIORITY B 3\n").descriptions] == ["B", "A"]


def test_category_has_lanes_in_order() -> None:
    nodes = "".join(f"JOB N{index} a.sub\nCATEGORY N{index} c\n" for index in range(5))
    flow = dag(f"{nodes}JOB X a.sub\nCATEGORY X other\nMAXJOBS c 2\nPARENT N4 CHILD N0\n")
    assert [job.name for job in flow.descriptions] == ["N1", "N2", "N3", "N4", "X", "N0"]
    assert parents(flow, "after_settled") == {"N3": {"N1"}, "N4": {"N2"}, "N0": {"N3"}}


INNER = "JOB A a.sub\nJOB B a.sub\nPARENT A CHILD B\n"


@pytest.mark.parametrize("part", ["SPLICE S inner.dag", "SUBDAG EXTERNAL S inner.dag"])
def test_part_is_expanded_between_its_parents_and_children(part: str) -> None:
    flow = dag(f"JOB X a.sub\nJOB Y a.sub\n{part}\nPARENT X CHILD S\nPARENT S CHILD Y\n", {"inner.dag": INNER})
    assert [job.name for job in flow.descriptions] == ["X", "S+A", "S+B", "Y"]
    assert parents(flow) == {"S+A": {"X"}, "S+B": {"S+A"}, "Y": {"S+B"}}


def test_parts_nest_and_know_their_folders() -> None:
    files = {
        "in/middle.dag": "SPLICE L leaf.dag DIR deep\nJOB M m.sub\nINCLUDE edges.dag\n",
        "in/m.sub": "executable = m\nqueue\n",
        "in/edges.dag": "PARENT M CHILD L L+A\n",
        "in/deep/leaf.dag": 'JOB A a.sub\nVARS A x="$(JOB)"\n',
        "in/deep/a.sub": "executable = deep\narguments = $(x)\nqueue\n",
    }
    flow = dag("SPLICE S middle.dag DIR in\nJOB Z a.sub DIR in/deep\nPARENT S+L+A CHILD Z\n", files)
    assert [(job.name, job.executable, job.arguments) for job in flow.descriptions] == [
        ("S+M", "m", ""),
        ("S+L+A", "deep", "S+L+A"),
        ("Z", "deep", ""),
    ]
    assert parents(flow) == {"S+L+A": {"S+M"}, "Z": {"S+L+A"}}


def test_name_of_node_is_that_within_its_sub_dag_as_a_macro() -> None:
    files = {
        "middle.dag": 'SPLICE T leaf.dag\nJOB M a.sub\nVARS M x="$(JOB)"\n',
        "leaf.dag": 'JOB A a.sub\nVARS A x="$(JOB)"\n',
        "a.sub": "executable = a\narguments = $(JOB) $(x)\nqueue\n",
    }
    flow = dag("SUBDAG EXTERNAL S middle.dag\nSPLICE P leaf.dag\n", files)
    assert {job.name: job.arguments for job in flow.descriptions} == {
        "S+M": "M M",
        "S+T+A": "T+A T+A",
        "P+A": "P+A P+A",
    }


def test_subdag_passes_priority_retries_and_category() -> None:
    text = (
        "SUBDAG EXTERNAL S inner.dag\nSUBDAG EXTERNAL T inner.dag\nPRIORITY S 10\nRETRY S 1\n"
        'CATEGORY ALL_NODES subs\nMAXJOBS subs 1\nVARS S x="1"\n'
    )
    flow = dag(text, {"inner.dag": INNER + "PRIORITY B 5\nRETRY B 2\n"})
    assert {job.name: (job.priority, job.retries) for job in flow.descriptions} == {
        "S+A": (10, 1),
        "S+B": (15, 5),
        "T+A": (0, None),
        "T+B": (5, 2),
    }
    assert parents(flow, "after_settled") == {"T+A": {"S+A", "S+B"}}
    assert flow.warnings == ("flow.dag:7: VARS of the sub-DAG S have no effect on its nodes",)


@pytest.mark.parametrize("first", ["DONE", "NOOP"])
def test_subdag_whose_first_nodes_have_no_jobs_keeps_its_place(first: str) -> None:
    text = "SUBDAG EXTERNAL S inner.dag\nSUBDAG EXTERNAL T other.dag\nCATEGORY ALL_NODES c\nMAXJOBS c 1\n"
    other = "JOB A a.sub " + first + "\nJOB B a.sub\nJOB C a.sub\nPARENT A CHILD B\nPARENT B CHILD C\n"
    flow = dag(text, {"inner.dag": INNER, "other.dag": other})
    assert parents(flow, "after_settled") == {"T+B": {"S+A", "S+B"}}


def test_shared_category_limits_all_splices_and_outer_limit_counts() -> None:
    inner = "JOB A a.sub\nJOB B a.sub\nCATEGORY A +all\nCATEGORY B own\nMAXJOBS own 5\nMAXJOBS +all 9\n"
    text = "SPLICE S inner.dag\nSPLICE T inner.dag\nSUBDAG EXTERNAL U inner.dag\nMAXJOBS +all 1\nMAXJOBS S+own 7\n"
    flow = dag(text, {"inner.dag": inner})
    assert parents(flow, "after_settled") == {"T+A": {"S+A"}}


def test_final_node_waits_until_all_others_are_settled() -> None:
    flow = dag(AB + "PARENT A CHILD B\nFINAL F a.sub\nRETRY ALL_NODES 2\n")
    assert [(job.name, job.retries) for job in flow.descriptions] == [("A", 2), ("B", 2), ("F", None)]
    assert flow.dependencies[-1].ranges == ((0, 1),)
    assert parents(flow, "after_settled") == {"F": {"A", "B"}}


def test_final_node_of_subdag_decides_about_it() -> None:
    text = "JOB X a.sub\nJOB Y a.sub\nSUBDAG EXTERNAL S inner.dag\nPARENT X CHILD S\nPARENT S CHILD Y\nFINAL F a.sub\n"
    flow = dag(text, {"inner.dag": f"{INNER}FINAL G a.sub\n"})
    assert parents(flow) == {"S+A": {"X"}, "S+B": {"S+A"}, "S+G": {"X"}, "Y": {"S+G"}}
    assert parents(flow, "after_settled") == {"S+G": {"S+A", "S+B"}, "F": {"X", "S+A", "S+B", "S+G", "Y"}}


def test_node_without_job_hands_on_its_parents() -> None:
    text = "JOB A a.sub\nJOB N none.sub NOOP\nJOB M none.sub NOOP\nJOB B a.sub\nJOB C a.sub\n"
    flow = dag(text + "PARENT A B CHILD N\nPARENT N CHILD M\nPARENT M CHILD C\n")
    assert parents(flow) == {"C": {"A", "B"}}
    assert (flow.nodes, flow.left_out) == (3, 2)


@pytest.mark.parametrize("is_subdag", [False, True])
def test_long_chain_of_nodes_without_jobs_hands_on_its_parents(is_subdag: bool) -> None:
    count = 2000
    nodes = "".join(f"JOB N{index} a.sub{'' if is_subdag else ' NOOP'}\n" for index in range(count))
    chain = nodes + "".join(f"PARENT N{index} CHILD N{index + 1}\n" for index in range(count - 1))
    if is_subdag:
        text, first, last = "SUBDAG EXTERNAL S chain.dag NOOP\n", "S", "S"
    else:
        text, first, last = chain, "N0", f"N{count - 1}"
    flow = dag(f"{AB}{text}PARENT A CHILD {first}\nPARENT {last} CHILD B\n", {"chain.dag": chain})
    assert parents(flow) == {"B": {"A"}}


@pytest.mark.parametrize("done", ["JOB B a.sub DONE\n", "JOB B a.sub\nDONE B\n"])
def test_done_node_is_met(done: str) -> None:
    flow = dag(f"JOB A a.sub\n{done}JOB C a.sub\nPARENT A CHILD B\nPARENT A B CHILD C\n")
    assert parents(flow) == {"C": {"A"}}


def test_rescue_leaves_out_what_is_done() -> None:
    files = {"inner.dag": f"{INNER}FINAL G a.sub\n", "rescue": "# comment\nDONE X\nDONE S+A\nRETRY Y 1\n"}
    text = "JOB X a.sub\nJOB Y a.sub\nSUBDAG EXTERNAL S inner.dag\nPARENT X CHILD Y S\nFINAL F a.sub\n"
    flow = dag(text, files, done=[Path("rescue")])
    assert [(job.name, job.retries) for job in flow.descriptions] == [
        ("Y", 1),
        ("S+B", None),
        ("S+G", None),
        ("F", None),
    ]
    assert parents(flow) == {}
    again = dag(text, files, done=[frozenset({"X", "Y", "S+G", "F"})])
    assert [job.name for job in again.descriptions] == ["F"]


@pytest.mark.parametrize(
    "statement",
    [
        "DOT dag.dot UPDATE",
        "NODE_STATUS_FILE status 30",
        "JOBSTATE_LOG log",
        "SET_JOB_ATTR A = 3",
        "SAVE_POINT_FILE A file",
    ],
)
def test_harmless_statement_changes_nothing(statement: str) -> None:
    assert dag(f"{AB}{statement}\n") == dag(AB)


REFUSED = [
    ("SCRIPT PRE A pre.sh $JOB", "no scripts run beside the jobs", ["A"]),
    ("SCRIPT DEFER 4 60 DEBUG f ALL POST ALL_NODES post.sh", "no scripts run beside the jobs", ["A", "B"]),
    ("SCRIPT HOLD A hold.sh", "no scripts run beside the jobs", ["A"]),
    ("PRE_SKIP A 1", "no scripts run beside the jobs", ["A"]),
    ("ABORT-DAG-ON B 3 RETURN 1", "a failed node stops only its descendants", ["B"]),
    ("SERVICE S a.sub", "only jobs that end are nodes", ["A", "B"]),
    ("PROVISIONER P a.sub", "only jobs that end are nodes", ["A", "B"]),
    ("CONNECT S T", "write PARENT … CHILD …", ["A", "B"]),
    ("PIN_IN A 1", "write PARENT … CHILD …", ["A", "B"]),
    ("CONFIG dagman.config", "no settings of DAGMan count", ["A", "B"]),
    ("ENV SET A=b", "no process runs the DAG", ["A", "B"]),
]


@pytest.mark.parametrize(("statement", "why", "nodes"), REFUSED)
def test_refused_statement_is_ignored_only_on_demand(statement: str, why: str, nodes: list[str]) -> None:
    first, hint = dag_faults(f"{AB}{statement}\n")
    assert first.startswith(f"flow.dag:3: {statement}: {why}")
    assert hint.startswith("flow.dag: jobs would run without these statements; --ignore-unsupported")
    flow = dag(f"{AB}{statement}\n", ignore_unsupported=True)
    assert [job.name for job in flow.descriptions if job.ignored == (statement,)] == nodes
    assert flow.warnings[0].startswith(f"flow.dag:3: {statement.split()[0]} is ignored: {why}")


@pytest.mark.parametrize("arguments", ["it's fine", 'a "b'])
def test_arguments_of_scripts_are_not_read(arguments: str) -> None:
    statement = f"SCRIPT DEFER 1 2 PRE A p.sh {arguments}"
    flow = dag(f"{AB}{statement}\n", ignore_unsupported=True)
    assert [job.ignored for job in flow.descriptions] == [(statement,), ()]


def test_statements_that_are_ignored_have_one_warning() -> None:
    text = f"{AB}SCRIPT PRE A a.sh\nCONFIG c\nSCRIPT POST A b.sh\nSCRIPT PRE B a.sh\n"
    flow = dag(text, ignore_unsupported=True)
    assert [warning.partition(" ignored")[0] for warning in flow.warnings] == [
        "flow.dag:3: SCRIPT, here and in 2 other lines, is",
        "flow.dag:4: CONFIG is",
    ]
    assert flow.descriptions[0].ignored == ("SCRIPT PRE A a.sh", "CONFIG c", "SCRIPT POST A b.sh")


def test_node_may_have_a_name_like_that_of_all_nodes() -> None:
    assert names("JOB ALL-NODES a.sub\n") == ["ALL-NODES"]


@pytest.mark.parametrize("macro", ["RETRY", "DAG_STATUS", "failed_count"])
def test_macro_that_changes_later_is_refused(macro: str) -> None:
    files = {"a.sub": f"executable = a\narguments = $({macro})\nqueue\n"}
    first, _ = dag_faults("JOB A a.sub\n", files)
    assert first.startswith(f"a.sub:2: arguments = $({macro}): ")
    (job,) = dag("JOB A a.sub\n", files, ignore_unsupported=True).descriptions
    assert job.ignored == (f"arguments = $({macro})",)
    assert dag(f'JOB A a.sub\nVARS A {macro}="0"\n', files).descriptions[0].arguments == "0"
