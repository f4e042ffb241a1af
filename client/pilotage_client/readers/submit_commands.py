"""The table of submit commands, and the one of custom attributes (`+Name`) that HTCondor gives a meaning.

A command and the job attribute that it sets have one name here, as in condor_submit: request_cpus, RequestCpus. The
names are those of HTCondor's manual (condor_submit) and of its older versions. A command that is not in the table may
be a macro, or is kept with a warning. docs/reference/job-attributes.md is generated from the tables.
"""

from __future__ import annotations

from functools import lru_cache

from pilotage.text import fold
from pilotage.units import LARGEST_COUNT
from pilotage_client.readers import submit_handlers as handlers
from pilotage_client.readers.draft import Draft, StatementFaultError
from pilotage_client.readers.submit_handlers import SubmitCommand, SubmitHandler
from pilotage_client.readers.submit_text import CUSTOM_PREFIX
from pilotage_client.readers.support import FALSE_WORDS, TRUE_WORDS, AttributeTable, KnownAttribute, Support

_CONTAINER_OF_PILOT = "the pilot chooses how a container runs; remove this line"
_NO_CHECKPOINT = "nothing of an evicted job is kept, and it starts from the beginning"
_NO_PROXY = (
    "no proxy or token of yours travels; list its file in transfer_input_files and set its variable in environment"
)
_NO_GPU_TRAITS = "GPUs are only counted; select suitable slots by requirements"
_NO_TIME = "jobs start as soon as they match; submit the job when it may start"
_NO_CLOUD = "jobs run on the pilots of the resource tree only"
_NO_TOOL = "no second program runs beside the job; start it in the job's script"
_NO_PARALLEL = "a job runs on one node; request_cpus = N gives it N cores there"
_NO_SHARED = "files are transferred and no folder is shared with the worker node"
_NO_STANDARD = "it belongs to HTCondor's standard universe, which no longer exists"
_NO_SIGNAL = "a job is ended by SIGTERM and then SIGKILL"
_ENCRYPTED = "the operator chooses whether connections are encrypted, for all files alike"
_IDENTITY = "your identity comes from your token"
_REQUESTED_ACCOUNT = "is a request; the server's submit policy decides which account is charged"
_NO_STREAM = "output is returned when the job has ended"
_NO_URLS = "the worker node fetches no URLs; fetch them in the job"
_NO_DESTINATION = "output is kept by the server; copy it in the job, or fetch it afterwards"


def squashed(name: str) -> str:
    """Return the form of a name by which commands and attributes are compared."""
    return fold(name).replace("_", "")


def _done(names: str, handler: SubmitHandler, note: str) -> KnownAttribute[SubmitHandler]:
    return KnownAttribute(tuple(names.split()), Support.DONE, note, handler)


def _harmless(
    names: str, note: str, *silent: str, handler: SubmitHandler | None = None
) -> KnownAttribute[SubmitHandler]:
    """Return a command that may be ignored, with a warning unless its value is one of `silent`."""
    keep = handler or handlers.keep_unless(*silent, warning=f"is kept as an attribute; {note}")
    return KnownAttribute(tuple(names.split()), Support.HARMLESS, note, keep)


def _refused(names: str, why: str, *unless: str) -> KnownAttribute[SubmitHandler]:
    return KnownAttribute(tuple(names.split()), Support.REFUSED, why, handlers.refuse(why, *unless))


SUBMIT_COMMANDS = AttributeTable(
    (
        # What runs.
        _done("executable", handlers.executable, "the executable"),
        _done("arguments args", handlers.arguments, "the arguments, in the old or the new syntax"),
        _done("shell", handlers.shell, "a command line that `/bin/sh -c` runs, in place of executable and arguments"),
        _done("environment env", handlers.environment, "the environment, in the old or the new syntax"),
        _done(
            "getenv get_env",
            handlers.inherited_environment,
            "your environment, or the variables that match its patterns; never those named PILOTAGE_…",
        ),
        _done(
            "universe",
            handlers.universe,
            "`vanilla`, or `container` and `docker` with an image; other universes are refused",
        ),
        _done(
            "container_image docker_image", handlers.image, "the container image, with which executable may be missing"
        ),
        _done(
            "docker_network_type",
            handlers.refuse(_CONTAINER_OF_PILOT, "host"),
            "`host`, the network that each container has; others are refused",
        ),
        _done("transfer_container", handlers.keep_silently, "whether the file of an image is an input file"),
        _refused(
            "docker_override_entrypoint docker_pull_policy docker_send_credentials "
            "container_service_names container_target_dir mount_under_scratch",
            _CONTAINER_OF_PILOT,
        ),
        _harmless("container_is_common", "each node keeps the images of registries for the jobs that follow"),
        _refused("want_job_networking", "a job has the network of its node", *TRUE_WORDS),
        _refused("arguments2 environment2 allow_arguments_v1 allow_environment_v1", "write arguments or environment"),
        _refused("noop_job noop_job_exit_code noop_job_exit_signal", "a job always runs its executable", *FALSE_WORDS),
        _refused("jar_files java_vm_args java_vm_arguments java_vm_arguments2", "run java in the job's script"),
        _refused(
            "stack_size core_size coresize", "limits of processes are the pilot's; use ulimit in the job's script"
        ),
        _refused("append_files buffer_files fetch_files file_remaps local_files", _NO_STANDARD),
        _refused("parallel_script_shadow parallel_script_starter", _NO_PARALLEL),
        _refused("machine_count node_count", _NO_PARALLEL, "1"),
        _refused(
            "tool_daemon_cmd tool_daemon_args tool_daemon_arguments tool_daemon_arguments2 tool_daemon_input "
            "tool_daemon_output tool_daemon_error suspend_job_at_exec",
            _NO_TOOL,
            *FALSE_WORDS,
        ),
        _refused(
            "vm_type vm_memory vm_vcpus vm_disk vm_macaddr vm_checkpoint vm_networking vm_networking_type vm_vnc "
            "vm_no_output_vm xen_kernel xen_initrd xen_root xen_kernel_params",
            "virtual machines are not run",
        ),
        # Where it runs.
        _done("requirements", handlers.requirements, "the requirements expression; a plain true requires nothing"),
        _done("rank preferences", handlers.also_keep(handlers.rank), "the expression that orders slots"),
        _done("request_cpus", handlers.count("request_cpus"), "the cores"),
        _done("request_gpus", handlers.count("request_gpus"), "the GPUs"),
        _done("request_memory", handlers.size("request_memory_mib", "MB"), "the memory; a plain number is MB"),
        _done("request_disk", handlers.size("request_disk_mib", "KB"), "the disk; a plain number is KB"),
        _refused("request_cpu", "it is no command; write request_cpus"),
        _refused("request_gpu", "it is no command; write request_gpus"),
        _refused("image_size memory_usage", "it is no request here; write request_memory"),
        _refused("disk_usage", "it is no request here; write request_disk"),
        _refused(
            "require_gpus gpus_minimum_memory gpus_minimum_capability gpus_maximum_capability gpus_maximum_memory "
            "gpus_minimum_runtime gpus_maximum_runtime cuda_version require_cuda_capability",
            _NO_GPU_TRAITS,
        ),
        _refused("concurrency_limits concurrency_limits_expr", "no such limits exist; ask your operator for a limit"),
        _refused("run_as_owner load_profile primary_unix_group", "the pilot chooses the account", *FALSE_WORDS),
        _refused("encrypt_execute_directory", "the job's folder is not encrypted", *FALSE_WORDS),
        _refused(
            "grid_resource delegate_job_gsi_credentials batch_extra_submit_args batch_project batch_queue "
            "batch_runtime arc_application arc_resources arc_rte arc_data_staging rendezvousdir",
            "jobs are routed by the server's routes; remove this line",
        ),
        _refused(
            "aws_access_key_id_file aws_secret_access_key_file aws_region ec2_access_key_id ec2_secret_access_key "
            "ec2_ami_id ec2_instance_type ec2_user_data ec2_user_data_file ec2_security_groups ec2_security_ids "
            "ec2_keypair ec2_keypair_file ec2_elastic_ip ec2_ebs_volumes ec2_availability_zone ec2_vpc_subnet "
            "ec2_vpc_ip ec2_tag_names ec2_spot_price ec2_block_device_mapping ec2_parameter_names "
            "ec2_iam_profile_arn ec2_iam_profile_name gce_image gce_account gce_auth_file gce_machine_type "
            "gce_metadata gce_metadata_file gce_preemptible gce_json_file azure_auth_file azure_credentials "
            "azure_location azure_size azure_image azure_admin_username azure_admin_key cloud_label_names "
            "keystore_file keystore_alias keystore_passphrase_file want_name_tag WantNameTag",
            _NO_CLOUD,
        ),
        # When and how often it runs.
        _done("allowed_execute_duration", handlers.also_keep(handlers.duration("wall_time")), "the wall time limit"),
        _done("allowed_job_duration", handlers.attribute("AllowedJobDuration"), "the attribute AllowedJobDuration"),
        _done("max_job_retirement_time", handlers.attribute("MaxJobRetirementTime"), "MaxJobRetirementTime"),
        _done("job_max_vacate_time", handlers.attribute("JobMaxVacateTime"), "the attribute JobMaxVacateTime"),
        _done("job_lease_duration", handlers.also_keep(handlers.duration("lease")), "the lease"),
        _done("max_starts", handlers.also_keep(handlers.count("max_starts")), "max_starts; no command of HTCondor"),
        _done("priority prio", handlers.also_keep(handlers.priority), "the priority among your jobs"),
        _done("hold", handlers.hold, "held at submission"),
        _done("periodic_hold", handlers.also_keep(handlers.policy("periodic_hold")), "the job's policy"),
        _done("periodic_hold_reason", handlers.also_keep(handlers.policy("periodic_hold_reason")), "the job's policy"),
        _done(
            "periodic_hold_subcode", handlers.also_keep(handlers.policy("periodic_hold_subcode")), "the job's policy"
        ),
        _done("periodic_release", handlers.also_keep(handlers.policy("periodic_release")), "the job's policy"),
        _done("periodic_remove", handlers.also_keep(handlers.policy("periodic_remove")), "the job's policy"),
        _refused(
            "periodic_vacate periodic_vacate_reason periodic_vacate_subcode",
            "a policy holds or removes only",
            *FALSE_WORDS,
        ),
        _done("max_retries", handlers.also_keep(handlers.count("retries")), "how often the job runs again"),
        _refused(
            "retry_request_memory retry_request_memory_max retry_request_memory_increase",
            'write retry_memory = "2x" in a TOML file',
        ),
        _refused("retry_request_disk", "a retry has the same disk; write request_disk"),
        _refused("num_retries", "condor_submit has no such command; write max_retries", "0"),
        _done("retry_until", handlers.also_keep(handlers.retry_until), "the exit code or condition that ends retries"),
        _done(
            "success_exit_code",
            handlers.also_keep(handlers.count("success_exit_code", least=-LARGEST_COUNT)),
            "the exit code that means success",
        ),
        _done("on_exit_hold", handlers.also_keep(handlers.policy("on_exit_hold")), "the job's exit policy"),
        _done("on_exit_hold_reason", handlers.also_keep(handlers.policy("on_exit_hold_reason")), "the exit policy"),
        _done("on_exit_hold_subcode", handlers.also_keep(handlers.policy("on_exit_hold_subcode")), "the exit policy"),
        _done("on_exit_remove", handlers.also_keep(handlers.policy("on_exit_remove")), "the job's exit policy"),
        _refused("exit_requirements", "write on_exit_remove"),
        _refused("on_evict_checks", "an evicted job waits again as it was"),
        _refused("nice_user", "write priority = -N, or ask your operator for a priority factor", *FALSE_WORDS),
        _refused("cron_minute cron_hour cron_day_of_month cron_day_of_week cron_month", _NO_TIME),
        _refused("cron_prep_time cron_window deferral_time deferral_prep_time deferral_window", _NO_TIME),
        _refused("next_job_start_delay", _NO_TIME, "0"),
        _refused(
            "max_materialize max_idle materialize_max_idle", "all jobs of a file may run at once; submit parts of it"
        ),
        _refused("skip_if_dataflow", "a job runs even if its output is newer than its input", *FALSE_WORDS),
        _refused("checkpoint_exit_code", _NO_CHECKPOINT),
        _refused("transfer_checkpoint_files checkpoint_destination", _NO_CHECKPOINT),
        _refused("kill_sig remove_kill_sig hold_kill_sig", _NO_SIGNAL, "sigterm", "15"),
        _refused("kill_sig_timeout", "write job_max_vacate_time"),
        # Its files.
        _done("input stdin", handlers.also_keep(handlers.standard_input), "the standard input, an input file"),
        _done("output stdout", handlers.text("stdout"), "the file of the standard output"),
        _done("error stderr", handlers.text("stderr"), "the file of the standard error"),
        _done("transfer_input_files", handlers.input_files, "input files; URLs are refused"),
        _refused("transfer_common_input", "write transfer_input_files"),
        _done("public_input_files", handlers.input_files, "input files, as transfer_input_files"),
        _done("transfer_output_files", handlers.output_files, "output files"),
        _done("transfer_input", handlers.transfer_input, "true; false is refused if there is a standard input"),
        _harmless(
            "transfer_output transfer_error",
            "true or false; the standard streams are always returned",
            handler=handlers.stream_transfer,
        ),
        _done("transfer_executable", handlers.keep_silently, "whether the executable is an input file"),
        _done("initialdir initial_dir job_iwd", handlers.keep_silently, "the folder of the input files"),
        _done(
            "should_transfer_files",
            handlers.refuse(f"{_NO_SHARED}; write YES, and list the files", "yes", "if_needed", "true"),
            "`YES` and `IF_NEEDED`; `NO` is refused",
        ),
        _done(
            "when_to_transfer_output",
            handlers.refuse(f"{_NO_CHECKPOINT}; write ON_EXIT", "on_exit", "on_success"),
            "`ON_EXIT`; output is returned after a failure too. `ON_EXIT_OR_EVICT` is refused",
        ),
        _refused("remote_initialdir", f"{_NO_SHARED}; change the folder in the job's script"),
        _refused(
            "transfer_output_remaps", "output files keep their names; `pilotage output --to DIR` chooses the folder"
        ),
        _refused("output_destination output_directory", _NO_DESTINATION),
        _refused(
            "transfer_plugins s3_access_key_id_file s3_secret_access_key_file gs_access_key_id_file "
            "gs_secret_access_key_file",
            _NO_URLS,
        ),
        _refused(
            "preserve_relative_paths", "input files lie at the top of the job's folder; send a folder", *FALSE_WORDS
        ),
        _refused("manifest manifest_dir", "no list of files is made; write it in the job's script", *FALSE_WORDS),
        _refused("encrypt_input_files encrypt_output_files", _ENCRYPTED),
        _refused("x509userproxy", _NO_PROXY),
        _refused("use_x509userproxy use_scitokens use_scitoken send_credential", _NO_PROXY, *FALSE_WORDS),
        _refused("scitokens_file use_oauth_services myproxy_host myproxy_credential_name myproxy_password", _NO_PROXY),
        _refused("want_io_proxy want_remote_io", "the job reaches no files of the submitter", *FALSE_WORDS),
        # Names, accounts and messages.
        _done("batch_name job_batch_name", handlers.also_keep(handlers.text("name")), "the name"),
        _done("accounting_group", handlers.keep_as("AcctGroup", _REQUESTED_ACCOUNT), "AcctGroup, a request"),
        _done(
            "accounting_group_user", handlers.keep_as("AcctGroupUser", _REQUESTED_ACCOUNT), "AcctGroupUser, a request"
        ),
        _done("log", handlers.also_keep(handlers.user_log), "the user log, written by `submit --follow` or `userlog`"),
        _refused("log_xml", "user logs are written as text only", *FALSE_WORDS),
        _harmless("dagman_log ulog_execute_attrs", "the user log has the usual events only", *FALSE_WORDS),
        _harmless(
            "submit_event_notes submit_event_user_notes submit_event_notes_attrs job_ad_information_attrs",
            "the user log has the usual events only",
        ),
        _done("notification", handlers.notification, "mail at the end, at failures and holds, or none"),
        _done("notify_user", handlers.notify_user, "the mail addresses; without one your own"),
        _harmless("email_attributes", "mails name no attributes"),
        _harmless("stream_output stream_error", _NO_STREAM, *FALSE_WORDS),
        _harmless("stream_input", "the standard input is a file of the job", *FALSE_WORDS),
        _harmless("leave_in_queue", "jobs that have ended stay visible", *FALSE_WORDS),
        _harmless("copy_to_spool", "files are copied at submission", *TRUE_WORDS, *FALSE_WORDS),
        _harmless("description batch_id jobset", "it is kept for people", handler=handlers.keep_silently),
        _harmless("skip_filechecks", "input files are always checked", *FALSE_WORDS),
        _harmless("erase_output_and_error_on_restart", "each attempt has its own output", *TRUE_WORDS),
        _harmless("want_graceful_removal", "every end is graceful: SIGTERM comes first", *TRUE_WORDS, *FALSE_WORDS),
        _harmless("max_transfer_input_mb max_transfer_output_mb", "the server's limits count"),
        _harmless("dont_encrypt_input_files dont_encrypt_output_files", _ENCRYPTED),
        _harmless("delegate_job_gsi_credentials_lifetime delegate_job_gsi_credentials_refresh", _IDENTITY),
        _harmless("keep_claim_idle", "a slot takes its next job by itself"),
        _harmless("job_machine_attrs job_machine_attrs_history_length match_list_length", "events name the slot"),
        _harmless("starter_debug starter_log allow_startup_script want_ads", "it is about HTCondor's own processes"),
        _harmless("buffer_size buffer_block_size compress_files", _NO_STANDARD),
        _harmless("dagman_job_id dag_node_name", "it is kept for people", handler=handlers.keep_silently),
    ),
    key=squashed,
)
"""The commands of condor_submit."""

_SAME_AS_COMMANDS = """
    RequestCpus RequestGPUs RequestMemory RequestDisk Requirements Rank PeriodicHold PeriodicHoldReason
    PeriodicHoldSubCode PeriodicRelease PeriodicRemove PeriodicVacate MaxRetries SuccessExitCode RetryUntil OnExitHold
    OnExitHoldReason OnExitHoldSubCode OnExitRemove NiceUser ConcurrencyLimits DockerImage ContainerImage RequireGPUs
    ShouldTransferFiles WhenToTransferOutput TransferOutputRemaps DeferralTime DeferralWindow DeferralPrepTime
    CronMinute CronHour CronDayOfMonth CronDayOfWeek CronMonth CheckpointExitCode TransferCheckpointFiles KillSig
    RemoveKillSig HoldKillSig KillSigTimeout OutputDestination StackSize NextJobStartDelay LeaveInQueue
    AllowedExecuteDuration JobLeaseDuration GridResource RunAsOwner LoadProfile PrimaryUnixGroup CoreSize
    EncryptExecuteDirectory DockerNetworkType DockerOverrideEntrypoint DockerPullPolicy ContainerServiceNames
    ContainerTargetDir MountUnderScratch WantJobNetworking PreserveRelativePaths TransferPlugins x509userproxy
    SendCredential WantIOProxy WantRemoteIO SkipIfDataflow OutputDirectory
"""


def _same_as_command(name: str) -> KnownAttribute[SubmitHandler]:
    command = SUBMIT_COMMANDS.get(name)
    assert command is not None, f"{name} has a command"
    return KnownAttribute((name,), command.support, f"as {command.names[0]}", command.handler)


CUSTOM_ATTRIBUTES = AttributeTable(
    (
        *map(_same_as_command, _SAME_AS_COMMANDS.split()),
        _done("SingularityImage", handlers.image, "as container_image, but executable is needed"),
        _refused("WantContainer WantDocker WantDockerImage", "write container_image or docker_image", *FALSE_WORDS),
        _refused("JobUniverse", "write universe", "5"),
        _refused("Cmd", "write executable"),
        _refused("Args", "write arguments"),
        _refused("Env", "write environment"),
        _refused("In Out Err TransferIn", "write input, output or error"),
        _refused("Iwd", "write initialdir"),
        _refused("JobPrio", "write priority"),
        _refused("TransferInput", "write transfer_input_files"),
        _refused("TransferOutput", "write transfer_output_files"),
        _harmless("JobNotification NotifyUser", "write notification and notify_user"),
        _refused("JobMaxRetries", "the server sets it; write max_retries", "0"),
        _refused("MinHosts MaxHosts", _NO_PARALLEL, "1"),
        _refused("WantParallelScheduling", _NO_PARALLEL, *FALSE_WORDS),
        _refused("IsNoopJob", "a job always runs its executable", *FALSE_WORDS),
        _refused("SuccessCheckpointExitCode", _NO_CHECKPOINT),
        _refused("CommonInputFiles", "write transfer_input_files"),
        _refused("OAuthServicesNeeded", _NO_PROXY),
    ),
    key=fold,
)
"""Custom attributes with a meaning; every other one is kept for policies and expressions."""

_CACHED_NAMES = 1000
"""The names of a file are looked up for each of its jobs."""

_REQUEST_PREFIX = "request_"
_CUSTOM_RESOURCE = "slots have no such resource; they have cores, memory, disk and GPUs"


def is_command(name: str) -> bool:
    """Return whether a name is a command or a custom attribute of the job, not a macro."""
    return is_custom_attribute(name) or SUBMIT_COMMANDS.get(name) is not None


@lru_cache(maxsize=_CACHED_NAMES)
def resembles_command(name: str) -> bool:
    """Return whether a name is that of a command, or may be meant to be one."""
    return is_command(name) or SUBMIT_COMMANDS.similar(name) is not None


@lru_cache(maxsize=_CACHED_NAMES)
def is_custom_attribute(name: str) -> bool:
    """Return whether a name is that of a custom attribute, `+Name` or `MY.Name`."""
    return fold(name).startswith(CUSTOM_PREFIX)


def draft_of(commands: list[SubmitCommand]) -> Draft:
    """Return the draft of the job that `commands` describe, with the faults of all of them.

    They must be in the order of `reading_order`.
    """
    draft = Draft()
    for command in commands:
        try:
            if is_custom_attribute(command.name):
                own = SubmitCommand(command.name[len(CUSTOM_PREFIX) :], command.value, command.line)
                known = CUSTOM_ATTRIBUTES.get(own.name)
                (known.handler if known else handlers.custom_attribute)(draft, own)
            else:
                _handler(command.name)(draft, command)
        except StatementFaultError as fault:
            draft.faults.append((fault.line, fault.cause))
    for settle in [*draft.computed.values()]:
        with draft.collecting_faults():
            settle()
    if not draft.fields.keys().isdisjoint(_RETRYING):
        draft.fields.setdefault("retries", _DEFAULT_RETRIES)
    return draft


_RETRYING = frozenset({"retry_until", "success_exit_code"})
"""Fields that condor_submit reads as a wish for retries."""
_DEFAULT_RETRIES = 2
"""HTCondor's DEFAULT_JOB_MAX_RETRIES."""


_READ_LAST = frozenset({"transferinput", "universe", "notification"})


def reading_order(name: str) -> tuple[bool, bool]:
    """Return the order in which the commands of a job are read.

    Custom attributes override commands, as in HTCondor. transfer_input is read when the standard input is known,
    universe when the image is, and notification when the addresses are.
    """
    return squashed(name) in _READ_LAST, is_custom_attribute(name)


@lru_cache(maxsize=_CACHED_NAMES)
def _handler(name: str) -> SubmitHandler:
    known = SUBMIT_COMMANDS.get(name)
    if known is not None:
        return known.handler
    similar = SUBMIT_COMMANDS.similar(name)
    if fold(name).startswith(_REQUEST_PREFIX):
        return handlers.refuse(_CUSTOM_RESOURCE + (f"; did you mean {similar}?" if similar else ""), "0")
    return handlers.keep_unknown(similar)
