"""Real JDL and submit files: jobs, or errors with the right line, and no lost attribute."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pilotage.job_description import JobDescription
from pilotage_client.readers import read_jobs
from pilotage_client.readers.draft import ReadError, as_json
from pilotage_client.readers.jdl import JDL_ATTRIBUTES
from pilotage_client.readers.submit_commands import SUBMIT_COMMANDS
from pilotage_client.readers.support import Support

JDL_ERRORS = {
    "DIRAC__Test_ParametricJob.py_L62.jdl": (9, "4 values for 3 jobs"),
    "DIRAC__index.rst_L96.jdl": (1, "not a statement"),
    "WMS-Test-Suite__35250.jdl": (2, "not supported"),
    "WMS-Test-Suite__36145.jdl": (2, "not supported"),
    "WMS-Test-Suite__advisory4039.jdl": (9, "semicolon"),
    "WMS-Test-Suite__dag2.jdl": (2, "not supported"),
    "glite-testsuites__lb-test-wild.sh_L158.jdl": (5, "$JDL_HEADER"),
    "glite-testsuites__lb-test-wild.sh_L187.jdl": (5, "$JDL_HEADER"),
    "org.glite.wms__34508.jdl": (21, "not supported"),
    "org.glite.wms__35250.jdl": (2, "not supported"),
    "org.glite.wms__WMS-jdl.template.jdl": (8, "template"),
}

SUBMIT_ERRORS = {
    "HELAC-on-HTCondor__condor_submit.sub": (15, "seeds.txt"),
    "HHbbVV-gen__submit_templ_lpc.jdl.sub": (18, "SEEDFILE"),
    "HHbbVV-gen__submit_templ_lxplus.jdl.sub": (20, "SEEDFILE"),
    "electron-correlation-microscopy__submit_R_data.sub": (37, "input_Rs.in"),
    "example-R-iris__job.submit.sub": (1, "empty"),
    "glideinwms__job.condor.sub": (33, "GLIDEIN_COUNT"),
    "glideinwms__job.condorx.sub": (33, "GLIDEIN_COUNT"),
    "glideinwms__job.condorxx.sub": (33, "GLIDEIN_COUNT"),
    "harvester_configurations__htcondor-ce.sdf.sub": (42, "customSubmitAttributes"),
    "harvester_configurations__htcondor-ce.sdfx.sub": (42, "customSubmitAttributes"),
    "htcondor-bonn__Debian12_render_scenes.jdl.sub": (22, "nothing matches"),
    "nano-skimmer__submit.jdl.sub": (25, "file_list.txt"),
    "snd-scripts__condor.sub": (13, "paramlist_neutrinoMC.txt"),
    "tutorial-AutoDockVina__vina_multijob.submit.sub": (16, "nothing matches"),
    "tutorial-ScalingUp-Python__ScalingUp-PythonCals.submitx.sub": (17, "job_values.txt"),
    "tutorial-ScalingUp-Python__ScalingUp-PythonCals.submitxx.sub": (19, "job_values.txt"),
    "user-school-2019__squares.sub": (59, "find-anagrams.out"),
    "user-school-2019__squaresx.sub": (9, "find-anagrams.out"),
}

# The fields of a job that replace attributes of a file.
FIELDS = {
    "allowedexecuteduration": "wall_time",
    "arguments": "arguments",
    "batchname": "name",
    "cputime": "cpu_time",
    "environment": "environment",
    "error": "stderr",
    "executable": "executable",
    "input": "stdin",
    "inputfile": "input_files",
    "inputsandbox": "input_files",
    "jobbatchname": "name",
    "jobname": "name",
    "my.requestmemory": "request_memory_mib",
    "numberofprocessors": "request_cpus",
    "output": "stdout",
    "outputsandbox": "output_files",
    "priority": "priority",
    "rank": "rank",
    "requestcpus": "request_cpus",
    "requestdisk": "request_disk_mib",
    "requestgpus": "request_gpus",
    "requestmemory": "request_memory_mib",
    "requirements": "requirements_expression",
    "stderror": "stderr",
    "stdoutput": "stdout",
    "transferinputfiles": "input_files",
    "transferoutputfiles": "output_files",
    "ttl": "wall_time",
    "workdirectorysize": "request_disk_mib",
}
PARAMETERS = {"parameters", "parameterstart", "parameterstep", "parameterfactor"}


_REFUSED = """
AliDPG__JDL.jdl: inputdatacollection inputdatalist inputdatalistformat inputfile jdlvariables output outputdir
  packages split splitmaxinputfilenumber validationcommand
AliDPG__rec_pass98.jdl: inputdatacollection inputfile jdlvariables output outputdir packages split splitarguments
  validationcommand
AliPhysics__CPass0.jdl: inputdatacollection inputfile jdlvariables outputarchive outputdir packages split
  splitarguments validationcommand
AliPhysics__rawmerge.jdl: inputdatacollection inputdatalist inputdatalistformat inputfile jdlvariables output
  outputdir packages split splitarguments splitmaxinputfilenumber validationcommand
AliPhysics__spacePointCalibrationProcessTimeBin.jdl: arguments inputfile jdlvariables legoresubmitzombies output
  outputdir outputerrore packages validationcommand
DIRAC__Test_Agent_JobAgent.py_L388.jdl: inputsandbox
DIRAC__Test_JobDB.py_L152.jdl: inputsandbox jobrequirements
DIRAC__Test_JobDB.py_L23.jdl: inputsandbox
DIRAC__index.rst_L85.jdl: inputsandbox outputdata outputse
DIRAC__testWF.jdl: inputdata
WMS-Test-Suite__45883.jdl: prologue
WMS-Test-Suite__73699.jdl: prologue
WMS-Test-Suite__77055.jdl: environment
cream-nagios__WN-csh.jdl: outputsandboxbasedesturi
cream-nagios__WN-softver.jdl: outputsandboxbasedesturi
docker-emi-ui__test-cream.jdl: outputsandboxbasedesturi
org.glite.wms__28235.jdl: prologue
org.glite.wms__31278.jdl: shortdeadlinejob
org.glite.wms__31278_sdj.jdl: shortdeadlinejob
LHEGeneration__condor.jdl.sub: outputdestination x509userproxy
OSG_EGGS_CRUMBS__A.condor.sub: transferoutputremaps
OSG_EGGS_CRUMBS__B.condor.sub: transferoutputremaps
UF-condor__condor.jdl.sub: usex509userproxy
checkpoint-fibonacci__job.submit.sub: checkpointexitcode transfercheckpointfiles
condor_sshd__job.submit.sub: shouldtransferfiles
htcondor__b_submit.cmd.sub: universe
htcondor__job.sub: checkpointexitcode gpusmaximumcapability gpusminimumcapability gpusminimummemory
  singularityimage transfercheckpointfiles transferinputfiles transferoutputremaps
htcondor__job_core_macros_java.cmd.sub: universe
htcondor__job_dagman_recovery_event_check-nodeC.cmd.sub: universe
htcondor_ex__science3.sub: numretries
letsencrypttest__submit.jdl.sub: wantioproxy
nicer__submit.sub: machinecount universe
ofp-sam-bet-2023-grid__condor.sub: whentotransferoutput
ofp-sam-bet-2023-grid__condorx.sub: whentotransferoutput
prp-htcondor-pool__example_job.condor.sub: requestosimage
recipes__alphafold.submit.sub: requiregpus
templates-GPUs__mnist_gpu.sub: gpusminimumcapability gpusminimummemory
templates-GPUs__mnist_gpu_docker.sub: dockerpullpolicy gpusminimumcapability gpusminimummemory
templates-GPUs__pytorch_cnn.sub: requiregpus
templates-GPUs__train_w_checkpoint.sub: checkpointexitcode gpusminimumcapability gpusminimummemory
  transfercheckpointfiles transferinputfiles whentotransferoutput
xcache-benchmark-200gbps__condor.submit.sub: whentotransferoutput
"""

REFUSED_STATEMENTS = {
    name: set(statements.split()) for name, statements in re.findall(r"^(\S+): (.*(?:\n  .*)*)", _REFUSED, re.MULTILINE)
}
"""The statements for which files are refused that could be read without these."""


def read_all(
    folder: Path, *, ignore_unsupported: bool = True
) -> tuple[dict[str, list[JobDescription]], dict[str, ReadError]]:
    """Return the jobs of the valid files and the errors of the others, by file name."""
    jobs, errors = {}, {}
    for file in sorted(folder.iterdir()):
        try:
            jobs[file.name] = read_jobs(file, ignore_unsupported=ignore_unsupported)
        except ReadError as error:
            errors[file.name] = error
    return jobs, errors


def assert_errors_are(errors: dict[str, ReadError], expected: dict[str, tuple[int, str]], folder: Path) -> None:
    assert {name: error.line for name, error in errors.items()} == {name: line for name, (line, _) in expected.items()}
    for name, (line, cause) in expected.items():
        assert str(errors[name]).startswith(f"{folder / name}:{line}: ")
        assert cause in str(errors[name])


def normalized(name: str) -> str:
    return name.replace("_", "").lower()


def lost_names(names: set[str], text: str, jobs: list[JobDescription]) -> list[str]:
    """Return the names in a file that appear nowhere in its jobs."""
    lost = []
    for name in sorted(names):
        reference = re.search(rf"\$\w*\({re.escape(name)}[):]", text, re.IGNORECASE)
        if reference is None and not any(is_accounted_for(name, job) for job in jobs):
            lost.append(name)
    return lost


def is_accounted_for(name: str, job: JobDescription) -> bool:
    key = normalized(name)
    attributes = {normalized(attribute) for attribute in job.attributes}
    field = FIELDS.get(key)
    in_field = field is not None and getattr(job, field) not in (None, "", (), {})
    return (
        in_field or key.removeprefix("my.") in attributes or any(warning.startswith(name) for warning in job.warnings)
    )


def test_every_jdl_file_gives_jobs_or_an_error_with_its_line(shared_data: Path) -> None:
    folder = shared_data / "data" / "jdl"
    jobs, errors = read_all(folder)
    assert len(jobs) + len(errors) == 54
    assert_errors_are(errors, JDL_ERRORS, folder)
    assert all(jobs.values())


def test_every_submit_file_gives_jobs_or_an_error_with_its_line(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIDEIN_COUNT", raising=False)
    folder = shared_data / "data" / "submit"
    jobs, errors = read_all(folder)
    assert len(jobs) + len(errors) == 72
    assert_errors_are(errors, SUBMIT_ERRORS, folder)
    assert all(jobs.values())


def test_factory_submit_file_reads_the_environment(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIDEIN_COUNT", "3")
    monkeypatch.setenv("GLIDEIN_ARGUMENTS", "-v std")
    jobs = read_jobs(shared_data / "data" / "submit" / "glideinwms__job.condor.sub", ignore_unsupported=True)
    assert [(job.arguments, job.count) for job in jobs] == [("-v std", 3)]
    assert "Universe = grid" in jobs[0].ignored


def test_no_attribute_of_a_jdl_file_is_lost(shared_data: Path) -> None:
    folder = shared_data / "data" / "jdl"
    jobs, _ = read_all(folder)
    lost = {}
    for name, descriptions in jobs.items():
        text = (folder / name).read_text()
        if "JobRequirements" in text:  # a section, kept as a whole
            text = re.sub(r"(?s)(JobRequirements\s*=).*?\];", r"\1 0;", text)
        visible = re.sub(r"(?m)^\s*(#|//).*$", "", text)
        names = set(re.findall(r"(?m)^\s*\[?\s*([A-Za-z_][\w.]*)\s*=(?!=)", visible))
        names = {key for key in names if key.partition(".")[0].lower() not in PARAMETERS}
        names = {key for key in names if not is_set_empty(key, visible)}
        if found := lost_names(names, text, descriptions):
            lost[name] = found
    assert lost == {}


def is_set_empty(name: str, text: str) -> bool:
    return re.search(rf"(?m)\b{re.escape(name)}\s*=\s*(\"\"|\{{\s*\}})\s*;", text) is not None


def test_no_command_of_a_submit_file_is_lost(shared_data: Path) -> None:
    folder = shared_data / "data" / "submit"
    jobs, _ = read_all(folder)
    lost = {}
    for name, descriptions in jobs.items():
        text = (folder / name).read_text()
        commands = re.findall(r"(?m)^[ \t]*(\+?)([A-Za-z_][\w.]*)[ \t]*=[ \t]*(.*)$", text)
        warnings = {warning for job in descriptions for warning in job.warnings}
        names = {
            f"MY.{key}" if plus else key for plus, key, value in commands if not is_effectively_empty(value, warnings)
        }
        if found := lost_names(names, text, descriptions):
            lost[name] = found
    assert lost == {}


def is_effectively_empty(value: str, warnings: set[str]) -> bool:
    """Return whether a value is empty or consists of undefined macros with a warning."""
    return all(f"{macro} has no value here" in warnings for macro in value.split())


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (
            "jdl/WMS-Test-Suite__77055.jdl",
            [
                {"stdout": f"echo{n}.out", "environment": {f"MYPATH{n}": "$PATH:/bin:/usr/bin:$HOME"}}
                for n in (0, 2, 4, 6, 8)
            ],
        ),
        ("jdl/DIRAC__Test_ParametricJob.py_L37.jdl", [{"arguments": "1"}, {"arguments": "3"}, {"arguments": "7"}]),
        ("jdl/DIRAC__Test_Agent_JobAgent.py_L388.jdl", [{"request_cpus": 16, "requirements": None}]),
        (
            "jdl/AliPhysics__rawmerge.jdl",
            [{"requirements_expression": 'member(other.GridPartitions,"ultrapower")', "request_disk_mb": 6000}],
        ),
        ("submit/titan-htcondor__test-submit.sub", [{"count": 1000, "executable": "/bin/sleep", "arguments": "10"}]),
        ("submit/tutorial-error101__error101_job.submit.sub", [{"request_memory_mb": 2 * 1024 * 1024}]),
        ("submit/matlab-mcc-htcondor__condor.sub", [{"arguments": "999"}, {"arguments": "2"}, {"arguments": "3"}]),
        (
            "submit/htcondor_ex__science3.sub",
            [{"input_files": ["infile-A.txt", "infile-B.txt"], "request_disk_mb": 1024}] * 100,
        ),
    ],
)
def test_selected_files_give_the_expected_values(name: str, shown: list[dict[str, object]], shared_data: Path) -> None:
    jobs = [as_json(job) for job in read_jobs(shared_data / "data" / name, ignore_unsupported=True)]
    assert [{key: job[key] for key in expected} for job, expected in zip(jobs, shown, strict=True)] == shown


@pytest.mark.parametrize("folder", ["jdl", "submit"])
def test_real_file_is_done_or_refused_by_name(folder: str, shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIDEIN_COUNT", raising=False)
    path = shared_data / "data" / folder
    done, refused = read_all(path, ignore_unsupported=False)
    readable, invalid = read_all(path)
    found = {name: refused_statements(refused[name], path / name) for name in readable.keys() - done.keys()}
    assert found == {name: names for name, names in REFUSED_STATEMENTS.items() if (path / name).exists()}
    assert refused.keys() - found.keys() == invalid.keys()
    for name, jobs in done.items():
        assert len(jobs) == len(readable[name]), name
        assert not [job for job in jobs if job.ignored], name
        assert not [text for job in jobs for text in job.warnings if not is_about_harmless(text, folder)], name


def refused_statements(error: ReadError, file: Path) -> set[str]:
    """Return the names of the refused statements, each of which stands on its line of the file."""
    *refusals, advice = error.violations
    assert (advice.where, "--ignore-unsupported" in advice.why) == (str(file), True)
    lines = file.read_text().split("\n")
    names = set()
    for refusal in refusals:
        name = refusal.why.partition(" = ")[0]
        line = lines[int(refusal.where.rpartition(":")[2]) - 1]
        assert name.lower() in line.lower(), str(refusal)
        names.add(normalized(name))
    return names


def is_about_harmless(warning: str, folder: str) -> bool:
    """Return whether a warning is about a harmless or unknown attribute, a second value, or an empty macro."""
    name = warning.partition(" ")[0]
    known = JDL_ATTRIBUTES.get(name) if folder == "jdl" else SUBMIT_COMMANDS.get(name)
    is_known_harmless = known is not None and known.support is Support.HARMLESS
    is_request = name in ("accounting_group", "accounting_group_user") or name.startswith("+")
    others = (" has no value here", " has no meaning here", " is given twice", "has an empty name, which is left out")
    return is_known_harmless or is_request or any(text in warning for text in others)
