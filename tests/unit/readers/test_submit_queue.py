"""Submit files: how many jobs their queue statements make, and what tells them apart."""

from __future__ import annotations

from pathlib import Path

from support.job_texts import submit_jobs


def arguments_of(text: str, base_dir: Path | None = None) -> list[str]:
    return [job.arguments for job in submit_jobs(f"executable = run\n{text}", base_dir)]


def counts_of(text: str) -> list[int | None]:
    return [job.count for job in submit_jobs(f"executable = run\n{text}")]


def test_jobs_that_are_alike_are_one_array() -> None:
    assert counts_of("queue 1000000") == [1_000_000]
    assert counts_of("queue") == counts_of("queue 1") == [None]


def test_jobs_whose_text_depends_on_their_number_are_one_description_each() -> None:
    assert arguments_of("arguments = $(Process) $(procid) $(Step)\nqueue 3") == ["0 0 0", "1 1 1", "2 2 2"]


def test_equal_jobs_of_several_statements_are_one_array() -> None:
    assert counts_of("queue 2\nqueue 3\narguments = x\nqueue") == [5, None]


def test_values_change_between_queue_statements_and_numbers_go_on() -> None:
    text = "arguments = a$(Process)\nqueue 2\narguments = b$(Process)\nqueue\n"
    assert arguments_of(text) == ["a0", "a1", "b2"]


def test_another_executable_begins_to_count_anew() -> None:
    jobs = submit_jobs("arguments = $(Process)\nexecutable = a\nqueue 2\nexecutable = b\nqueue\n")
    assert [(job.executable, job.arguments) for job in jobs] == [("a", "0"), ("a", "1"), ("b", "0")]


def test_the_id_of_the_cluster_is_left_for_the_server_in_one_spelling() -> None:
    assert arguments_of("arguments = $(CLUSTER).$(ClusterId).$(Process)\nqueue") == ["$(Cluster).$(Cluster).0"]


def test_items_of_a_list_fill_their_variable() -> None:
    assert arguments_of("arguments = $(x) $(Row)\nqueue x in (a, b c)") == ["a 0", "b 1", "c 2"]
    assert arguments_of("arguments = $(Item)\nqueue in (a b)") == ["a", "b"]
    assert arguments_of("arguments = $(x)\nqueue x in (\n a\n # no\n b\n)") == ["a", "b"]


def test_items_from_lines_fill_several_variables() -> None:
    text = "arguments = $(x)-$(y)\nqueue x, y from (\n  1 one\n\n  # not this\n  2, number two\n)"
    assert arguments_of(text) == ["1-one", "2-number two"]


def test_items_come_from_a_file_beside_the_submit_file(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a 1\n\n# comment\nb 2\n")
    assert arguments_of("queue arguments from list.txt", tmp_path) == ["a 1", "b 2"]


def test_several_jobs_for_each_item() -> None:
    assert arguments_of("N = 2\narguments = $(x)$(Step)\nqueue $(N) x in (a b)") == ["a0", "a1", "b0", "b1"]
    assert counts_of("queue 5 arguments in (a b)") == [5, 5]


def test_a_slice_chooses_items_as_in_python() -> None:
    assert arguments_of("queue arguments in [1:] (a b c)") == ["b", "c"]
    assert arguments_of("queue arguments in [::2] (a b c)") == ["a", "c"]


def test_items_are_what_matches_a_pattern(tmp_path: Path) -> None:
    for name in ("run_a", "run_b"):
        (tmp_path / name).mkdir()
    (tmp_path / "run_c").touch()
    assert arguments_of("queue arguments matching run_*", tmp_path) == ["run_a/", "run_b/", "run_c"]
    assert arguments_of("queue arguments matching files (run_*)", tmp_path) == ["run_c"]
    assert arguments_of("queue arguments matching dirs run_a run_*", tmp_path) == ["run_a/", "run_b/"]


def test_a_queue_statement_under_a_condition_that_does_not_hold_queues_nothing() -> None:
    text = "if defined NOBODY\n arguments = a\n queue\nelse\n arguments = b\n queue\nendif\n"
    assert arguments_of(text) == ["b"]
