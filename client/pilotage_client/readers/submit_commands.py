"""The table of handlers of submit commands.

A command and the job attribute that it sets have one name here, as in condor_submit: request_cpus, RequestCpus.
A command that is not in the table is kept, with a warning; docs/reference/job-languages.md shows the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.text import fold
from pilotage_client.readers import submit_handlers as handlers
from pilotage_client.readers.draft import Draft
from pilotage_client.readers.submit_handlers import SubmitCommand
from pilotage_client.readers.submit_text import CUSTOM_PREFIX

_NOT_SUPPORTED = "is kept as an attribute; it has no effect yet"
_IDENTITY = "is kept as an attribute; your identity comes from your token"
_REQUESTED_ACCOUNT = "is a request; the server's submit policy decides which account is charged"
_NO_MAIL = "is kept as an attribute; no mail is sent"
_NO_STREAM = "is kept as an attribute; output is returned when the job has ended"

_COMMANDS: Mapping[str, handlers.SubmitHandler] = {
    "executable": handlers.executable,
    "arguments": handlers.arguments,
    "environment": handlers.environment,
    "env": handlers.environment,
    "input": handlers.also_keep(handlers.standard_input),
    "output": handlers.text("stdout"),
    "error": handlers.text("stderr"),
    "transferinputfiles": handlers.input_files,
    "transferinput": handlers.input_files,
    "transferoutputfiles": handlers.output_files,
    "transferoutput": handlers.output_files,
    "requirements": handlers.requirements,
    "rank": handlers.also_keep(handlers.rank),
    "requestcpus": handlers.count("request_cpus"),
    "requestgpus": handlers.count("request_gpus"),
    "requestmemory": handlers.size("request_memory_mib", "MB"),
    "requestdisk": handlers.size("request_disk_mib", "KB"),
    "allowedexecuteduration": handlers.also_keep(handlers.duration("wall_time")),
    "allowedjobduration": handlers.attribute("AllowedJobDuration"),
    "maxjobretirementtime": handlers.attribute("MaxJobRetirementTime"),
    "jobmaxvacatetime": handlers.attribute("JobMaxVacateTime"),
    "jobleaseduration": handlers.also_keep(handlers.duration("lease")),
    "maxstarts": handlers.also_keep(handlers.count("max_starts")),
    "priority": handlers.also_keep(handlers.priority),
    "prio": handlers.also_keep(handlers.priority),
    "hold": handlers.also_keep(handlers.hold),
    "jobbatchname": handlers.also_keep(handlers.text("name")),
    "batchname": handlers.also_keep(handlers.text("name")),
    "universe": handlers.universe,
    "shouldtransferfiles": handlers.keep_unless(
        "yes", "if_needed", "true", warning="is kept as an attribute; files are transferred anyway"
    ),
    "whentotransferoutput": handlers.keep_unless(
        "on_exit", warning="is kept as an attribute; output is returned when the job has ended"
    ),
    "transferexecutable": handlers.keep_unless("true", "false", "yes", "no"),
    "initialdir": handlers.keep_silently,
    "getenv": handlers.switch(
        ordinary=False, warning="is kept as an attribute; your own environment is not transferred"
    ),
    "notification": handlers.keep_unless("never", warning=_NO_MAIL),
    "notifyuser": handlers.keep_with_warning(_NO_MAIL),
    "streamoutput": handlers.switch(ordinary=False, warning=_NO_STREAM),
    "streamerror": handlers.switch(ordinary=False, warning=_NO_STREAM),
    "streaminput": handlers.switch(ordinary=False),
    "copytospool": handlers.switch(ordinary=True),
    "log": handlers.keep_with_warning("is kept as an attribute; `pilotage logs` shows the events of a job"),
    "containerimage": handlers.image,
    "dockerimage": handlers.image,
    "transfercontainer": handlers.keep_unless("true", "false", "yes", "no"),
    "accountinggroup": handlers.keep_as("AcctGroup", _REQUESTED_ACCOUNT),
    "accountinggroupuser": handlers.keep_as("AcctGroupUser", _REQUESTED_ACCOUNT),
    "x509userproxy": handlers.keep_with_warning(_IDENTITY),
    "usex509userproxy": handlers.switch(ordinary=False, warning=_IDENTITY),
    "maxretries": handlers.keep_with_warning(_NOT_SUPPORTED),
    "numretries": handlers.keep_with_warning(_NOT_SUPPORTED),
    "retryuntil": handlers.keep_with_warning(_NOT_SUPPORTED),
    "successexitcode": handlers.keep_with_warning(_NOT_SUPPORTED),
    "onexithold": handlers.keep_with_warning(_NOT_SUPPORTED),
    "onexitremove": handlers.keep_with_warning(_NOT_SUPPORTED),
    "periodichold": handlers.also_keep(handlers.policy("periodic_hold")),
    "periodicholdreason": handlers.also_keep(handlers.policy("periodic_hold_reason")),
    "periodicholdsubcode": handlers.also_keep(handlers.policy("periodic_hold_subcode")),
    "periodicrelease": handlers.also_keep(handlers.policy("periodic_release")),
    "periodicremove": handlers.also_keep(handlers.policy("periodic_remove")),
    "periodicvacate": handlers.keep_with_warning(_NOT_SUPPORTED),
}

_CUSTOM_ATTRIBUTES: Mapping[str, handlers.SubmitHandler] = {
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
} | {"singularityimage": handlers.image}
"""Attributes with the same meaning as a command and as `+Name`."""

# Commands of condor_submit that nothing uses here; any other name may be a macro.
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
    """Return the form of a name by which commands and attributes are compared."""
    return fold(name).replace("_", "")


def is_command(name: str) -> bool:
    """Return whether a name is a command or a custom attribute of the job, not a macro."""
    return is_custom_attribute(name) or squashed(name) in _COMMANDS or squashed(name) in _OTHERS


def is_custom_attribute(name: str) -> bool:
    """Return whether a name is that of a custom attribute, `+Name` or `MY.Name`."""
    return fold(name).startswith(CUSTOM_PREFIX)


def _turn(command: SubmitCommand) -> int:
    """Return when a command is read: a universe needs to know the image."""
    return 2 if squashed(command.name) == "universe" else int(is_custom_attribute(command.name))


def draft_of(commands: list[SubmitCommand]) -> Draft:
    """Return the draft of the job that `commands` describe; custom attributes override commands, as in HTCondor.

    Raises
    ------
    StatementFaultError
        At an invalid command.
    """
    draft = Draft()
    for command in sorted(commands, key=_turn):
        if is_custom_attribute(command.name):
            own = SubmitCommand(command.name[len(CUSTOM_PREFIX) :], command.value, command.line)
            _CUSTOM_ATTRIBUTES.get(fold(own.name), handlers.custom_attribute)(draft, own)
        else:
            _COMMANDS.get(squashed(command.name), handlers.keep)(draft, command)
    return draft
