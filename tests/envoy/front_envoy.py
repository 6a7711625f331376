"""Starts a real Envoy with a rate-limit filter before a small application."""
import json
import os
import subprocess
import urllib.error
import urllib.request

from limiter import WAIT_S, await_true, free_port

TYPE = "type.googleapis.com/envoy."
MANAGER = TYPE + "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ROUTER = {"name": "envoy.filters.http.router",
          "typed_config": {"@type": TYPE + "extensions.filters.http.router.v3.Router"}}
HTTP2 = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
    "@type": TYPE + "extensions.upstreams.http.v3.HttpProtocolOptions",
    "explicit_http_config": {"http2_protocol_options": {}}}}


def address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def listener(name, port, routes, filters=()):
    return {"name": name, "address": address(port), "filter_chains": [{"filters": [{
        "name": "http", "typed_config": {
            "@type": MANAGER, "stat_prefix": name, "http_filters": [*filters, ROUTER],
            "route_config": {"virtual_hosts": [
                {"name": name, "domains": ["*"], "routes": routes}]}}}]}]}


def cluster(name, ports, **more):
    return {"name": name, "type": "STATIC", "connect_timeout": "1s", **more,
            "load_assignment": {"cluster_name": name, "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": address(port)}} for port in ports]}]}}


def limit_filter(**more):
    """The rate-limit filter, with its own default of 20 ms for the time-out."""
    return {"name": "envoy.filters.http.ratelimit", "typed_config": {
        "@type": TYPE + "extensions.filters.http.ratelimit.v3.RateLimit", "domain": "test",
        "rate_limit_service": {"transport_api_version": "V3", "grpc_service": {
            "envoy_grpc": {"cluster_name": "limiter"}}}, **more}}


def route(prefix, *limits, metadata=None):
    one = {"match": {"prefix": prefix}, "route": {"cluster": "application"}}
    # The only place where Envoy reads hits_addend and apply_on_stream_done. `rate_limits` of the
    # route itself are read too.
    if any("hits_addend" in limit for limit in limits):
        one["typed_per_filter_config"] = {"envoy.filters.http.ratelimit": {
            "@type": TYPE + "extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
            "rate_limits": list(limits)}}
    else:
        one["route"]["rate_limits"] = list(limits)
    if metadata:
        one["metadata"] = {"filter_metadata": metadata}
    return one


def limit(*actions, **more):
    return {"actions": list(actions), **more}


def text(value, key="generic_key"):
    return {"generic_key": {"descriptor_key": key, "descriptor_value": value}}


def tested(routes, filters, limiter_ports, application, ports, admin_port):
    """A configuration with a listener for each rate-limit filter, and a small application."""
    # The cost of each answer is in its header, as some applications of language models do.
    answer = [{"match": {"prefix": "/"}, "direct_response": {"status": 200},
               "response_headers_to_add": [{"header": {"key": "x-tokens", "value": "7"}}]}]
    health = {"health_checks": [{
        "timeout": "5s", "interval": "0.2s", "no_traffic_interval": "0.2s",
        "unhealthy_threshold": 1, "healthy_threshold": 1,
        "grpc_health_check": {"service_name": "ratelimit"}}]} if len(limiter_ports) > 1 else {}
    return {"admin": {"address": address(admin_port)},
            "static_resources": {
                "listeners": [listener("application", application, answer)] + [
                    listener(name, ports[name], routes, [limit_filter(**options)])
                    for name, options in filters.items()],
                "clusters": [cluster("application", [application]),
                             cluster("limiter", limiter_ports,
                                     typed_extension_protocol_options=HTTP2, **health)]}}


class Envoy:
    """A real Envoy with a configuration whose administration port is `admin_port`."""

    def __init__(self, program, folder, config, admin_port, hot_restart=False):
        self.program, self.folder = program, folder
        self.config, self.admin_port, self.hot_restart = config, admin_port, hot_restart
        self.processes = []
        self.start()

    @classmethod
    def with_filters(cls, program, folder, routes, filters, limiter_ports, hot_restart=False):
        """`filters`: options of a rate-limit filter by the name of its listener, as in `ports`."""
        ports = {name: free_port() for name in filters}
        admin_port = free_port()
        config = tested(routes, filters, limiter_ports, free_port(), ports, admin_port)
        made = cls(program, folder, config, admin_port, hot_restart)
        made.ports = ports
        return made

    def start(self):
        """Starts Envoy; with hot_restart a second call starts the next generation."""
        epoch = len(self.processes)
        path = f"{self.folder}/envoy.json"
        with open(path, "w") as out:
            json.dump(self.config, out)
        command = [self.program, "-c", path, "--concurrency", "1", "-l", "warning"]
        if self.hot_restart:
            base = os.getpid() % 30000
            command += ["--base-id", str(base), "--restart-epoch", str(epoch), "--drain-time-s", "2",
                        "--parent-shutdown-time-s", "4"]
        else:
            command += ["--disable-hot-restart"]
        with open(f"{self.folder}/envoy.log", "a") as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        await_true(f"Envoy; see {self.folder}/envoy.log", lambda: self.is_ready(epoch))

    def is_ready(self, epoch):
        if self.processes[-1].poll() is not None:
            with open(f"{self.folder}/envoy.log") as log:
                raise AssertionError(f"Envoy ended: {log.read()[-3000:]}")
        try:
            found = json.loads(self.admin("/server_info"))
            return found["state"] == "LIVE" and \
                found["command_line_options"].get("restart_epoch", 0) == epoch
        except (urllib.error.URLError, ConnectionError):
            return False

    def admin(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}") as answer:
            return answer.read().decode()

    def counters(self):
        """What Envoy counted of the rate-limit service: ok, over_limit, error."""
        lines = self.admin("/stats?filter=ratelimit").splitlines()
        found = dict(line.split(": ") for line in lines if ": " in line)
        return {name.rsplit(".", 1)[1]: int(value) for name, value in found.items()
                if name.startswith("cluster.application.ratelimit.")}

    def healthy_limiters(self):
        stats = self.admin("/stats?filter=cluster.limiter.membership_healthy")
        return int(stats.split(": ")[1])

    def stop(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(WAIT_S)
