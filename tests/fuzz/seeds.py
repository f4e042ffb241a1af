"""Valid texts from which random ones are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_DEPLOY = Path(__file__).parents[2] / "deploy"

JOBS = {
    "jdl": """[ Type = "Job"; Executable = "/bin/sh"; Arguments = "-c 'echo $1' %s";
StdOutput = "out"; InputSandbox = {"a.txt", "lib/b.txt"}; OutputSandbox = {"out"}; Parameters = {1, 2, 3};
Requirements = other.CPUs >= 2 && Member("x", other.Tags); Rank = other.Memory; VirtualOrganisation = "sky" ]""",
    "cfg": """Executable = /bin/sh
Arguments = -c "echo %s" , x
InputSandbox = a.txt, lib/b.txt
InputSandbox += c.txt
Parameters = 1, 2, 3
Rank = other.Memory
Requirements
{
  Memory = 500   # MiB
  Tags = x, "y z"
}
""",
    "submit": """universe = vanilla
executable = /bin/sleep
arguments = "$(Process) 'a b' $INT(Step,%03d)"
request_memory = 2 GB
requirements = (OpSys == "LINUX") && TARGET.Memory > 500
environment = "A=1 B='x y'"
periodic_remove = JobStatus == 5 && (time() - EnteredCurrentStatus) > 3600
if defined X
  +Y = "z"
else
  +Y = 3
endif
queue 3 name, value from (
  a, 1
  b, 2
)
""",
    "toml": """[[jobs]]
executable = "/bin/true"
arguments = ["a", "b c"]
count = 3
[jobs.requirements]
Memory = 500
Tags = ["x"]
[jobs.environment]
A = "1"
""",
}

TREE: dict[str, Any] = {
    "parameters": {"Memory": {"type": "size", "unit": "MiB"}},
    "defaults": {"Memory": 1000},
    "sites": {
        "SITE": {
            "VOs": ["sky"],
            "Memory": "2 GB",
            "ces": {"ce1": {"Tags": ["x"], "queues": {"long": {"CPUs": 8, "ForVO": {"sky": {"Memory": 4000}}}}}},
        }
    },
}

TREES = {
    "json": '{"sites": {"SITE": {"ces": {"ce1": {"queues": {"long": {"Memory": 4000}}}}}}}',
    "toml": (_DEPLOY / "examples" / "tree.toml").read_text(),
    "yaml": """defaults: &d {Memory: 1000}
sites:
  SITE:
    VOs: [sky, 'sea']
    ces:
      ce1: {queues: {long: *d, short: {CPUs: 8}}}
""",
    "cfg": """Resources
{
  Sites
  {
    LCG
    {
      LCG.X.ch
      {
        CE = ce1
        CEs
        {
          ce1
          {
            CEType = HTCondorCE
            Queues
            {
              long
              {
                maxCPUTime = 4000
                Tag = a, b
              }
            }
          }
        }
      }
    }
  }
}
""",
}

POLICIES = tuple(path.read_text() for path in sorted((_DEPLOY / "policies").glob("*.conf")))
DAG = """# a diamond
SUBMIT-DESCRIPTION fit {
executable = /bin/echo
arguments = "$(JOB) '$(part)'"
if defined early
output = $(early).out
endif
}
JOB A {
executable = /bin/true
priority = 3
} DIR sub
JOB B fit
NODE C fit NOOP
JOB D fit DONE
FINAL F fit
PARENT A CHILD B C
PARENT B C CHILD D
VARS ALL_NODES part="say ''hi''" +Kind = '"x"'
VARS B APPEND early="$(JOB)" MY.Size="3"
RETRY B 3 UNLESS-EXIT 2
PRIORITY ALL_NODES -4
CATEGORY B few
CATEGORY D +all
MAXJOBS few 2
SCRIPT DEFER 1 10 POST B post.sh $RETURN
ABORT-DAG-ON A 3 RETURN 1
DOT flow.dot UPDATE
DONE C
"""

TEMPLATES = tuple(path.read_text() for path in sorted((_DEPLOY / "templates").glob("*.toml")))

ROUTES = """[ name = "A"; GridResource = "batch slurm"; MaxJobs = 10; MaxIdleJobs = 3; FailureRateThreshold = 0.03;
  requirements = TARGET.Owner == "alice" && target.WantRoute; set_Memory = 500; eval_set_Kind = strcat("a", Owner);
  copy_Cmd = "OldCmd"; delete_Rank = true ]
[ name = "B"; TargetUniverse = 5; OverrideRoutingEntry = true ]
"""
