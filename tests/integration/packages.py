#!/usr/bin/env python3
"""Installs, starts, upgrades and purges the .deb files in a fresh Debian 12 that is booted for it,
and builds programs against the development packages.

usage: packages.py FOLDER [ROOT]
  FOLDER has the .deb files; FOLDER/again those of a second compilation; FOLDER/newer a newer version
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
# `set -e` takes no notice of a command after `!`.
fails() { if "$@"; then return 1; fi; }
served() { for try in $(seq 50); do sluice "$@" health && return; sleep 0.2; done; false; }
server=/deb/sluice-server_*.deb
: install and start
apt-get install -y $server /deb/sluice_*.deb
systemctl is-active sluiced
test "$(stat -c %U /proc/$(systemctl show -P MainPID sluiced))" = sluice
served
sluice acquire api user:1 | grep granted
test "$(systemctl show -P MemoryMax sluiced)" != infinity
journalctl -u sluiced | grep event=started
: a changed limit, with a secret that only the service reads
echo 'limits: [{name: mine, rate: 1/h}]' > /etc/sluice/limits.yaml
umask 027; head -c 24 /dev/urandom | base64 > /etc/sluice/token; chgrp sluice /etc/sluice/token
echo 'SLUICE_FLAGS="--admin_token_file=/etc/sluice/token"' > /etc/default/sluiced
systemctl restart sluiced
served
sluice acquire mine | grep granted
fails sluice limits list
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
served
sluice acquire mine | grep denied  # the state is kept: the one permit of the hour is used
fails sluice limits list
grep mine /etc/sluice/limits.yaml
: callers of a Unix socket by their uid, the audit log, and the boot id of the state
as_user() {
  setpriv --reuid=$1 --regid=sluice --clear-groups \
    sluice --server unix:/run/sluiced/data acquire mine app
}
cat > /etc/sluice/clients.yaml <<END
clients:
  - { name: app, uid: 4711, limits: [mine], calls: [acquire] }
  - { name: ops, uid: 0, limits: ["*"], calls: [admin_view, admin_change] }
END
chgrp sluice /etc/sluice/clients.yaml
cat > /etc/default/sluiced <<END
SLUICE_FLAGS="--clients=/etc/sluice/clients.yaml --audit_log=/var/log/sluiced/audit.json
 --listen=unix:/run/sluiced/data --admin_listen=unix:/run/sluiced/admin"
END
systemctl restart sluiced
served --server unix:/run/sluiced/data
as_user 4711 | grep granted
as_user 4712 2>&1 | grep 'UNAUTHENTICATED.*4712'
sluice --admin unix:/run/sluiced/admin limits put other --rate 5/h
grep '"client":"ops".*"call":"PutLimit"' /var/log/sluiced/audit.json
test "$(stat -c %U:%a /var/log/sluiced)" = sluice:750
# Not that of /proc: the sandbox shows the machine's around this one.
boot_id() { grep -aoE '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}' /var/lib/sluiced/state; }
systemctl stop sluiced
boot=$(boot_id)
systemctl start sluiced
served --server unix:/run/sluiced/data
as_user 4711 | grep denied
sluice --admin unix:/run/sluiced/admin limits list | grep other
systemctl stop sluiced
test "$(boot_id)" = "$boot"
: sockets of systemd: a restart under load loses no call
echo 'limits: [{name: mine, rate: 1/h}, {name: wide, rate: 1000000/s}]' > /etc/sluice/limits.yaml
echo 'SLUICE_FLAGS=' > /etc/default/sluiced
cp /usr/share/doc/sluice-server/examples/*.socket /etc/systemd/system/
systemctl daemon-reload
systemctl enable --now sluiced.socket sluiced-http.socket sluiced-admin.socket
systemctl start sluiced
served
sluice --deadline=20s --output=json bench wide --mode=unary --connections=4 --concurrency=16 \
  --rate=500/s --duration=20s > /load &
for restart in 1 2 3; do
  before=$(systemctl show -P MainPID sluiced)
  systemctl restart sluiced
  served
  test "$(systemctl show -P MainPID sluiced)" != "$before"
done
kill -0 $!  # the load lasted all the while
wait $!
cat /load
grep '"denied":0,"unavailable":0,"errors":0,' /load
: a Unix socket of systemd that all users may open
mkdir /etc/systemd/system/sluiced.socket.d
cat > /etc/systemd/system/sluiced.socket.d/unix.conf <<END
[Socket]
ListenStream=
ListenStream=/run/sluiced.sock
SocketMode=0666
END
systemctl daemon-reload
systemctl stop sluiced.service sluiced.socket
systemctl start sluiced.socket sluiced.service
served --server unix:/run/sluiced.sock
setpriv --reuid=4711 --regid=4711 --clear-groups sluice --server unix:/run/sluiced.sock acquire wide
systemctl disable --now sluiced.socket sluiced-http.socket sluiced-admin.socket
: manual pages and completion
test -e /usr/share/man/man8/sluiced.8.gz -a -e /usr/share/man/man1/sluice.1.gz
bash -c '. /usr/share/bash-completion/completions/sluice; complete -p sluice'
: programs against the libraries
apt-get install -y /deb/libsluice1_*.deb /deb/libsluice-dev_*.deb /deb/libsluice-admin-dev_*.deb
cd /tmp
cc -Wall -Werror -o c_program /project/c_program.c $(pkg-config --cflags --libs sluice)
./c_program
c++ -std=c++20 -o consumer /project/consumer.cc $(pkg-config --cflags --libs sluice-client)
./consumer
c++ -std=c++20 -o admin /project/admin.cc $(pkg-config --cflags --libs sluice-admin)
: purge leaves nothing
rm /etc/sluice/token /etc/sluice/clients.yaml
apt-get purge -y sluice-server sluice libsluice1 libsluice-dev libsluice-admin-dev
fails systemctl is-active sluiced
for path in /etc/sluice /etc/default/sluiced /usr/bin/sluiced /var/lib/sluiced /var/log/sluiced \
  /run/sluiced; do
  test ! -e $path
done
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
        names = sorted(name for name in first.keys() | second.keys()
                       if first.get(name) != second.get(name))
        sys.exit(f"packages: these differ when compiled twice: {', '.join(names) or 'there are none'}")
    print(f"{len(first)} packages have the same bytes when compiled twice", flush=True)
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
