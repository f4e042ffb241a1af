"""Container images in submit files, JDL and TOML, and which files of theirs are sent with a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.job_description import JobDescription
from pilotage_client.readers.draft import ReadError
from pilotage_client.readers.files import resolve_local_files
from pilotage_client.readers.jdl import read_jdl
from pilotage_client.readers.toml import read_toml
from support.job_texts import submit_error, submit_job


@pytest.mark.parametrize(
    ("commands", "image"),
    [
        ("universe = docker\ndocker_image = debian", "debian"),
        ("docker_image = docker://user/cat:1\nuniverse = container", "user/cat:1"),
        ("container_image = docker://ghcr.io/a/b:c-1", "ghcr.io/a/b:c-1"),
        ("container_image = /cvmfs/unpacked.example.org/htc/rocky:8", "/cvmfs/unpacked.example.org/htc/rocky:8"),
        ("container_image = file:///staging/x.sif", "/staging/x.sif"),
        ('+SingularityImage = "/cvmfs/a/b:latest"', "/cvmfs/a/b:latest"),
        ('MY.SingularityImage = "docker://a/b"', "a/b"),
        ("container_image = $(NAME).sif\nNAME = my", "my.sif"),
        ("universe = vanilla", None),
    ],
)
def test_submit_file_names_an_image(commands: str, image: str | None) -> None:
    job = submit_job(commands)
    assert (job.image, job.warnings) == (image, ())


@pytest.mark.parametrize(
    ("commands", "why"),
    [
        ("universe = docker", "job.sub:2: universe = docker: it needs an image"),
        ("universe = Container", "job.sub:2: universe = Container: it needs an image"),
        ("docker_image = a\ncontainer_image = b", "another statement names a"),
        ("container_image = osdf:///x/y.sif", "osdf:// is not supported"),
        ('+SingularityImage = "oras://x/y"', "job.sub:2: SingularityImage = oras://x/y: oras:// is not supported"),
        ("docker_image = --privileged", "no name of an image"),
    ],
)
def test_submit_file_with_a_wrong_image_is_refused(commands: str, why: str) -> None:
    assert why in submit_error(f"executable = tool\n{commands}\nqueue\n")


def test_jdl_names_an_image_in_place_of_a_program() -> None:
    (job,) = read_jdl('[ Image = "docker://a/b"; Arguments = "x"; ]', "a.jdl")
    assert (job.executable, job.image, job.arguments) == ("", "a/b", "x")
    with pytest.raises(ReadError, match=r"a\.jdl:1: Image: '--x' is no name of an image"):
        read_jdl('Executable = "a"; Image = "--x";', "a.jdl")


def test_toml_names_an_image() -> None:
    (job,) = read_toml('image = "alpine:3.19"\n', "a.toml")
    assert (job.executable, job.image) == ("", "alpine:3.19")
    with pytest.raises(ReadError, match=r"a\.toml:2: image 'a b' is no name"):
        read_toml('executable = "x"\nimage = "a b"\n', "a.toml")


@pytest.mark.parametrize(
    ("image", "ships", "attributes", "found"),
    [
        ("images/my.sif", False, {}, "./my.sif"),
        ("../{name}/images/my.sif", True, {}, "./my.sif"),
        ("{here}/images/my.sif", True, {}, "./my.sif"),
        ("{here}/images/my.sif", False, {}, "{here}/images/my.sif"),
        ("{here}/images/my.sif", True, {"transfer_container": "False"}, "{here}/images/my.sif"),
        ("{here}/images", True, {}, "{here}/images"),
        ("/cvmfs/x.sif", True, {}, "/cvmfs/x.sif"),
        ("alpine", True, {}, "alpine"),
    ],
)
def test_file_of_an_image_is_sent_with_the_job(
    tmp_path: Path, image: str, ships: bool, attributes: dict[str, str], found: str
) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images/my.sif").write_text("image")
    job = JobDescription("tool", image=image.format(here=tmp_path, name=tmp_path.name), attributes=attributes)
    resolved = resolve_local_files(job, tmp_path, ships_programs=ships)
    assert resolved.image == found.format(here=tmp_path)
    assert [file.name for file in resolved.input_files] == (["my.sif"] if found == "./my.sif" else [])


def test_absolute_program_is_one_of_the_image_unless_it_is_transferred(tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\n")

    def sent(**attributes: str) -> str:
        job = JobDescription(str(program), image="alpine", attributes=attributes)
        return resolve_local_files(job, tmp_path, ships_programs=True).executable

    assert sent() == str(program)
    assert sent(transfer_executable="True") == "tool"
