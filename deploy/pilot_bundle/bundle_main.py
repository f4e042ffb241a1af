"""The entry of a pilot bundle: prints one line when the machine does not match the bundle.

Plain syntax and old modules only, as Pythons run it that the bundle is not made for.
"""

import json
import os
import sys
import zipfile

bundle = os.path.dirname(os.path.abspath(__file__))
archive = zipfile.ZipFile(bundle)
made_for = json.loads(archive.read("bundle.json").decode("utf-8"))
archive.close()

name = getattr(getattr(sys, "implementation", None), "name", "python")
here = "%s %s on %s" % (name, "%d.%d" % tuple(sys.version_info[:2]), os.uname()[4])
needed = "cpython %s on %s" % (made_for["python"], made_for["machine"])
try:
    library = os.confstr("CS_GNU_LIBC_VERSION") or ""
except ValueError:
    library = ""
release = tuple(int(part) for part in library[len("glibc ") :].split(".")[:2] if part.isdigit())

fault = ""
if here != needed:
    fault = "is made for %s, but this is %s (%s)" % (needed, here, sys.executable)
elif release < tuple(made_for["glibc"]):
    fault = "needs glibc %d.%d or later, but this machine has %s" % (tuple(made_for["glibc"]) + (library or "none",))
if fault:
    sys.stderr.write("%s: %s\n" % (os.path.basename(bundle), fault))
    sys.exit(2)

import bundle_unpacking  # noqa: E402 - only a Python that the bundle is made for can read it

bundle_unpacking.start(bundle, made_for["key"])
