"""A DIRAC configuration read as a resource tree."""

from __future__ import annotations

import pytest

from pilotage.errors import InvalidTreeError
from pilotage.job_description import Value
from pilotage.resources.formats import read_tree_text
from pilotage.resources.inheritance import EffectiveQueue
from pilotage.resources.parameters import Inherit, ParameterType
from pilotage.resources.tree import QueueId, ResourceTree
from pilotage.resources.tree_reader import tree_from_mapping
from support.trees import effective_queue

CFG = """
# A grid in DIRAC's own words
Resources
{
  Computing
  {
    CEDefaults { MaxWaitingJobs = 20 }
    OSCompatibility { x86_64-el9 = x86_64_AlmaLinux_9.4, x86_64_RedHat_9.4 }
  }
  Sites
  {
    LCG
    {
      LCG.Example.it
      {
        Name = EXAMPLE-T2           # in the grid's database
        VO = lhcb, biomed           // for the whole site
        MaxRAM = 1024
        Home = https://example.it/a#b
        Version = 9.10
        Banner = a = b { c }
        CEs
        {
          MaxRAM = 4096
          Tag = Site
          ce01.example.it
          {
            Platform = x86_64-el9
            Tag = Token
            Tag += Extra, token
            Queues
            {
              long { maxCPUTime = 2880   SI00 = 3100   MaxTotalJobs = 500  Price = 0.25 }
              mcore { NumberOfProcessors = 8   RequiredTag = MultiProcessor  VO = lhcb }
              gpu
              {
                NumberOfGPUs = 1
                Tag = GPU
                WholeNode = True
                SI00 = 3100
                Platform = ANY
                VO =
                ForVO { biomed { MaxRAM = 8192 } }
              }
            }
          }
        }
      }
    }
    DIRAC { DIRAC.Empty.org { } }
  }
  Parameters { Version { type = version } }
}
Operations { Defaults { JobDescription { DefaultCPUTime = 86400  AllowedJobTypes = User, Test } } }
"""


def a_cfg_tree(text: str = CFG) -> ResourceTree:
    """Return the tree of a configuration."""
    return tree_from_mapping(read_tree_text(text, "dirac.cfg"))[0]


def queue(name: str, vo: str | None = None) -> EffectiveQueue:
    """Return a queue of the example as `vo` sees it."""
    return effective_queue(a_cfg_tree(), QueueId("LCG.Example.it", "ce01.example.it", name), vo)


def parameters_of(name: str, vo: str | None = None) -> dict[str, Value]:
    """Return the effective parameters of a queue of the example."""
    return queue(name, vo).parameters()


def test_grids_are_no_level_of_the_tree() -> None:
    tree = a_cfg_tree()
    assert [site.name for site in tree.sites] == ["LCG.Example.it", "DIRAC.Empty.org"]
    assert [str(queue) for queue in tree.queue_ids()] == [
        f"LCG.Example.it/ce01.example.it/{name}" for name in ("long", "mcore", "gpu")
    ]


def test_converts_numbers_and_lists_and_keeps_text() -> None:
    expected = {
        "Name": "EXAMPLE-T2",
        "Home": "https://example.it/a#b",
        "Version": "9.10",
        "Banner": "a = b { c }",
        "MaxTotalJobs": 500,
        "Price": 0.25,
        "MaxWaitingJobs": 20,
    }
    assert parameters_of("long").items() >= expected.items()


def test_quotes_around_values_are_dropped() -> None:
    quoted = CFG.replace("= ANY", '= "ANY"').replace("= lhcb, biomed", "= 'lhcb', \"biomed\"")
    quoted = quoted.replace("MaxRAM = 1024", 'MaxRAM = "1024"').replace("= Extra, token", '= "Extra, token"')
    assert quoted.count('"') == 8
    assert a_cfg_tree(quoted) == a_cfg_tree()


def test_translates_names_of_dirac() -> None:
    mcore = parameters_of("mcore")
    assert mcore["CPUs"] == 8
    assert mcore["VOs"] == ("lhcb",)
    assert mcore["RequiredTags"] == ("MultiProcessor",)
    assert parameters_of("gpu")["GPUs"] == 1
    assert not {"Tag", "RequiredTag", "VO", "MaxRAM", "NumberOfProcessors"} & mcore.keys()


def test_options_of_ces_section_override_site() -> None:
    assert parameters_of("long")["Memory"] == 4096


def test_tags_are_united_along_path() -> None:
    assert parameters_of("long")["Tags"] == ("Site", "Token", "Extra")
    assert parameters_of("gpu")["Tags"] == ("Site", "Token", "Extra", "GPU", "MultiProcessor", "WholeNode")


def test_multiprocessor_queue_gets_multiprocessor_tag() -> None:
    assert "MultiProcessor" in tuple_of(parameters_of("mcore")["Tags"])
    assert "MultiProcessor" not in tuple_of(parameters_of("long")["Tags"])


def test_computes_cpu_time_when_both_factors_are_given() -> None:
    assert parameters_of("long").items() >= {"CPUTime": 2142720, "maxCPUTime": 2880, "SI00": 3100}.items()
    assert "CPUTime" not in parameters_of("gpu")


def test_empty_access_list_inherits_list_of_site() -> None:
    assert parameters_of("gpu")["VOs"] == ("lhcb", "biomed")


def test_platform_any_means_no_restriction() -> None:
    assert queue("gpu").runs_platforms() is None
    assert queue("long").runs_platforms() == frozenset({"x86_64-el9", "x86_64_almalinux_9.4", "x86_64_redhat_9.4"})


def test_vo_section_overlays_its_level() -> None:
    assert parameters_of("gpu", "biomed")["Memory"] == 8192
    assert parameters_of("gpu", "lhcb")["Memory"] == 4096


def test_ignores_unknown_sections_with_warning() -> None:
    text = CFG.replace("Name = EXAMPLE-T2", "Cpu { Model = x }").replace("NumberOfGPUs = 1", "Extra { }")
    _, warnings = tree_from_mapping(read_tree_text(f"{text}\nSystems {{ }}", "cfg"))
    site = "Resources/Sites/LCG/LCG.Example.it"
    ignored = ["Operations", "Systems", f"{site}/Cpu", f"{site}/CEs/ce01.example.it/Queues/gpu/Extra"]
    assert [str(warning) for warning in warnings] == [f"{name}: is unknown and is ignored" for name in ignored]


OPERATIONS = """
Operations
{
  Defaults
  {
    JobDescription
    {
      DefaultCPUTime = 86400
      Speed { type = capacity }
    }
    JobScheduling { CheckMatchingDelay = True }
  }
  lhcb
  {
    Production
    {
      JobDescription
      {
        SPEED { type = capacity }
        Image { type = tags  inherit = unite }
      }
    }
    Certification { Pilot { Version = 9 } }
  }
  cms { Pilot { Version = 8 } }
}
"""


def test_job_descriptions_of_operations_declare_parameters() -> None:
    base = CFG[: CFG.index("Operations")]
    tree, warnings = tree_from_mapping(read_tree_text(base + OPERATIONS, "cfg"))

    declared = {each.name: (each.type, each.inherit) for each in tree.declarations}
    assert declared["Speed"] == (ParameterType.CAPACITY, Inherit.NEAREST)
    assert declared["Image"] == (ParameterType.TAGS, Inherit.UNITE)
    assert declared["Version"][0] is ParameterType.VERSION
    assert [each.where for each in warnings] == [
        "Operations/Defaults/JobScheduling",
        "Operations/lhcb/Certification",
        "Operations/cms",
    ]


def test_declarations_of_operations_agree() -> None:
    other = OPERATIONS.replace("SPEED { type = capacity }", "SPEED { type = value }")
    text = CFG[: CFG.index("Operations")] + other
    line = text.split("\n").index("        SPEED { type = value }") + 1
    with pytest.raises(InvalidTreeError, match=f"line {line}: SPEED is declared in another way before"):
        read_tree_text(text, "cfg")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "there is no section Resources/Sites"),
        ("Resources { Computing { } }", "there is no section Resources/Sites"),
        ("Resources\n{\n  Sites\n  {\n", "line 3: the section Sites, which begins here, is not closed"),
        ("Resources { } }", "line 1, column 15: a closing brace too many"),
        ("\n{ }", "line 2, column 1: a brace without the name of a section"),
        ("Resources\nSites { }", "line 1: Resources is neither an option KEY = VALUE nor followed by a brace"),
        ("a = 1\nb = 2\na = 3", "line 3, column 1: a stands twice in one section"),
        ("a { }\na { }", "line 2: a stands twice in one section"),
        ("= 3", "line 1, column 1: neither a section nor an option KEY = VALUE"),
        (
            "Resources\n{\n Sites\n {\n  A { S { } }\n  B { S { } }\n }\n}",
            "line 6: the site S stands in two grids, A and B",
        ),
        (
            "Resources { Sites { A { S {\n Tag = a\n Tags = b\n} } } }",
            "line 1: Tags is stated twice, once under DIRAC's name for it",
        ),
    ],
)
def test_error_names_line_of_fault(text: str, fault: str) -> None:
    with pytest.raises(InvalidTreeError) as rejected:
        read_tree_text(text, "cfg")
    assert fault in str(rejected.value)


def tuple_of(value: Value) -> tuple[object, ...]:
    """Return a value that must be a list."""
    assert isinstance(value, tuple)
    return value
