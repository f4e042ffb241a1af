"""Images of containers that jobs name: what kind of place a name is, and which names are valid.

The kind follows from the form alone, so that every process reads a name alike. A name comes from strangers and becomes
an argument of programs: it never starts with a dash, and it has no blanks.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import PurePosixPath

from pilotage.jobs.file_names import fault_of_name

REGISTRY_SCHEME = "docker://"
"""Precedes the name of an image in a registry where other kinds are possible, as in HTCondor's container_image."""

_LONGEST = 1000
_FILE_SCHEME = "file://"
_SIF_ENDINGS = (".sif", ".simg", ".img")
_ARCHIVE_ENDINGS = (".tar", ".tar.gz", ".tgz")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# The grammar of github.com/distribution/reference, without its bounds: [HOST[:PORT]/]PATH[:TAG][@DIGEST].
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]+)?"
_TAG, _DIGEST = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", r"[A-Za-z][A-Za-z0-9]*:[0-9a-fA-F]{32,}"
_REGISTRY_NAME = re.compile(rf"(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*(?::{_TAG})?(?:@{_DIGEST})?")


class ImageKind(StrEnum):
    """The kinds of places where an image is."""

    REGISTRY = "registry"
    """A name in a registry, such as alpine:3.19."""
    JOB_FILE = "file of the job"
    """A file among the job's input files: an archive or a SIF file."""
    NODE_PATH = "path of the node"
    """An absolute path: a folder, such as one of CVMFS, an archive or a SIF file."""


def image_kind(image: str) -> ImageKind:
    """Return the kind of a valid name."""
    if image.startswith("/"):
        return ImageKind.NODE_PATH
    is_file = image.startswith("./") or image.endswith((*_SIF_ENDINGS, *_ARCHIVE_ENDINGS))
    return ImageKind.JOB_FILE if is_file else ImageKind.REGISTRY


def normal_image(text: str) -> str:
    """Return the stored form of what a user wrote: without docker:// and file://."""
    text = text.strip()
    for scheme in (REGISTRY_SCHEME, _FILE_SCHEME):
        if text.lower().startswith(scheme):
            return text[len(scheme) :]
    return text


def has_scheme(image: str) -> bool:
    """Whether a name in stored form is a URL, such as osdf:///x.sif; no such image is supported."""
    return _SCHEME.match(image) is not None


def image_fault(image: str) -> str:
    """Return why this is no image in stored form, for people; "" = it is one."""
    if not image or len(image) > _LONGEST:
        return "is empty" if not image else f"is longer than {_LONGEST} characters"
    if scheme := _SCHEME.match(image):
        return f"{scheme[0]} is not supported: name an image of a registry (docker://), a file or a folder"
    match image_kind(image):
        case ImageKind.REGISTRY:
            return "" if _REGISTRY_NAME.fullmatch(image) else f"{image!r} is no name of an image in a registry"
        case ImageKind.JOB_FILE:
            return fault_of_name(image.removeprefix("./"))
        case ImageKind.NODE_PATH:
            is_plain = image.isprintable() and ".." not in PurePosixPath(image).parts and image.strip("/")
            return "" if is_plain else f"{image!r} is no plain absolute path"


def is_sif(image: str) -> bool:
    """Whether it is a file in a format of Apptainer, which only apptainer and singularity run."""
    return image.endswith(_SIF_ENDINGS)


def is_archive(image: str) -> bool:
    """Whether it is an archive as `docker save` and `podman save` write it, which has to be unpacked."""
    return image.endswith(_ARCHIVE_ENDINGS)
