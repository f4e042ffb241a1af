"""Names of container images: their kinds, and which names are refused."""

from __future__ import annotations

import pytest

from pilotage.job_description import JobDescription
from pilotage.jobs.images import ImageKind, image_fault, image_kind, normal_image
from pilotage.jobs.wire import description_from_wire, description_to_wire
from pilotage_server.core.jobs.attributes import description_attributes
from pilotage_server.core.jobs.descriptions import description_from_json, description_to_json
from pilotage_server.core.jobs.files import JobLimits
from pilotage_server.core.submission.validation import description_faults


@pytest.mark.parametrize(
    ("text", "image", "kind"),
    [
        ("alpine", "alpine", ImageKind.REGISTRY),
        ("docker://alpine:3.19", "alpine:3.19", ImageKind.REGISTRY),
        ("ghcr.io/a/b-c:v1.2_x", "ghcr.io/a/b-c:v1.2_x", ImageKind.REGISTRY),
        ("localhost:5000/x/y@sha256:" + "a" * 64, "localhost:5000/x/y@sha256:" + "a" * 64, ImageKind.REGISTRY),
        ("images/my.sif", "images/my.sif", ImageKind.JOB_FILE),
        ("./my", "./my", ImageKind.JOB_FILE),
        ("my.tar.gz", "my.tar.gz", ImageKind.JOB_FILE),
        ("/cvmfs/x.org/rocky:8", "/cvmfs/x.org/rocky:8", ImageKind.NODE_PATH),
        ("file:///staging/x.sif", "/staging/x.sif", ImageKind.NODE_PATH),
    ],
)
def test_kind_follows_from_the_form(text: str, image: str, kind: ImageKind) -> None:
    assert normal_image(text) == image
    assert (image_fault(image), image_kind(image)) == ("", kind)


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ("", "is empty"),
        ("-v", "no name of an image"),
        ("--privileged", "no name of an image"),
        ("alpine latest", "no name of an image"),
        ("alpine;id", "no name of an image"),
        ("Alpine", "no name of an image"),
        ("a/" * 600, "longer than 1000"),
        ("osdf:///a/b.sif", "osdf:// is not supported"),
        ("oras://x/y", "oras:// is not supported"),
        ("../x.sif", "climbs"),
        ("./../x.tar", "climbs"),
        ("/a/../b", "no plain absolute path"),
        ("/a\nb", "no plain absolute path"),
        ("/", "no plain absolute path"),
    ],
)
def test_other_names_are_refused(image: str, why: str) -> None:
    assert why in image_fault(image)
    (fault,) = description_faults(JobDescription("", image=image), JobLimits(), {})
    assert (fault.where, why in fault.why) == ("image", True)


def test_image_survives_wire_and_store_and_is_in_the_ad() -> None:
    description = JobDescription("", image="alpine:3.19")
    assert description_from_wire(description_to_wire(description)) == description
    assert description_from_json(description_to_json(description)) == description
    assert description_attributes(description)["ContainerImage"] == "alpine:3.19"
