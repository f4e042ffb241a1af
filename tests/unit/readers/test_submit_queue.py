"""Submit files: the jobs that queue statements make, and how they are grouped into arrays."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage.job_description import JobDescription
from pilotage_client.readers.draft import ReadError
from pilotage_server.core.jobs.descriptions import render
from support.job_texts import submit_jobs
from support.jobs import a_job


def arguments_of(text: str, base_dir: Path | None = None) -> list[str]:
    return [job.arguments for job in submit_jobs(f"executable = run\n{text}", base_dir)]


def counts_of(text: str) -> list[int | None]:
    return [job.count for job in submit_jobs(f"executable = run\n{text}")]


def test_equal_jobs_make_one_array() -> None:
    assert counts_of("queue 1000000") == [1_000_000]
    assert counts_of("queue") == counts_of("queue 1") == [None]


def test_jobs_that_depend_on_process_get_one_description_each() -> None:
    assert arguments_of("arguments = $(Process) $(procid) $(Step)\nqueue 3") == ["0 0 0", "1 1 1", "2 2 2"]


def test_equal_jobs_of_several_statements_make_one_array() -> None:
    assert counts_of("queue 2\nqueue 3\narguments = x\nqueue") == [5, None]


def test_process_number_continues_over_queue_statements() -> None:
    text = "arguments = a$(Step)$(Process)\nqueue 2\narguments = b$(Process)\nqueue\n"
    assert arguments_of(text) == ["a00", "a11", "b2"]


def jobs_of(commands: str, queue: str, folder: Path) -> list[JobDescription]:
    """Return the description of each single job, with its macros filled in as the server does."""
    found = submit_jobs(f"executable = run\n{commands}\n{queue}\n", folder, ignore_unsupported=True)
    alike = chain.from_iterable(repeat(each, each.count or 1) for each in found)
    return [
        replace(render(each, a_job(id=7 + process, cluster=7, process=process)), continues_cluster=False)
        for process, each in enumerate(alike)
    ]


@pytest.mark.parametrize(
    ("commands", "descriptions"),
    [
        ("arguments = a$(Process) 'b'", 1),
        ("arguments = \"a 'b $(ProcId)' c\"", 1),
        ('environment = "A=$(process) B=$ENV(HOME)"', 1),
        ("output = $(dir).out\nerror = $(dir).err\ndir = o.$(Cluster).$(Process)", 1),
        ("transfer_output_files = r.$(Process)", 1),
        ("log = l.$(Process)\nnice_user = true", 1),
        ("Process = 5\narguments = $(Process)", 1),
        ("arguments = $(Process)\nrequest_memory = $(x:7)", 1),
        ('environment = "A$(Process)=1"', 3),
        ("log = l$(Process)/log", 3),
        ("initialdir = run$(Process)", 3),
        ("input = in.$(Process)", 3),
        ("transfer_input_files = in.$(Process)", 3),
        ("batch_name = n$(Process)", 3),
        ("+Part = $(Process)", 3),
        ('+Part = "$(Process)"', 3),
        ("request_cpus = $(Process)", 3),
        ("request_memory = 100 * ($(Process) + 1)", 3),
        ("periodic_hold = ProcId == $(Process)", 3),
        ("universe = x$(Process)", 3),
        ("arguments = $INT(Process,%03d)", 3),
        ("arguments = $F(dir)\ndir = a$(Process)/", 3),
        ("arguments = $(Process:4)", 3),
        ("arguments = $(name$(Process))\nname1 = x", 3),
        ("arguments = $CHOICE(Process,a,b,a)", 3),
    ],
)
def test_array_has_the_same_jobs_as_single_queue_statements(commands: str, descriptions: int, tmp_path: Path) -> None:
    assert jobs_of(commands, "queue 3", tmp_path) == jobs_of(commands, "queue\nqueue\nqueue", tmp_path)
    found = submit_jobs(f"executable = run\n{commands}\nqueue 3", tmp_path, ignore_unsupported=True)
    assert len(found) == descriptions


@pytest.mark.parametrize(("command", "count"), [("output", 1), ("input", 3)])
def test_jobs_of_items_share_texts_that_the_server_fills_in(command: str, count: int, tmp_path: Path) -> None:
    commands = f"arguments = $(x)\n{command} = file.$(Process)"
    single = "x = a\nqueue\nx = b\nqueue\nx = c\nqueue"
    assert jobs_of(commands, "queue x in (a b c)", tmp_path) == jobs_of(commands, single, tmp_path)
    found = submit_jobs(f"executable = run\n{commands}\nqueue x in (a b c)", tmp_path)
    assert len({job.stdout if command == "output" else job.stdin for job in found}) == count


def test_new_executable_restarts_process_number() -> None:
    jobs = submit_jobs("arguments = $INT(Process)\nexecutable = a\nqueue 2\nexecutable = b\nqueue\n")
    assert [(job.executable, job.arguments) for job in jobs] == [("a", "0"), ("a", "1"), ("b", "0")]


def test_cluster_id_macro_is_left_for_server() -> None:
    assert arguments_of("arguments = $(CLUSTER).$(ClusterId).$(Process)\nqueue") == ["$(Cluster).$(Cluster).0"]


def test_list_items_fill_one_variable() -> None:
    assert arguments_of("arguments = $(x) $(Row)\nqueue x in (a, b c)") == ["a 0", "b 1", "c 2"]
    assert arguments_of("arguments = $(Item)\nqueue in (a b)") == ["a", "b"]
    assert arguments_of("arguments = $(x)\nqueue x in (\n a\n # no\n b\n)") == ["a", "b"]


def test_lines_fill_several_variables() -> None:
    text = "arguments = $(x)-$(y)\nqueue x, y from (\n  1 one\n\n  # not this\n  2, number two\n)"
    assert arguments_of(text) == ["1-one", "2-number two"]


def test_items_from_file_next_to_submit_file(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a 1\n\n# comment\nb 2\n")
    assert arguments_of("queue arguments from list.txt", tmp_path) == ["a 1", "b 2"]


def test_queues_several_jobs_for_each_item() -> None:
    assert arguments_of("N = 2\narguments = $(x)$(Step)\nqueue $(N) x in (a b)") == ["a0", "a1", "b0", "b1"]
    assert counts_of("queue 5 arguments in (a b)") == [5, 5]


def test_slice_selects_items_as_in_python() -> None:
    assert arguments_of("queue arguments in [1:] (a b c)") == ["b", "c"]
    assert arguments_of("queue arguments in [::2] (a b c)") == ["a", "c"]


def test_items_match_file_patterns(tmp_path: Path) -> None:
    for name in ("run_a", "run_b"):
        (tmp_path / name).mkdir()
    (tmp_path / "run_c").touch()
    assert arguments_of("queue arguments matching run_*", tmp_path) == ["run_a/", "run_b/", "run_c"]
    assert arguments_of("queue arguments matching files (run_*)", tmp_path) == ["run_c"]
    assert arguments_of("queue arguments matching dirs run_a run_*", tmp_path) == ["run_a/", "run_b/"]


def test_queue_statement_in_false_branch_queues_nothing() -> None:
    text = "if defined NOBODY\n arguments = a\n queue\nelse\n arguments = b\n queue\nendif\n"
    assert arguments_of(text) == ["b"]


def test_appended_statements_precede_each_queue_statement() -> None:
    text = "executable = run\narguments = a\nx = 1\nqueue\narguments = b\nqueue 2\n"
    appended = ("arguments = $(x) of $(Process)", '+Kind = "fast"', "request_memory=2 GB")
    jobs = submit_jobs(text, appended=appended)
    assert [job.arguments for job in jobs] == ["1 of 0", "1 of $(Process)"]
    assert [(job.attributes["Kind"], job.request_memory_mib, job.warnings) for job in jobs] == [("fast", 2048, ())] * 2


def test_fault_of_an_appended_statement_is_at_the_queue_statement() -> None:
    with pytest.raises(ReadError, match=r"^job\.sub:3: request_memory"):
        submit_jobs("executable = run\n\nqueue\n", appended=["request_memory = lots of it"])


@pytest.mark.parametrize("text", ["queue 3", "ppend", "error : stop", "a = 1\nb = 2", "", "if true", "x @=end"])
def test_only_assignments_are_appended(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"--append .*is not a statement NAME = VALUE"):
        submit_jobs("executable = run\nqueue\n", appended=[text])
