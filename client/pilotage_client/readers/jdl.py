"""Reads JDL of DIRAC, gLite and AliEn.

The dialects share their common attributes and differ in the others, so one table serves all three. An attribute that is
not in the table is kept, with a warning; docs/reference/job-attributes.md is generated from the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from pilotage.job_description import JobDescription
from pilotage.text import fold
from pilotage.units import parse_duration, parse_size_mib
from pilotage_client.readers import jdl_handlers as handlers
from pilotage_client.readers.draft import Draft, FileFaults, StatementFaultError
from pilotage_client.readers.jdl_handlers import JdlHandler
from pilotage_client.readers.jdl_text import Attribute, as_text, flattened, read_attributes, texts_in
from pilotage_client.readers.parametric import expand
from pilotage_client.readers.support import FALSE_WORDS, AttributeTable, KnownAttribute, Support

_FROM_TOKEN = "your identity comes from your token"  # noqa: S105
_NO_DATA = "no data of storage elements is staged; fetch it in the job's script"
_NO_STORAGE = "output is kept by the server; copy it to a storage element in the job, or fetch it afterwards"
_NO_RESUBMISSION = "jobs are not resubmitted by count; MaxStarts = N bounds the starts"
_NO_PROXY = "no proxy of yours travels; send its file in InputSandbox and set its variable in Environment"
_NO_PACKAGES = "no software is installed for the job; select queues that have it by Requirements"
_NO_SPLIT = "the job is not split; write Parameters, or one job for each part"
_NO_PLACE = 'queues are chosen by Requirements, such as [ CE = "NAME" ] if the resource tree states it'
_NO_SCRIPTS = "only the executable runs; call the script in it"
_FOR_PEOPLE = "it is kept for people and expressions"
_OF_THE_SYSTEM = "it is about the other system's own processes"


def _done(names: str, handler: JdlHandler, note: str) -> KnownAttribute[JdlHandler]:
    return KnownAttribute(tuple(names.split()), Support.DONE, note, handler)


def _harmless(names: str, note: str) -> KnownAttribute[JdlHandler]:
    """Return an attribute that may be ignored; a warning says so."""
    handler = handlers.keep_with_warning(f"is kept as an attribute; {note}")
    return KnownAttribute(tuple(names.split()), Support.HARMLESS, note, handler)


def _kept(names: str, note: str) -> KnownAttribute[JdlHandler]:
    """Return an attribute that may be ignored without a word."""
    return KnownAttribute(tuple(names.split()), Support.HARMLESS, note, handlers.keep_silently)


def _refused(names: str, why: str, *unless: str) -> KnownAttribute[JdlHandler]:
    return KnownAttribute(tuple(names.split()), Support.REFUSED, why, handlers.refuse(why, *unless))


JDL_ATTRIBUTES = AttributeTable(
    (
        # What runs.
        _done("Executable", handlers.executable, "the executable"),
        _done(
            "Image ContainerImage SingularityImage DockerImage",
            handlers.image,
            "the container image, with which Executable may be missing",
        ),
        _done("Arguments", handlers.arguments, "the arguments: a text, or a list"),
        _done("Environment ExecutionEnvironment", handlers.environment, "the environment; $NAME in a value is refused"),
        _done("Type", handlers.refuse("only single and parametric jobs are read", "job", "parametric"), "`Job`"),
        _done(
            "JobType",
            handlers.refuse_values(
                "only ordinary jobs run", "interactive", "mpich", "mpich2", "openmpi", "checkpointable", "partitionable"
            ),
            "any name; those of gLite for jobs of other kinds, such as `MPICH`, are refused",
        ),
        _refused("NodeNumber HostNumber SMPGranularity", "a job runs on one node; NumberOfProcessors = N", "1"),
        _refused("Prologue PrologueArguments Epilogue EpilogueArguments Validationcommand", _NO_SCRIPTS),
        _refused("Packages SoftwarePackages SystemConfig RunTimeEnvironment", _NO_PACKAGES, "any"),
        _refused("Merge MergeOutputDir MergeCollections", "no job merges the output; submit one with after_ok"),
        _refused("JDLVariables", "no ALIEN_JDL_… variables are set; set them in Environment"),
        _refused("JobRequirements", "write its statements outside of the section"),
        _refused("Split SplitArguments SplitMaxInputFileNumber SplitMaxInputFileSize", _NO_SPLIT),
        # Where it runs.
        _done(
            "Requirements",
            handlers.requirements,
            "the Requirements section (in ads JobRequirements), or the requirements expression",
        ),
        _done("RequirementsExpression", handlers.requirements_expression, "the requirements expression"),
        _done("Rank", handlers.also_keep(handlers.rank), "the expression that orders slots"),
        _done("Site Sites", handlers.name_list("sites"), "the allowed sites, in ads Site"),
        _done("BannedSite BannedSites", handlers.name_list("banned_sites"), "the forbidden sites, in ads BannedSites"),
        _done("Platform", handlers.name_list("platforms"), "the platforms, in ads Platform"),
        _done(
            "Tag Tags", handlers.tags, "the requirement `Tags`; `8Processors` requests cores, `WholeNode` is refused"
        ),
        _done("NumberOfProcessors CPUNumber CPUCores", handlers.count("request_cpus"), "the cores"),
        _done(
            "MinNumberOfProcessors", handlers.count("request_cpus", is_default=True), "the cores, if no number is given"
        ),
        _done("NumberOfGPUs GPUNumber", handlers.count("request_gpus"), "the GPUs"),
        _done(
            "MinRAM MaxRAM MemorySize",
            handlers.measured("request_memory_mib", parse_size_mib, is_largest=True),
            "the memory: the largest of them; a plain number is MB",
        ),
        _done(
            "Workdirectorysize", handlers.measured("request_disk_mib", parse_size_mib), "the disk; a plain number is MB"
        ),
        _refused("WholeNode", handlers.NO_WHOLE_NODE, *FALSE_WORDS),
        _refused("FuzzyRank", "the best slot by Rank is taken", *FALSE_WORDS),
        _refused("SubmitTo GridCE DestinationCE CE SubmitPool SubmitPools", _NO_PLACE, "any"),
        _refused(
            "ShortDeadlineJob SDJ", "a job waits until a slot is free; require a tag of suitable queues", *FALSE_WORDS
        ),
        _refused("DataRequirements StorageIndex ReplicaCatalog VirtualOrganisationForData", _NO_DATA),
        # When and how often it runs.
        _done(
            "CPUTime MaxCPUTime",
            handlers.measured("cpu_time", parse_duration),
            "normalised CPU time, in ads CPUTime in seconds",
        ),
        _done("TTL", handlers.also_keep(handlers.measured("wall_time", parse_duration)), "the wall time limit"),
        _done("MaxStarts", handlers.also_keep(handlers.count("max_starts")), "how often the payload may start"),
        _done("Priority", handlers.also_keep(handlers.priority), "the priority among your jobs"),
        _done("PeriodicHold", handlers.also_keep(handlers.policy("periodic_hold")), "the job's policy"),
        _done("PeriodicHoldReason", handlers.also_keep(handlers.policy("periodic_hold_reason")), "the job's policy"),
        _done("PeriodicHoldSubCode", handlers.also_keep(handlers.policy("periodic_hold_subcode")), "the job's policy"),
        _done("PeriodicRelease", handlers.also_keep(handlers.policy("periodic_release")), "the job's policy"),
        _done("PeriodicRemove", handlers.also_keep(handlers.policy("periodic_remove")), "the job's policy"),
        _done("OnExitHold", handlers.also_keep(handlers.policy("on_exit_hold")), "the job's exit policy"),
        _done("OnExitHoldReason", handlers.also_keep(handlers.policy("on_exit_hold_reason")), "the job's exit policy"),
        _done(
            "OnExitHoldSubCode", handlers.also_keep(handlers.policy("on_exit_hold_subcode")), "the job's exit policy"
        ),
        _done("OnExitRemove", handlers.also_keep(handlers.policy("on_exit_remove")), "the job's exit policy"),
        _done(
            "AllowedJobDuration MaxJobRetirementTime JobMaxVacateTime", handlers.keep_silently, "the same attributes"
        ),
        _done("RetryCount", handlers.retry_count, "how often the payload may start: one more than its value"),
        _refused("MaxReschedule MaxRescheduling LegoResubmitZombies MaxResubmission", _NO_RESUBMISSION),
        _refused("ExpiryTime", "a job waits until it is removed; PeriodicRemove removes it after a time"),
        _refused("JobSteps CurrentStep JobState StepWeight", "the state of an evicted job is not kept"),
        # Its files.
        _done("StdInput", handlers.also_keep(handlers.text("stdin")), "the standard input"),
        _done("StdOutput", handlers.text("stdout"), "the file of the standard output"),
        _done("StdError", handlers.text("stderr"), "the file of the standard error"),
        _done("InputSandbox InputFile", handlers.input_files, "input files; those of storage elements are refused"),
        _done("OutputSandbox", handlers.output_files, "output files"),
        _done(
            "Output OutputArchive OutputErrorE",
            handlers.alien_output,
            "output files: the patterns; archive names and `@` destinations are refused",
        ),
        _refused("InputData InputDataCollection InputDataList InputDataListFormat DataCatalog", _NO_DATA),
        _refused("InputSandboxBaseURI", "no files are fetched from other hosts; name local files"),
        _refused("OutputData OutputDataModule OutputPath OutputPrefix OutputSE OutputDir OutputStorage", _NO_STORAGE),
        _refused("OutputSandboxBaseDestURI OutputSandboxDestURI", _NO_STORAGE),
        _refused("MyProxyServer", _NO_PROXY),
        # Names, accounts and messages.
        _done("JobName", handlers.also_keep(handlers.text("name")), "the name"),
        _harmless("Owner OwnerGroup OwnerDN OwnerName User VirtualOrganisation VirtualOrganization", _FROM_TOKEN),
        _harmless(
            "PerusalFileEnable PerusalTimeInterval PerusalFilesDestURI", "output is returned when the job has ended"
        ),
        _harmless("ShallowRetryCount", "a job that could not start waits again"),
        _harmless("MaxNumberOfProcessors", "the job gets the number of cores that it requests, and no more"),
        _harmless("Price HLRLocation", "accounts are charged by the server's rules"),
        _harmless("Email EMail NotificationEmail", "no mail is sent"),
        _done("UserLog", handlers.keep_silently, "the path of the user log on the submitter's side"),
        _kept("JobGroup JobTag UserTags LogLevel JobID JDLPath JDLArguments JDLProcessor GUIDFile", _FOR_PEOPLE),
        _kept("InputDataModule InputDataPolicy DataAccessProtocol", "it concerns input data, which is refused"),
        _kept("AllowZippedISB EnableZippedISB ZippedISB EnableWMSFeedback LBAddress DIRACSetup Debug", _OF_THE_SYSTEM),
    ),
    key=fold,
)
"""The attributes of DIRAC, gLite and AliEn (JAliEn)."""


def draft_of(attributes: list[Attribute]) -> Draft:
    """Return the draft of the job that `attributes` describe, with the faults of all of them."""
    draft = Draft()
    for attribute in attributes:
        known = JDL_ATTRIBUTES.get(attribute.name)
        handler = known.handler if known else handlers.keep_unknown(JDL_ATTRIBUTES.similar(attribute.name))
        with draft.collecting_faults():
            handler(draft, attribute)
            if known is not None and known.support is Support.DONE:
                _refuse_marks(draft, attribute)
    return draft


_NOT_SUPPORTED = {"dag": "a DAG", "collection": "a collection"}
_SUBMISSION_ARGUMENT = re.compile(r"\$\d+")
_JOB_ID_MARK = "%j"


def read_jdl(text: str, file: str, *, ignore_unsupported: bool = False) -> list[JobDescription]:
    """Return the jobs that a JDL text describes, in the order of their parameters.

    Raises
    ------
    ReadError
        With the first line of each faulty statement; `file` is the name of the text in the error.
    """
    return jobs_of_attributes(lambda: read_attributes(text), file, ignore_unsupported=ignore_unsupported)


def jobs_of_attributes(
    read: Callable[[], tuple[list[Attribute], list[StatementFaultError]]], file: str, *, ignore_unsupported: bool
) -> list[JobDescription]:
    """Return the jobs of the attributes that `read` returns with the faults of others; raises ReadError."""
    faults = FileFaults(file, ignore_unsupported=ignore_unsupported)
    jobs: list[JobDescription] = []
    try:
        for draft in _drafts(*read(), faults):
            faults.add_draft(draft)
            if faults.are_many:
                break
            draft.put(continues_cluster=bool(jobs))
            jobs.append(draft.description())
    except StatementFaultError as fault:
        faults.add(fault.line, fault.cause)
    faults.raise_any()
    return jobs


def _drafts(attributes: list[Attribute], invalid: list[StatementFaultError], faults: FileFaults) -> Iterator[Draft]:
    for fault in invalid:
        faults.add(fault.line, fault.cause)
    if not invalid:
        _check_is_job(attributes)
    kept, warnings = _without_duplicates(attributes)
    for job in expand(kept):
        draft = draft_of(job)
        for warning in warnings:
            draft.warn(warning)
        yield draft


def _check_is_job(attributes: list[Attribute]) -> None:
    for attribute in attributes:
        if fold(attribute.name) in ("type", "jobtype"):
            kinds = [fold(as_text(each)) for each in flattened(attribute.value)]
            kind = next((_NOT_SUPPORTED[each] for each in kinds if each in _NOT_SUPPORTED), None)
            if kind is not None:
                raise StatementFaultError(attribute.line, f"{kind} is not supported")
    known = filter(None, (JDL_ATTRIBUTES.get(attribute.name) for attribute in attributes))
    if not any(attribute.handler in (handlers.executable, handlers.image) for attribute in known):
        nodes = next((attribute for attribute in attributes if fold(attribute.name) == "nodes"), None)
        if nodes is not None:
            raise StatementFaultError(nodes.line, "a DAG or a collection is not supported")
        first = attributes[0].line if attributes else 1
        raise StatementFaultError(first, "there is no Executable")


def _without_duplicates(attributes: list[Attribute]) -> tuple[list[Attribute], list[str]]:
    """Return the last statement of each name, and a warning for each earlier one."""
    counting: dict[str, Attribute] = {}
    warnings = []
    for attribute in attributes:
        earlier = counting.pop(fold(attribute.name), None)
        counting[fold(attribute.name)] = attribute
        if earlier is not None:
            warnings.append(
                f"{attribute.name} is given twice: line {attribute.line} counts, "
                f"line {earlier.line} said {as_text(earlier.value)}"
            )
    return sorted(counting.values(), key=lambda each: each.line), warnings


def _refuse_marks(draft: Draft, attribute: Attribute) -> None:
    """Refuse marks that another system would replace at submission."""
    texts = list(texts_in(attribute.value))
    marks = sorted({mark for text in texts for mark in _SUBMISSION_ARGUMENT.findall(text)})
    if marks:
        why = f"AliEn's submission arguments are not replaced; write the values of {', '.join(marks)}"
        draft.refuse(attribute.line, attribute.name, as_text(attribute.value), why)
    if any(_JOB_ID_MARK in text for text in texts):
        why = f"DIRAC's mark {_JOB_ID_MARK} for the job's id is not replaced; use $PILOTAGE_JOB_ID in the job's script"
        draft.refuse(attribute.line, attribute.name, as_text(attribute.value), why)
