#!/usr/bin/env python3
"""Builds the image of deploy/Dockerfile with buildah, and bounds its size. Starts it as its user with
a read-only root, and runs its health check. Then asks the service that its /bin/ratelimit starts from
the environment of envoyproxy/ratelimit.

usage: image.py SOURCE_DIR [IMAGE] [--save FILE]
  IMAGE        one that was built before
  --save FILE  writes the image as an archive for `docker load`, with its health check

Runs as root, and needs no container engine and no registry of images: debootstrap makes the base, and
systemd-nspawn starts the image.
"""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.abspath(sys.argv[1])
BASE = "docker.io/library/debian:12-slim"
WAIT_S = 60
# On top of the base, with the caches of apt that debootstrap's base keeps.
MOST_BYTES = 150_000_000
CONFIG = """
domain: shop
descriptors:
  - key: path
    value: /login
    rate_limit: { unit: day, requests_per_unit: 1 }
"""
# {domain: "shop", descriptors: [{entries: [{key: "path", value: "/login"}]}]}, as one gRPC message.
ENTRY = b"\x0a\x04path\x12\x06/login"
DESCRIPTOR = b"\x0a" + bytes([len(ENTRY)]) + ENTRY
REQUEST = b"\x0a\x04shop\x12" + bytes([len(DESCRIPTOR)]) + DESCRIPTOR
OVERALL_CODES = {b"\x08\x01": "OK", b"\x08\x02": "OVER_LIMIT"}
ENVIRONMENT = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}


def buildah(*arguments):
    done = subprocess.run(["buildah", *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"image: buildah {arguments[0]} failed")
    return done.stdout.strip()


def make_base():
    if subprocess.run(["buildah", "inspect", "--type", "image", BASE], env=ENVIRONMENT,
                      capture_output=True).returncode == 0:
        return
    container = buildah("from", "scratch")
    root = buildah("mount", container)
    subprocess.run(["debootstrap", "--variant=minbase", "bookworm", root], check=True,
                   stdout=subprocess.DEVNULL)
    buildah("umount", container)
    buildah("commit", "--quiet", container, BASE)
    buildah("rm", container)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def curl(*arguments):
    return subprocess.run(["curl", "--silent", *arguments], capture_output=True).stdout


def should_rate_limit(port, folder):
    path = f"{folder}/request.bin"
    with open(path, "wb") as file:
        file.write(b"\0" + len(REQUEST).to_bytes(4, "big") + REQUEST)
    answer = curl("--http2-prior-knowledge", "-H", "content-type: application/grpc", "-H",
                  "te: trailers", "--data-binary", f"@{path}", f"http://127.0.0.1:{port}"
                  "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
    return OVERALL_CODES.get(answer[5:7], answer)


def ask(image, folder):
    """What /healthcheck and two calls answer, and the exit code."""
    os.makedirs(f"{folder}/data/ratelimit/config")
    with open(f"{folder}/data/ratelimit/config/shop.yaml", "w") as file:
        file.write(CONFIG)
    # The image's user must be able to read it.
    os.chmod(folder, 0o755)
    ports = {name: free_port() for name in ("GRPC_PORT", "PORT", "DEBUG_PORT")}
    variables = {**{name: str(port) for name, port in ports.items()}, "RUNTIME_ROOT": "/data",
                 "RUNTIME_SUBDIRECTORY": "ratelimit", "USE_STATSD": "false", "LOG_LEVEL": "info",
                 **{name: "127.0.0.1" for name in ("HOST", "GRPC_HOST", "DEBUG_HOST")}}
    container = buildah("from", "--pull=never", image)
    try:
        process = subprocess.Popen(
            ["buildah", "run", "--user", "7200", "--volume", f"{folder}/data:/data:ro",
             *[f"--env={name}={value}" for name, value in variables.items()], container, "--",
             "/bin/ratelimit"], env=ENVIRONMENT, start_new_session=True)
        health = b""
        end = time.monotonic() + WAIT_S
        while health != b"OK" and process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
            health = curl(f"http://127.0.0.1:{ports['PORT']}/healthcheck")
        found = [health.decode(), *[should_rate_limit(ports["GRPC_PORT"], folder) for _ in range(2)]]
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(WAIT_S)
        return found
    finally:
        buildah("rm", container)


def serve(image, config):
    """Starts the image as docker would with --read-only. Returns what is wrong."""
    container = buildah("from", "--pull=never", image)
    nspawn = None
    try:
        nspawn = subprocess.Popen(
            ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network",
             "--read-only", "--pipe", "--directory", buildah("mount", container),
             # Not --user, which would make the user a home.
             "setpriv", f"--reuid={config['User']}", f"--regid={config['User']}", "--clear-groups",
             "--no-new-privs", "--bounding-set=-all", *config["Entrypoint"], *config["Cmd"]],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        if not nspawn.stdout.readline().startswith("ready "):
            return ["did not start"]
        with open(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children") as file:
            server = file.read().split()[0]
        wrong = []
        with open(f"/proc/{server}/status") as file:
            if f"\nUid:\t{config['User']}\t" not in file.read():
                wrong.append("runs as another user")
        with open(f"/proc/{server}/mounts") as file:
            roots = [line.split()[3].split(",") for line in file if line.split()[1] == "/"]
        if "ro" not in roots[-1]:
            wrong.append("its root can be written")
        health = subprocess.run(
            ["nsenter", "--target", server, "--mount", "--net", "--root", "--setuid", config["User"],
             "--setgid", config["User"], "--", *config["Healthcheck"]["Test"][1:]],
            capture_output=True, text=True, timeout=WAIT_S)
        if (health.returncode, health.stdout) != (0, "SERVING\n"):
            wrong.append(f"its health check says {health}")
        os.kill(int(server), getattr(signal, config["StopSignal"]))
        if nspawn.wait(WAIT_S) != 0:
            wrong.append(f"ended with {nspawn.returncode}")
        return wrong
    finally:
        if nspawn and nspawn.poll() is None:
            nspawn.terminate()
            nspawn.wait(WAIT_S)
        buildah("umount", container)
        buildah("rm", container)


def main():
    arguments = sys.argv[2:]
    archive = None
    if "--save" in arguments:
        archive = arguments[arguments.index("--save") + 1]
        arguments = arguments[:arguments.index("--save")]
    image = arguments[0] if arguments else "sluice"
    if not arguments:
        make_base()
        # The format of OCI has no health check.
        buildah("bud", "--format=docker", "--pull=never", "--build-arg", f"BASE={BASE}", "--file",
                f"{SOURCE}/deploy/Dockerfile", "--tag", image, SOURCE)
    with tempfile.TemporaryDirectory(prefix="sluice-image-") as folder:
        found = ask(image, folder)
    inspected = json.loads(buildah("inspect", "--type", "image", image))
    layers = [one["size"] for one in json.loads(inspected["Manifest"])["layers"]]
    size = sum(layers[1:])
    print(f"{image}: {sum(layers) / 1e6:.0f} MB, {size / 1e6:.0f} MB of them on top of the base")
    wrong = serve(image, inspected["Docker"]["config"])
    if size > MOST_BYTES:
        wrong.append(f"takes more than {MOST_BYTES / 1e6:.0f} MB on top of the base")
    print(f"with a read-only root: {'; '.join(wrong) or 'serves, and its health check passes'}")
    print(f"/healthcheck: {found[0]}; ShouldRateLimit with a limit of 1: {', '.join(map(str, found[1:]))}")
    if archive:
        buildah("push", image, f"docker-archive:{archive}:{image}:latest")
    return 0 if found == ["OK", "OK", "OVER_LIMIT"] and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
