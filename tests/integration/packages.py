#!/usr/bin/env python3
"""Installs, starts, upgrades and purges the .deb files in a fresh Debian 12 that is booted for it,
and builds programs against the development packages.

usage: packages.py FOLDER [ROOT]
  FOLDER has the .deb files; FOLDER/again the same, made a second time; FOLDER/newer a newer version
  ROOT   a Debian 12 made by debootstrap, to be copied instead of making one

Needs root, debootstrap and systemd-nspawn. apt's sources are those of this machine.
"""
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile

FOLDER = os.path.abspath(sys.argv[1])
HERE = os.path.dirname(os.path.abspath(__file__))
BOOT_S = 300

# Runs in the booted machine; a step that fails ends it.
STEPS = r"""
set -eux
export DEBIAN_FRONTEND=noninteractive
server=/deb/sluice-server_*.deb
: install and start
apt-get install -y $server /deb/sluice_*.deb
systemctl is-active sluiced
test "$(stat -c %U /proc/$(systemctl show -P MainPID sluiced))" = sluice
for try in $(seq 50); do sluice health && break; sleep 0.2; done
sluice acquire api user:1 | grep granted
test "$(systemctl show -P MemoryMax sluiced)" != infinity
journalctl -u sluiced | grep event=started
: a changed limit, with a secret that only the service reads
echo 'limits: [{name: mine, rate: 1/h}]' > /etc/sluice/limits.yaml
umask 027; head -c 24 /dev/urandom | base64 > /etc/sluice/token; chgrp sluice /etc/sluice/token
echo 'SLUICE_FLAGS="--admin_token_file=/etc/sluice/token"' > /etc/default/sluiced
systemctl restart sluiced
for try in $(seq 50); do sluice health && break; sleep 0.2; done
sluice acquire mine | grep granted
! sluice limits list
sluice --token-file /etc/sluice/token limits list | grep mine
: the sandbox
systemd-analyze security --threshold=20 sluiced
test "$(grep -c '^CapEff:.*0000000000000000$' /proc/$(systemctl show -P MainPID sluiced)/status)" = 1
grep 'Max core file size  *0 ' /proc/$(systemctl show -P MainPID sluiced)/limits
: upgrade keeps what was configured, and starts the new server
before=$(systemctl show -P MainPID sluiced)
apt-get install -y /newer/sluice-server_*.deb
systemctl is-active sluiced
test "$(systemctl show -P MainPID sluiced)" != "$before"
for try in $(seq 50); do sluice health && break; sleep 0.2; done
sluice acquire mine | grep denied  # the state is kept: the one permit of the hour is used
! sluice limits list
grep mine /etc/sluice/limits.yaml
: manual pages and completion
test -e /usr/share/man/man8/sluiced.8.gz -a -e /usr/share/man/man1/sluice.1.gz
bash -c '. /usr/share/bash-completion/completions/sluice; complete -p sluice'
: programs against the libraries
apt-get install -y /deb/libsluice0_*.deb /deb/libsluice-dev_*.deb /deb/libsluice-admin-dev_*.deb
cd /tmp
cc -Wall -Werror -o c_program /project/c_program.c $(pkg-config --cflags --libs sluice)
./c_program
c++ -std=c++20 -o consumer /project/consumer.cc $(pkg-config --cflags --libs sluice-client)
./consumer
c++ -std=c++20 -o admin /project/admin.cc $(pkg-config --cflags --libs sluice-admin)
: purge leaves nothing
rm /etc/sluice/token
apt-get purge -y sluice-server sluice libsluice0 libsluice-dev libsluice-admin-dev
! systemctl is-active sluiced
test ! -e /etc/sluice -a ! -e /etc/default/sluiced -a ! -e /usr/bin/sluiced -a ! -e /var/lib/sluiced
: all passed
"""

C_PROGRAM = """
#include <sluice/sluice.h>
#include <stdio.h>
int main(void) { return printf("%s\\n", sluice_version()) < 0; }
"""

UNIT = """
[Unit]
After=multi-user.target
[Service]
Type=oneshot
Environment=HOME=/root
ExecStart=/bin/bash /steps
StandardOutput=file:/result
StandardError=inherit
ExecStopPost=/bin/systemctl poweroff --force
[Install]
WantedBy=multi-user.target
"""


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def digests(folder):
    found = {}
    for path in glob.glob(f"{folder}/*.deb"):
        with open(path, "rb") as file:
            found[os.path.basename(path)] = hashlib.sha256(file.read()).hexdigest()
    return found


def in_root(root, *command):
    subprocess.run(["systemd-nspawn", "--quiet", "--register=no", "--keep-unit",
                    "--directory", root, "--resolv-conf=copy-host", "--pipe", "env",
                    "DEBIAN_FRONTEND=noninteractive", *command], check=True, stdout=subprocess.DEVNULL)


def use_apt_of_this_machine(root):
    for path in ("/etc/apt/sources.list.d", "/etc/apt/apt.conf.d", "/usr/local/share/ca-certificates",
                 "/etc/ssl/certs"):
        if os.path.isdir(path):
            shutil.rmtree(root + path, ignore_errors=True)
            shutil.copytree(path, root + path, symlinks=True)
    for path in ("/etc/apt/sources.list", "/etc/hosts"):
        if os.path.exists(path):
            shutil.copy(path, root + path)
        elif os.path.exists(root + path):
            os.remove(root + path)


def dependencies():
    """What the packages need beside each other."""
    names = set()
    for path in glob.glob(f"{FOLDER}/*.deb"):
        if "-dbgsym" in path:
            continue
        line = subprocess.run(["dpkg-deb", "--field", path, "Depends"], stdout=subprocess.PIPE,
                              text=True, check=True).stdout
        names |= {one.strip() for one in line.split(",") if "sluice" not in one and one.strip()}
    return sorted(names)


def prepare(root):
    if len(sys.argv) > 2:
        subprocess.run(["cp", "-a", sys.argv[2], root], check=True)
    else:
        subprocess.run(["debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm",
                        root], check=True, stdout=subprocess.DEVNULL)
    use_apt_of_this_machine(root)
    in_root(root, "apt-get", "update", "-qq")
    # The machine has no network once it runs.
    in_root(root, "apt-get", "satisfy", "-y", "-qq", "--no-install-recommends",
            ", ".join(["systemd-sysv", "dbus", "g++", "pkg-config", *dependencies()]))
    for source, target in ((FOLDER, "deb"), (f"{FOLDER}/newer", "newer")):
        os.makedirs(f"{root}/{target}")
        for path in glob.glob(f"{source}/*.deb"):
            shutil.copy(path, f"{root}/{target}/")
    shutil.copytree(os.path.join(HERE, "..", "consumer", "project"), f"{root}/project")
    write(f"{root}/project/c_program.c", C_PROGRAM)
    write(f"{root}/steps", STEPS)
    write(f"{root}/etc/systemd/system/steps.service", UNIT)
    in_root(root, "systemctl", "enable", "-q", "steps")


def main():
    first, second = digests(FOLDER), digests(f"{FOLDER}/again")
    if not first or first != second:
        sys.exit(f"packages: two builds differ: {first} {second}")
    print(f"{len(first)} packages have the same bytes when made twice", flush=True)
    with tempfile.TemporaryDirectory(prefix="sluice-packages-") as folder:
        root = f"{folder}/root"
        prepare(root)
        try:
            subprocess.run(["systemd-nspawn", "--quiet", "--register=no", "--keep-unit",
                            "--private-network", "--boot", "--directory", root],
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=BOOT_S)
        except subprocess.TimeoutExpired:
            print("packages: the machine did not end")
        result = open(f"{root}/result").read() if os.path.exists(f"{root}/result") else ""
        print(result[-6000:])
        if not result.rstrip().endswith(": all passed"):
            sys.exit("packages: FAILED at the last step above")
    print("packages: installed, started, upgraded and purged in Debian 12")


if __name__ == "__main__":
    main()
