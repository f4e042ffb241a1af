"""What each command of a submit file means for a job, in one table.

Rules
-----
A command and the job attribute that it sets are one name here, as in condor_submit: request_cpus, RequestCpus.
What is not in the table is kept and warned of; docs/reference/job-languages.md shows the table to users.
"""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.folding import fold
from pilotage_client.readers import submit_meanings as meanings
from pilotage_client.readers.draft import Draft
from pilotage_client.readers.submit_meanings import Command
from pilotage_client.readers.submit_text import OWN_ATTRIBUTE

_LATER = "is kept as an attribute and not heeded yet"
_IDENTITY = "is kept as an attribute; who you are comes from your token"
_WISH = "is a wish; the server's submit policy says who is charged"
_NO_CONTAINER = "is kept as an attribute; the job runs as an ordinary process, not in a container"
_NO_MAIL = "is kept as an attribute; nobody sends mail"
_NO_STREAM = "is kept as an attribute; output comes when the job has ended"

_COMMANDS: Mapping[str, meanings.Meaning] = {
    "executable": meanings.executable,
    "arguments": meanings.arguments,
    "environment": meanings.environment,
    "env": meanings.environment,
    "input": meanings.kept_too(meanings.standard_input),
    "output": meanings.text("stdout"),
    "error": meanings.text("stderr"),
    "transferinputfiles": meanings.input_files,
    "transferinput": meanings.input_files,
    "transferoutputfiles": meanings.output_files,
    "transferoutput": meanings.output_files,
    "requirements": meanings.requirements,
    "rank": meanings.kept_too(meanings.rank),
    "requestcpus": meanings.count("request_cpus"),
    "requestgpus": meanings.count("request_gpus"),
    "requestmemory": meanings.size("request_memory_mib", "MB"),
    "requestdisk": meanings.size("request_disk_mib", "KB"),
    "allowedexecuteduration": meanings.kept_too(meanings.duration("wall_time")),
    "allowedjobduration": meanings.attribute("AllowedJobDuration"),
    "maxjobretirementtime": meanings.attribute("MaxJobRetirementTime"),
    "jobmaxvacatetime": meanings.attribute("JobMaxVacateTime"),
    "jobleaseduration": meanings.kept_too(meanings.duration("lease")),
    "priority": meanings.kept_too(meanings.priority),
    "prio": meanings.kept_too(meanings.priority),
    "hold": meanings.kept_too(meanings.hold),
    "jobbatchname": meanings.kept_too(meanings.text("name")),
    "batchname": meanings.kept_too(meanings.text("name")),
    "universe": meanings.kept_unless(
        "vanilla", "5", warning="is kept as an attribute; the job runs as an ordinary process"
    ),
    "shouldtransferfiles": meanings.kept_unless(
        "yes", "if_needed", "true", warning="is kept as an attribute; files travel with the job all the same"
    ),
    "whentotransferoutput": meanings.kept_unless(
        "on_exit", warning="is kept as an attribute; output comes when the job has ended"
    ),
    "transferexecutable": meanings.kept_unless("true", "false", "yes", "no"),
    "initialdir": meanings.keep_quietly,
    "getenv": meanings.switch(
        ordinary=False, warning="is kept as an attribute; your own environment does not travel with the job"
    ),
    "notification": meanings.kept_unless("never", warning=_NO_MAIL),
    "notifyuser": meanings.kept_because(_NO_MAIL),
    "streamoutput": meanings.switch(ordinary=False, warning=_NO_STREAM),
    "streamerror": meanings.switch(ordinary=False, warning=_NO_STREAM),
    "streaminput": meanings.switch(ordinary=False),
    "copytospool": meanings.switch(ordinary=True),
    "log": meanings.kept_because("is kept as an attribute; `pilotage logs` shows the events of a job"),
    "containerimage": meanings.kept_because(_NO_CONTAINER),
    "dockerimage": meanings.kept_because(_NO_CONTAINER),
    "accountinggroup": meanings.kept_as("AcctGroup", _WISH),
    "accountinggroupuser": meanings.kept_as("AcctGroupUser", _WISH),
    "x509userproxy": meanings.kept_because(_IDENTITY),
    "usex509userproxy": meanings.switch(ordinary=False, warning=_IDENTITY),
    "maxretries": meanings.kept_because(_LATER),
    "numretries": meanings.kept_because(_LATER),
    "retryuntil": meanings.kept_because(_LATER),
    "successexitcode": meanings.kept_because(_LATER),
    "onexithold": meanings.kept_because(_LATER),
    "onexitremove": meanings.kept_because(_LATER),
    "periodichold": meanings.kept_too(meanings.policy("periodic_hold")),
    "periodicholdreason": meanings.kept_too(meanings.policy("periodic_hold_reason")),
    "periodicholdsubcode": meanings.kept_too(meanings.policy("periodic_hold_subcode")),
    "periodicrelease": meanings.kept_too(meanings.policy("periodic_release")),
    "periodicremove": meanings.kept_too(meanings.policy("periodic_remove")),
    "periodicvacate": meanings.kept_because(_LATER),
}

_OWN_ATTRIBUTES: Mapping[str, meanings.Meaning] = {
    name: _COMMANDS[name]
    for name in (
        "requestcpus",
        "requestgpus",
        "requestmemory",
        "requestdisk",
        "requirements",
        "rank",
        "periodichold",
        "periodicholdreason",
        "periodicholdsubcode",
        "periodicrelease",
        "periodicremove",
    )
}
"""Attributes that say the same whether they are set by a command or as `+Name`."""

# Commands of condor_submit that mean nothing here; a macro may have any other name.
_OTHERS = frozenset(
    """
    allow_startup_script append_files arc_application arc_resources arc_rte arguments2 aws_access_key_id_file
    azure_credentials batch_project batch_queue batch_runtime buffer_block_size buffer_files buffer_size
    checkpoint_exit_code compress_files concurrency_limits concurrency_limits_expr container_service_names
    container_target_dir coresize cron_day_of_month cron_day_of_week cron_hour cron_minute cron_month cron_prep_time
    cron_window cuda_version dagman_log deferral_prep_time deferral_time deferral_window delegate_job_gsi_credentials
    delegate_job_gsi_credentials_lifetime delegate_job_gsi_credentials_refresh description docker_network_type
    docker_override_entrypoint docker_pull_policy dont_encrypt_input_files dont_encrypt_output_files ec2_ami_id
    ec2_instance_type email_attributes encrypt_execute_directory encrypt_input_files encrypt_output_files
    environment2 erase_output_and_error_on_restart fetch_files file_remaps gce_image gce_machine_type
    gpus_maximum_capability gpus_maximum_memory gpus_maximum_runtime gpus_minimum_capability gpus_minimum_memory
    gpus_minimum_runtime grid_resource hold_kill_sig image_size jar_files java_vm_args job_ad_information_attrs
    job_machine_attrs job_machine_attrs_history_length keep_claim_idle keystore_file kill_sig
    kill_sig_timeout ladder_log leave_in_queue load_profile local_files localfiles log_xml machine_count manifest
    manifest_dir match_list_length materialize_max_idle max_idle max_materialize
    max_transfer_input_mb max_transfer_output_mb my_proxy_host myproxy_credential_name myproxy_host next_job_start_delay
    nice_user noop_job noop_job_exit_code noop_job_exit_signal ordered output_destination parallel_script_shadow
    parallel_script_starter plugin_allowlist preserve_relative_executable
    preserve_relative_paths primary_unix_group public_input_files ready_to_run_fraction remote_initialdir
    remove_kill_sig request_os_image require_cuda_capability require_gpus retirement run_as_owner scitokens_file
    send_credential shell skip_filechecks skip_if_dataflow stack_size starter_debug starter_log
    submit_event_notes submit_event_user_notes suspend_job_at_exit tool_daemon_args tool_daemon_arguments
    tool_daemon_cmd tool_daemon_error tool_daemon_input tool_daemon_output transfer_checkpoint_files
    transfer_error transfer_files transfer_input_files_append transfer_output_remaps transfer_plugins
    use_oauth_services use_scitokens vm_checkpoint vm_disk vm_macaddr vm_memory vm_networking vm_networking_type
    vm_no_output_vm vm_type vm_vcpus want_graceful_removal want_io_proxy want_name_tag want_remote_io
    """.replace("_", "").split()
)


def squashed(name: str) -> str:
    """Return a name as commands and attributes are compared."""
    return fold(name).replace("_", "")


def is_command(name: str) -> bool:
    """Say whether a name is a command or an own attribute of the job, and so no mere macro."""
    return is_own_attribute(name) or squashed(name) in _COMMANDS or squashed(name) in _OTHERS


def is_own_attribute(name: str) -> bool:
    """Say whether a name is that of an attribute that the owner adds to the job."""
    return fold(name).startswith(OWN_ATTRIBUTE)


def draft_of(commands: list[Command]) -> Draft:
    """Return the draft of the job that `commands` describe; own attributes count after commands, as in HTCondor.

    Raises
    ------
    StatementFaultError
        At the command that cannot be understood.
    """
    draft = Draft()
    for command in sorted(commands, key=lambda each: is_own_attribute(each.name)):
        if is_own_attribute(command.name):
            own = Command(command.name[len(OWN_ATTRIBUTE) :], command.value, command.line)
            _OWN_ATTRIBUTES.get(fold(own.name), meanings.own_attribute)(draft, own)
        else:
            _COMMANDS.get(squashed(command.name), meanings.keep)(draft, command)
    return draft
