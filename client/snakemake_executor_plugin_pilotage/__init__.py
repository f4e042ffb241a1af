"""`snakemake --executor pilotage`: the jobs of a workflow are jobs of Pilotage.

Snakemake finds executors by the names of packages such as this one, and reads `common_settings`, `ExecutorSettings` and
`Executor` of them.
"""

from snakemake_executor_plugin_pilotage.executor import Executor, ExecutorSettings, common_settings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]
