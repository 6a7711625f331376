#!/usr/bin/env python3
"""Prints an SPDX 2.3 document of the libraries that programs are linked with, on Debian.

usage: spdx.py VERSION FILE...

The libraries are those that the loader finds. What is compiled in is listed beside them. Versions
are Debian's, and licences are those of each package's copyright file. SOURCE_DATE_EPOCH is the time.
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import time

# Debian packages whose code is compiled into the programs.
COMPILED_IN = ("libboost1.74-dev", "libjs-dygraphs")
SPDX = {"Expat": "MIT", "BSD-3-clause": "BSD-3-Clause", "BSD-2-clause": "BSD-2-Clause",
        "Zlib": "Zlib", "zlib": "Zlib", "Apache-2.0": "Apache-2.0", "Apache-2": "Apache-2.0"}


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def package_of(path):
    for name in (path, os.path.realpath(path), os.path.realpath(path).removeprefix("/usr")):
        done = subprocess.run(["dpkg-query", "--search", name], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.split(":")[0]
    raise SystemExit(f"spdx: no package has {path}")


def libraries(path):
    return re.findall(r"=> (/\S+)", run("ldd", path))


def licences(package):
    """The short names of machine-readable copyright files, as comment; SPDX's if there is one only."""
    try:
        with open(f"/usr/share/doc/{package}/copyright") as file:
            names = sorted(set(re.findall(r"(?m)^License: *(\S.*)$", file.read())))
    except OSError:
        names = []
    known = SPDX.get(names[0]) if len(names) == 1 else None
    return known or "NOASSERTION", "; ".join(names) or "see the package's copyright file"


def package_entry(name):
    version, source = run("dpkg-query", "--show", "--showformat=${Version}\t${source:Package}",
                          name).split("\n")[0].split("\t")
    declared, comment = licences(name)
    return {"SPDXID": f"SPDXRef-{re.sub('[^A-Za-z0-9.-]', '-', name)}", "name": name,
            "versionInfo": version, "supplier": "Organization: Debian",
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION", "licenseDeclared": declared,
            "licenseComments": comment, "copyrightText": "NOASSERTION",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator":
                                  f"pkg:deb/debian/{name.replace('+', '%2B')}@{version}?upstream={source}"}]}


def file_entry(path):
    with open(path, "rb") as file:
        content = file.read()
    name = os.path.basename(path)
    return {"SPDXID": f"SPDXRef-File-{name}", "fileName": f"./{name}", "licenseConcluded": "NOASSERTION",
            "copyrightText": "NOASSERTION",
            "checksums": [{"algorithm": "SHA1", "checksumValue": hashlib.sha1(content).hexdigest()},
                          {"algorithm": "SHA256",
                           "checksumValue": hashlib.sha256(content).hexdigest()}]}


def main():
    version, *paths = sys.argv[1:]
    packages, files, relationships = {}, [], []

    def relate(first, kind, second):
        relationships.append({"spdxElementId": first["SPDXID"], "relationshipType": kind,
                              "relatedSpdxElement": second["SPDXID"]})
    own = {"SPDXID": "SPDXRef-sluice", "name": "sluice", "versionInfo": version,
           "downloadLocation": "NOASSERTION", "filesAnalyzed": True,
           "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
           "copyrightText": "NOASSERTION"}
    for path in paths:
        file = file_entry(path)
        files.append(file)
        relate(own, "CONTAINS", file)
        for name in sorted({package_of(one) for one in libraries(path)}):
            packages.setdefault(name, package_entry(name))
            relate(file, "DYNAMIC_LINK", packages[name])
    for name in COMPILED_IN:
        packages.setdefault(name, package_entry(name))
        relate(own, "STATIC_LINK", packages[name])
    # As the specification makes it: of the sorted SHA-1 sums of the files.
    sums = sorted(file["checksums"][0]["checksumValue"] for file in files)
    own["packageVerificationCode"] = {
        "packageVerificationCodeValue": hashlib.sha1("".join(sums).encode()).hexdigest()}
    digest = hashlib.sha256(json.dumps([files, sorted(packages)]).encode()).hexdigest()
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ",
                            time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    json.dump({"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
               "name": f"sluice-{version}",
               "documentNamespace": f"https://spdx.org/spdxdocs/sluice-{version}-{digest[:32]}",
               "creationInfo": {"created": created, "creators": ["Tool: deploy/spdx.py"]},
               "documentDescribes": [own["SPDXID"]],
               "packages": [own, *(packages[name] for name in sorted(packages))], "files": files,
               "relationships": relationships}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
