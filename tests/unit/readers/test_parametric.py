"""Parametric JDL as gLite and DIRAC define it."""

from __future__ import annotations

import pytest

from support.job_texts import jdl_error, jdl_jobs


def arguments_of(text: str) -> list[str]:
    return [job.arguments for job in jdl_jobs(f'Executable = "a"; {text}')]


def test_glite_parameters_are_exclusive_upper_bound() -> None:
    text = 'JobType = "Parametric"; Arguments = "_PARAM_"; Parameters = 10; ParameterStart = 0; ParameterStep = 2;'
    assert arguments_of(text) == ["0", "2", "4", "6", "8"]


def test_glite_start_and_step_have_defaults() -> None:
    assert arguments_of('Arguments = "x_PARAM_"; Parameters = 3;') == ["x0", "x1", "x2"]


def test_glite_accepts_lists_and_negative_steps() -> None:
    assert arguments_of('Arguments = "_PARAM_"; Parameters = { alpha, "beta", 3 };') == ["alpha", "beta", "3"]
    text = 'Arguments = "_PARAM_"; Parameters = 0; ParameterStart = 3; ParameterStep = -1;'
    assert arguments_of(text) == ["3", "2", "1"]


def test_glite_parameter_is_replaced_in_all_attributes() -> None:
    (job,) = jdl_jobs("""
        JobType = "Parametric"; Parameters = 8; ParameterStart = 7; Executable = "run_PARAM_";
        InputSandbox = { "data/_PARAM_/x" }; Environment = { "SEED_PARAM_=_PARAM_" };
        Requirements = other.Slot == _PARAM_; StdOutput = "o_PARAM_"; Foo = { "f_PARAM_" };
    """)
    assert (job.executable, job.input_files[0].source, job.environment) == ("run7", "data/7/x", {"SEED7": "7"})
    assert (job.requirements_expression, job.stdout) == ("other.Slot == 7", "o7")
    assert job.attributes["Foo"] == ("f7",)


def test_dirac_parameters_are_number_of_jobs() -> None:
    assert arguments_of('Arguments = "%s"; Parameters = 3; ParameterStart = 5;') == ["5", "5", "5"]
    assert arguments_of('Arguments = "%s"; Parameters = 3; ParameterStart = 1; ParameterStep = 2;') == ["1", "3", "5"]


def test_dirac_factor_is_applied_before_step() -> None:
    text = 'Arguments = "%s"; Parameters = 3; ParameterStart = 1; ParameterStep = 1; ParameterFactor = 2;'
    assert arguments_of(text) == ["1", "3", "7"]


def test_dirac_first_value_has_type_of_the_others() -> None:
    assert arguments_of('Arguments = "%s"; Parameters = 3; ParameterFactor = 1.5;') == ["1.0", "1.5", "2.25"]
    assert arguments_of('Arguments = "%s"; Parameters = 2; ParameterStep = 0.5;') == ["1.0", "1.5"]


def test_job_number_is_padded_to_width_of_largest() -> None:
    assert arguments_of('Arguments = "%n"; Parameters = 11;')[::5] == ["00", "05", "10"]
    assert arguments_of('Arguments = "%n"; Parameters = 10;')[-1] == "9"


def test_named_sequences_advance_together() -> None:
    text = """Arguments = "%(A)s %(B)s %(C)s"; Parameters = 3; ParameterStart.A = 1; ParameterStep.A = 1;
              ParameterFactor.A = 2; Parameters.B = { "a", "b", "c" };"""
    assert arguments_of(text) == ["1 a %(C)s", "3 b %(C)s", "7 c %(C)s"]


def test_list_parameter_stays_list_as_whole_value() -> None:
    first, second = jdl_jobs("""
        Executable = "a"; Parameters = 2; Parameters.D = { {"x", "y"}, {"z"} };
        OutputSandbox = %(D)s; Arguments = "-d %(D)s";
    """)
    assert (first.output_files, first.arguments) == (("x", "y"), "-d {x,y}")
    assert (second.output_files, second.arguments) == (("z",), "-d {z}")


def test_placeholders_stay_text_without_parameters() -> None:
    assert arguments_of('Arguments = "+%s %n"; ') == ["+%s %n"]


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ('Parameters = 3;\nParameters.B = { "a", "b" };', 3, "2 values for 3 jobs"),
        ("Parameters = 0;", 2, "no job"),
        ("Parameters = many;", 2, "number"),
        ('Parameters = "' + "9" * 5000 + '";', 2, "number"),
        ('Parameters = 2;\nParameterStart = "nan";', 3, "number"),
        ("Parameters = 2.5;", 2, "whole number"),
        ("Parameters = 100000000;", 2, "more than"),
        ("Parameters = 90;\nParameterFactor = 1000;", 2, "64 bits"),
        ('JobType = "Parametric";', 2, "needs Parameters"),
        ('JobType = "Parametric";\nParameters = 3;\nParameterStep = 0;', 4, "ParameterStep"),
        ('JobType = "Parametric";\nParameters = 3;\nParameters.A = 3;', 4, "named"),
        ('Arguments = "_PARAM_";\nParameters = 3;\nParameterStart = 3;', 3, "no job"),
    ],
)
def test_error_names_line_of_invalid_parameters(text: str, line: int, cause: str) -> None:
    error = jdl_error(f'Executable = "a";\n{text}')
    assert error.startswith(f"job.jdl:{line}: ")
    assert cause in error
