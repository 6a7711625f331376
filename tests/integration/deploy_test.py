#!/usr/bin/env python3
"""Checks deploy/ and docker-compose.yml against the programs that they start.

No container engine is needed: flags are parsed by sluiced, limits by sluice, the balancer's file by
HAProxy, Redis' by a redis-server that a node then uses as the manifest's user. With --tools, also
docker-compose, check-jsonschema, kubernetes-validate and hadolint (from PATH) judge the files.

usage: deploy_test.py SOURCE_DIR BUILD_DIR [--tools] [TEST ...]
Exits with 77 if PyYAML is not here.
"""
import glob
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import yaml
except ImportError:
    print("SKIPPED: python3-yaml is not installed")
    sys.exit(77)

SOURCE, BUILD = (os.path.abspath(path) for path in sys.argv[1:3])
TOOLS = "--tools" in sys.argv
SLUICED = os.path.join(BUILD, "bin", "sluiced")
SLUICE = os.path.join(BUILD, "bin", "sluice")


def read(path):
    with open(os.path.join(SOURCE, path)) as file:
        return file.read()


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(text)
    return path


def run(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=60, **more)
    return done.returncode, done.stdout


def documents(name):
    return list(yaml.safe_load_all(read(f"deploy/kubernetes/{name}")))


def of_kind(name, kind):
    found = [one for one in documents(name) if one["kind"] == kind]
    assert len(found) == 1, (name, kind, len(found))
    return found[0]


def users_acl(password):
    """The user that redis.yaml creates."""
    text = read("deploy/kubernetes/redis.yaml")
    acl = re.search(r'users\.acl="(.*?)"', text, re.DOTALL)[1].replace("\n#   ", "\n")
    return acl.replace("$PASSWORD", password)


class DeployTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-deploy-test-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.password_file = write(self.folder, "password", "secret\n")

    def takes(self, arguments, where):
        """sluiced parses all flags before --help prints."""
        arguments = [re.sub(r"password_file=\S+", f"password_file={self.password_file}", one)
                     for one in arguments]
        code, text = run([SLUICED, *arguments, "--help"])
        self.assertEqual(code, 0, f"{where}: {text}")

    def checks(self, limits, where):
        code, text = run([SLUICE, "check", write(self.folder, "limits.yaml", limits)])
        self.assertEqual(code, 0, f"{where}: {text}")

    def has_flag(self, arguments, name):
        values = [one.split("=", 1)[1] for one in arguments if one.startswith(f"--{name}=")]
        self.assertEqual(len(values), 1, (name, arguments))
        return values[0]

    def test_detects_an_unknown_flag(self):
        with self.assertRaisesRegex(AssertionError, "no such flag"):
            self.takes(["--listenn=127.0.0.1:0"], "here")

    # ---- docker-compose.yml ----

    def test_compose_nodes_match_the_load_balancer(self):
        services = yaml.safe_load(read("docker-compose.yml"))["services"]
        nodes = [name for name in services if name.startswith("sluice")]
        self.assertEqual(len(nodes), 3)
        for name in nodes:
            arguments = services[name]["command"]
            self.takes(arguments, name)
            self.assertEqual(self.has_flag(arguments, "store"), "redis://redis:6379")
            limits = self.has_flag(arguments, "limits")
            source, target, _ = services[name]["volumes"][0].split(":")
            self.checks(read(os.path.join(source, os.path.relpath(limits, target))), name)
            self.assertIn("store", services[name]["networks"])
        balanced = {value for key, value in services["haproxy"]["environment"].items()
                    if key.startswith("SLUICE_NODE")}
        self.assertEqual(balanced, {f"{name}:7200" for name in nodes})
        for name, service in services.items():
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                if source.startswith("."):
                    self.assertTrue(os.path.exists(os.path.join(SOURCE, source)), (name, volume))
            self.assertTrue(service["read_only"], name)
            self.assertEqual(service["cap_drop"], ["ALL"], name)
        self.assertEqual(services["redis"]["networks"], ["store"])
        self.assertTrue(yaml.safe_load(read("docker-compose.yml"))["networks"]["store"]["internal"])

    def test_compose_prometheus_scrapes_the_nodes(self):
        services = yaml.safe_load(read("docker-compose.yml"))["services"]
        scraped = yaml.safe_load(read("deploy/prometheus/prometheus.yml"))["scrape_configs"]
        nodes = {f"{name}:{self.has_flag(one['command'], 'metrics_listen').rsplit(':')[-1]}"
                 for name, one in services.items() if name.startswith("sluice")}
        self.assertEqual([set(scraped[0]["static_configs"][0]["targets"])], [nodes])
        for name in ("prometheus", "grafana"):
            self.assertIn("calls", services[name]["networks"])

    def test_compose_demo_runs_an_existing_command(self):
        demo = yaml.safe_load(read("docker-compose.yml"))["services"]["demo"]
        command = [SLUICE, *demo["entrypoint"][1:], *demo["command"]]
        # No server listens there: the command fails at the call.
        command = [re.sub(r"haproxy:7200", "127.0.0.1:1", one) for one in command]
        code, text = run(command + ["--deadline=200ms"])
        self.assertEqual(code, 3, text)

    def test_haproxy_accepts_its_file(self):
        haproxy = shutil.which("haproxy") or "/usr/sbin/haproxy"
        environment = {"SLUICE_BIND": "127.0.0.1:7200", "SLUICE_NODE1": "127.0.0.1:1",
                       "SLUICE_NODE2": "no-such-host.invalid:2", "SLUICE_NODE3": "127.0.0.1:3"}
        code, text = run([haproxy, "-c", "-f", os.path.join(SOURCE, "deploy", "haproxy.cfg")],
                         env={**os.environ, **environment})
        self.assertEqual(code, 0, text)

    # ---- Dockerfile ----

    def test_image_runs_unprivileged_with_a_health_check(self):
        text = read("deploy/Dockerfile").replace("\\\n", " ")
        final = text[text.rindex("\nFROM "):]
        lines = dict(line.split(" ", 1) for line in final.splitlines()
                     if re.match(r"(USER|ENTRYPOINT|CMD|HEALTHCHECK) ", line))
        self.assertGreater(int(lines["USER"]), 0)
        self.takes(yaml.safe_load(lines["CMD"]), "Dockerfile")
        health = yaml.safe_load(lines["HEALTHCHECK"].split("CMD", 1)[1])
        self.assertEqual(run([SLUICE, *health[1:], "--server=127.0.0.1:1"])[0], 3)

    # Their digests are not known here yet.
    WITHOUT_DIGEST = {"haproxy", "prom/prometheus", "grafana/grafana", "envoyproxy/envoy"}

    def test_images_of_others_are_named_by_digest(self):
        names = [one["image"] for path in ("docker-compose.yml", "deploy/envoy/docker-compose.yml")
                 for one in yaml.safe_load(read(path))["services"].values()]
        names += [re.search(r"ARG BASE=(.*)", read("deploy/Dockerfile"))[1],
                  of_kind("redis.yaml", "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
                  ["image"]]
        self.assertIn("FROM ${BASE}\n", read("deploy/Dockerfile"))
        pinned = {one.split(":")[0] for one in names if re.search(r"@sha256:[0-9a-f]{64}$", one)}
        self.assertEqual({one.split(":")[0] for one in names} - self.WITHOUT_DIGEST - {"sluice"},
                         pinned)

    # ---- Kubernetes ----

    def test_kubernetes_manifests_are_consistent(self):
        deployment = of_kind("sluice.yaml", "Deployment")
        pod = deployment["spec"]["template"]
        labels = pod["metadata"]["labels"]
        for kind in ("PodDisruptionBudget", "Service"):
            selector = of_kind("sluice.yaml", kind)["spec"]["selector"]
            self.assertLessEqual((selector.get("matchLabels") or selector).items(), labels.items())
        self.assertEqual(deployment["spec"]["selector"]["matchLabels"], labels)
        container = pod["spec"]["containers"][0]
        self.takes(container["args"], "Deployment")
        self.assertIn("password_file=/etc/sluice-redis/password",
                      self.has_flag(container["args"], "store"))
        self.checks(of_kind("sluice.yaml", "ConfigMap")["data"]["limits.yaml"], "ConfigMap")
        mounted = {one["name"] for one in container["volumeMounts"]}
        self.assertEqual(mounted, {one["name"] for one in pod["spec"]["volumes"]})
        # The Redis that --store names exists, and accepts the nodes.
        service = of_kind("redis.yaml", "Service")
        self.assertIn(f"@{service['metadata']['name']}:{service['spec']['ports'][0]['port']}?",
                      self.has_flag(container["args"], "store"))
        redis = of_kind("redis.yaml", "StatefulSet")["spec"]["template"]
        self.assertEqual(service["spec"]["selector"], redis["metadata"]["labels"])
        policy = of_kind("redis.yaml", "NetworkPolicy")["spec"]
        self.assertEqual(policy["podSelector"]["matchLabels"], redis["metadata"]["labels"])
        self.assertEqual(policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"], labels)

    def test_redis_users_are_as_documented(self):
        granted = re.findall(r"\+\S+", users_acl("x"))
        documented = re.search(r"ACL SETUSER node on >PASSWORD ~sluice:\* (.*)",
                               read("docs/redis.md"))[1]
        self.assertEqual(granted, documented.split())

    def test_node_has_all_permissions_on_the_redis_of_the_manifest(self):
        config = of_kind("redis.yaml", "ConfigMap")["data"]["redis.conf"]
        config = config.replace("dir /data", f"dir {self.folder}").replace(
            "/etc/sluice-redis", self.folder)
        write(self.folder, "users.acl",
              users_acl("secret") + "\nuser looker on >looker +acl|log +config|get\n")
        path = os.path.join(self.folder, "redis.sock")
        redis = subprocess.Popen(
            ["redis-server", write(self.folder, "redis.conf", config), "--port", "0",
             "--unixsocket", path], stdout=subprocess.DEVNULL)
        self.addCleanup(lambda: (redis.kill(), redis.wait()))
        deadline = time.monotonic() + 20
        while True:  # for the socket's file
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(path)
                break
            except OSError:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
        limits = write(self.folder, "limits.yaml",
                       of_kind("sluice.yaml", "ConfigMap")["data"]["limits.yaml"] +
                       "  - { name: log, algorithm: sliding_log, rate: 5/h }\n"
                       "  - { name: window, algorithm: sliding_window, rate: 5/h }\n"
                       "  - { name: fixed, algorithm: fixed_window, rate: 5/h }\n")
        node = subprocess.Popen(
            # Generous, since a busy machine is slow.
            [SLUICED, f"--limits={limits}", "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0",
             "--http_listen=127.0.0.1:0",
             "--redis_budget=5s",
             f"--store=unix://node@{path}?password_file={self.password_file}"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (node.kill(), node.communicate()))
        ready = node.stdout.readline()
        self.assertTrue(ready.startswith("ready "), node.poll())
        ports = dict(field.split("=", 1) for field in ready.split()[1:])
        env = {**os.environ, "SLUICE_SERVER": ports["data"], "SLUICE_ADMIN": ports["admin"]}

        def sluice(arguments, codes=(0,)):
            code, text = run([SLUICE, "--deadline=20s", *shlex.split(arguments)], env=env)
            self.assertIn(code, codes, f"{arguments}: {text}")
            return text
        for limit in ("api", "log", "window", "fixed"):
            for _ in range(2):
                text = sluice(f"acquire {limit} me --receipt")
            receipt = re.search(r"receipt\s+(\S+)", text)[1]
            sluice(f"query {limit} me")
            sluice(f"refund {receipt}", (0, 1))  # 1: the bucket was refilled, nothing to give back
        sluice("limits put mine --rate 5/h")
        sluice("acquire mine me")
        sluice("limits put mine --rate 6/h --algorithm sliding_log")
        sluice("acquire mine me")
        sluice("reset mine me")
        node.send_signal(signal.SIGINT)
        self.assertEqual(node.wait(20), 0)
        self.assertNotIn("secret", node.stderr.read())
        code, refused = run(["redis-cli", "-s", path, "--user", "looker", "--pass", "looker",
                             "--no-auth-warning", "acl", "log"])
        self.assertEqual((code, refused.strip()), (0, ""))
        policy = run(["redis-cli", "-s", path, "--user", "looker", "--pass", "looker",
                      "--no-auth-warning", "config", "get", "append*"])[1]
        self.assertIn("appendfsync\nalways", policy)
        self.assertIn("appendonly\nyes", policy)

    # ---- Envoy: tests/envoy runs envoy.yaml and the patches for Istio ----

    def test_envoy_limits_are_valid(self):
        self.checks_rate_limits(read("deploy/envoy/ratelimit/config/example.yaml"), "example.yaml")
        documents = list(yaml.safe_load_all(read("deploy/envoy/istio.yaml")))
        config = [one for one in documents if one["kind"] == "ConfigMap"][0]
        self.checks_rate_limits(config["data"]["config.yaml"], "istio.yaml")

    def checks_rate_limits(self, limits, where):
        path = write(self.folder, "ratelimit.yaml", limits)
        self.starts(f"--ratelimit_config={path}", where=where)

    def starts(self, *flags, where=""):
        """A server starts with them."""
        server = subprocess.Popen(
            [SLUICED, *flags, "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0",
             "--http_listen=127.0.0.1:0"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (server.kill(), server.communicate()))
        if not server.stdout.readline().startswith("ready "):
            self.fail(f"{where}: {server.communicate()[1]}")

    def test_envoy_compose_starts_what_the_files_name(self):
        services = yaml.safe_load(read("deploy/envoy/docker-compose.yml"))["services"]
        service = services["ratelimit"]
        self.assertEqual(service["entrypoint"], ["/bin/ratelimit"])
        self.assertIn("/bin/ratelimit", read("deploy/Dockerfile"))
        folder = "{RUNTIME_ROOT}/{RUNTIME_SUBDIRECTORY}".format(**service["environment"])
        self.assertEqual(service["volumes"], [f"./ratelimit:{folder}:ro"])
        envoy = yaml.safe_load(read("deploy/envoy/envoy.yaml"))["static_resources"]
        addresses = re.findall(r"address: (\S+), port_value: (\d+)", read("deploy/envoy/envoy.yaml"))
        self.assertIn(("ratelimit", "8081"), addresses)
        self.assertEqual(services["envoy"]["ports"], ["127.0.0.1:8000:8000"])
        self.assertEqual(envoy["listeners"][0]["address"]["socket_address"]["port_value"], 8000)
        health = [one.replace("8081", "1") for one in service["healthcheck"]["test"][2:]]
        self.assertEqual(run([SLUICE, *health])[0], 3)  # a command of sluice; no server is there
        for name, one in services.items():
            self.assertTrue(one["read_only"], name)
            self.assertEqual(one["cap_drop"], ["ALL"], name)

    def test_istio_files_are_consistent(self):
        documents = list(yaml.safe_load_all(read("deploy/envoy/istio.yaml")))
        kinds = {one["kind"]: one for one in documents if one["kind"] != "EnvoyFilter"}
        pod = kinds["Deployment"]["spec"]["template"]
        self.assertEqual(kinds["Service"]["spec"]["selector"], pod["metadata"]["labels"])
        container = pod["spec"]["containers"][0]
        variables = {one["name"]: one["value"] for one in container["env"]}
        self.assertEqual(container["volumeMounts"][0]["mountPath"],
                         "{RUNTIME_ROOT}/{RUNTIME_SUBDIRECTORY}/config".format(**variables))
        self.assertEqual(pod["spec"]["volumes"][0]["configMap"]["name"],
                         kinds["ConfigMap"]["metadata"]["name"])
        port = kinds["Service"]["spec"]["ports"][0]["port"]
        host = "{name}.{namespace}.svc.cluster.local".format(**kinds["Service"]["metadata"])
        self.assertIn(f"cluster_name: outbound|{port}||{host}\n", read("deploy/envoy/istio.yaml"))

    # ---- systemd ----

    def test_systemd_unit(self):
        unit = read("deploy/systemd/sluiced.service")
        line = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1]
        for store in re.findall(r"SLUICE_STORE=([^\s\"]+)",
                                unit + read("deploy/systemd/redis.conf")):
            line = line.replace(" $SLUICE_FLAGS", "")
            # As redis.conf empties it.
            state = "" if store.startswith("redis") else f"--state_dir={self.folder}/state"
            with_store = line.replace("${SLUICE_STORE}", store).replace("$SLUICE_STATE", state)
            self.takes(shlex.split(with_store)[1:], "ExecStart")
        self.assertIn("Environment=SLUICE_STATE=--state_dir=/var/lib/sluiced\n", unit)
        self.assertIn("StateDirectory=sluiced\n", unit)
        self.assertIn("Environment=SLUICE_STATE=\n", read("deploy/systemd/redis.conf"))
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd-analyze is not here")
        write(self.folder, "sluiced.service", unit.replace("/usr/local/bin/sluiced", SLUICED))
        os.mkdir(os.path.join(self.folder, "sluiced.service.d"))
        write(self.folder, "sluiced.service.d/redis.conf", read("deploy/systemd/redis.conf"))
        path = os.path.join(self.folder, "sluiced.service")
        code, text = run(["systemd-analyze", "verify", "--man=no", path])
        self.assertEqual((code, text), (0, ""))
        code, text = run(["systemd-analyze", "security", "--offline=true", "--threshold=15", path])
        self.assertEqual(code, 0, text[-400:])

    def test_systemd_sockets_are_those_of_the_service(self):
        unit = read("deploy/systemd/sluiced.service")
        for name, port, flag in (("sluiced", "data", "listen"), ("sluiced-http", "http", "http_listen"),
                                 ("sluiced-admin", "admin", "admin_listen")):
            text = read(f"deploy/systemd/{name}.socket")
            address = re.search(r"(?m)^ListenStream=(\S+)$", text)[1]
            self.assertIn(f"\nFileDescriptorName={port}\n", text)
            self.assertIn("\nService=sluiced.service\n", text)
            self.assertIn(f" --{flag}={address} ", unit)
            write(self.folder, f"{name}.socket", text)
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd-analyze is not here")
        write(self.folder, "sluiced.service", unit.replace("/usr/local/bin/sluiced", SLUICED))
        for name in ("sluiced", "sluiced-http", "sluiced-admin"):
            path = os.path.join(self.folder, f"{name}.socket")
            code, text = run(["systemd-analyze", "verify", "--man=no", path])
            self.assertEqual((code, text), (0, ""))

    def test_systemd_unit_bounds_memory_files_and_dumps(self):
        unit = read("deploy/systemd/sluiced.service")
        self.assertRegex(unit, r"(?m)^MemoryMax=\d+%$")
        self.assertRegex(unit, r"(?m)^LimitCORE=0$")
        self.assertRegex(unit, r"(?m)^MemorySwapMax=0$")
        files = int(re.search(r"(?m)^LimitNOFILE=(\d+)$", unit)[1])
        connections = int(re.search(r"--max_connections=N +.*default (\d+)",
                                    run([SLUICED, "--help"])[1])[1])
        self.assertGreater(files, connections + 11000)

    def test_systemd_unit_shows_users_and_boots_and_has_folders(self):
        lines = read("deploy/systemd/sluiced.service").splitlines()
        unit = dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))
        # A user namespace shows other users as 65534: no `uid` of the clients file would match.
        self.assertNotIn("PrivateUsers", unit)
        # The boot id is in /proc/sys.
        self.assertNotEqual(unit.get("ProcSubset", "all"), "pid")
        self.assertEqual(unit["ProtectSystem"], "strict")
        for kind, folder in (("State", "/var/lib/sluiced"), ("Logs", "/var/log/sluiced"),
                             ("Runtime", "/run/sluiced")):
            self.assertEqual(unit[f"{kind}Directory"], os.path.basename(folder))
            if kind != "Runtime":
                self.assertIn(folder, read("deploy/debian/sluice-server.postrm"))

    # ---- Debian ----

    def test_debian_package_has_the_version_of_the_build(self):
        version = re.search(r"project\(Sluice VERSION ([\d.]+)", read("CMakeLists.txt"))[1]
        self.assertIn(f"sluice ({version}) ", read("deploy/debian/changelog").splitlines()[0])
        chart = yaml.safe_load(read("deploy/helm/Chart.yaml"))
        self.assertEqual((chart["version"], chart["appVersion"]), (version, version))

    def test_debian_library_package_is_named_after_its_soname(self):
        major = re.search(r" SOVERSION (\d+)\n", read("client/CMakeLists.txt"))[1]
        self.assertIn(f"\nPackage: libsluice{major}\n", read("deploy/debian/control"))
        self.assertTrue(read(f"deploy/debian/libsluice{major}.symbols").startswith(
            f"libsluice.so.{major} libsluice{major} "))
        for path in ("client/include/sluice/sluice.h", "docs/languages.md",
                     "client/examples/ctypes_quickstart.py"):
            self.assertEqual(set(re.findall(r"libsluice\.so\.(\d+)", read(path))), {major}, path)

    # ---- Helm ----

    def rendered(self, *settings):
        """The documents of the chart, by kind."""
        helm = shutil.which("helm")
        if not helm:
            self.skipTest("helm is not here")
        values = [word for one in settings for word in ("--set", one)]
        done = subprocess.run([helm, "template", "s", "deploy/helm",
                               "--kube-version=1.30", *values], cwd=SOURCE,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        if done.returncode != 0:
            raise ValueError(done.stderr)
        path = write(self.folder, "chart.yaml", done.stdout)
        return path, {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}

    REDIS = ("store.kind=redis", "replicas=3")
    CLIENTS = "clients: [{name: app, dns_san: app, limits: [api], calls: [acquire]}]"
    EVERYTHING = (*REDIS, "clients=" + CLIENTS.replace(",", "\\,"), "auditLog=true",
                  "autoscaling.enabled=true", "serviceMonitor.enabled=true",
                  "adminToken.secretName=admin", "tls.secretName=tls", "tls.clientCa=true",
                  "flags={--redis_budget=50ms}",
                  "networkPolicy.clients[0].podSelector.matchLabels.a=b",
                  "image.digest=sha256:" + 64 * "0")

    def test_chart_starts_sluiced_with_flags_that_it_knows(self):
        for settings in ((), self.REDIS, self.EVERYTHING):
            _, kinds = self.rendered(*settings)
            pod = kinds["Deployment"]["spec"]["template"]
            container = pod["spec"]["containers"][0]
            self.takes(container["args"], settings)
            self.checks(kinds["ConfigMap"]["data"]["limits.yaml"], settings)
            self.assertEqual({one["name"] for one in container["volumeMounts"]},
                             {one["name"] for one in pod["spec"]["volumes"]})
            selector = kinds["Deployment"]["spec"]["selector"]["matchLabels"]
            self.assertLessEqual(selector.items(), pod["metadata"]["labels"].items())
            self.assertEqual(kinds["Service"]["spec"]["selector"], selector)
            self.assertEqual(kinds["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"], selector)
            ports = {one["name"] for one in container["ports"]}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                self.assertIn(container[probe]["httpGet"]["port"], ports)
        self.assertEqual({"HorizontalPodAutoscaler", "PodDisruptionBudget", "ServiceMonitor"} -
                         kinds.keys(), set())
        self.assertIn("password_file=/etc/sluice-redis/password",
                      self.has_flag(container["args"], "store"))
        self.assertEqual(self.has_flag(container["args"], "audit_log"), "-")
        config = kinds["ConfigMap"]["data"]
        folder = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}["limits"]
        self.assertEqual(self.has_flag(container["args"], "clients"), f"{folder}/clients.yaml")
        self.starts(f"--limits={write(self.folder, 'limits.yaml', config['limits.yaml'])}",
                    f"--clients={write(self.folder, 'clients.yaml', config['clients.yaml'])}")
        for volume in pod["spec"]["volumes"]:
            if "secret" in volume:
                self.assertEqual(volume["secret"]["defaultMode"], 0o440, volume)
        self.assertNotIn("replicas", kinds["Deployment"]["spec"])  # the autoscaler's

    def test_chart_refuses_what_would_grant_too_much_or_show_a_password(self):
        for settings, text in (
                (("replicas=2",), "store.kind memory is for one node"),
                (("autoscaling.enabled=true",), "store.kind memory is for one node"),
                (("tls.clientCa=true",), "tls.clientCa needs tls.secretName"),
                ((*self.REDIS, "store.url=redis://node:secret@redis:6379"), "store.url"),
                (("replica=3",), "replica")):
            with self.assertRaisesRegex(ValueError, text):
                self.rendered(*settings)
        _, kinds = self.rendered()
        self.assertEqual(kinds["Deployment"]["spec"]["strategy"], {"type": "Recreate"})
        self.assertNotIn("PodDisruptionBudget", kinds)

    # ---- other programs that check the files ----

    def judged_by(self, *command):
        if not TOOLS:
            self.skipTest("without --tools")
        code, text = run(command, cwd=SOURCE)
        self.assertEqual(code, 0, text)

    def test_docker_compose_accepts_the_file(self):
        self.judged_by("docker-compose", "config", "--quiet")
        self.judged_by("docker-compose", "-f", "deploy/envoy/docker-compose.yml", "config", "--quiet")

    def test_check_jsonschema_accepts_the_file(self):
        self.judged_by("check-jsonschema", "--builtin-schema", "vendor.compose-spec",
                       "docker-compose.yml", "deploy/envoy/docker-compose.yml")

    def test_kubernetes_validate_accepts_the_file(self):
        self.judged_by("kubernetes-validate", "--strict", "deploy/kubernetes/redis.yaml",
                       "deploy/kubernetes/sluice.yaml", "deploy/envoy/envoy-gateway.yaml",
                       self.without_own_kinds("deploy/envoy/istio.yaml"))

    def without_own_kinds(self, path):
        """A copy of the file without the kinds that only Istio knows."""
        known = [one for one in yaml.safe_load_all(read(path)) if one["kind"] != "EnvoyFilter"]
        return write(self.folder, "known.yaml", yaml.safe_dump_all(known))

    def schemas_of(self, kinds):
        """A folder of schemas for kubeconform: those that kubernetes-validate brings along, so that
        nothing is downloaded, with the definitions that they refer to."""
        tools = os.path.dirname(os.path.dirname(shutil.which("kubernetes-validate")))
        newest = max(glob.glob(f"{tools}/lib/python*/site-packages/kubernetes_validate/"
                               "kubernetes-json-schema/v1.*-local-strict"))

        def schema(name):
            with open(os.path.join(newest, name)) as file:
                return json.loads(file.read().replace("/api/_definitions.json", ""))
        folder = tempfile.mkdtemp(dir=self.folder)
        definitions = schema("_definitions.json")["$defs"]
        for kind in kinds:
            for path in glob.glob(f"{newest}/{kind.lower()}-*.json"):
                name = os.path.basename(path)
                write(folder, name, json.dumps({**schema(name), "$defs": definitions}))
        return folder

    def test_helm_and_kubeconform_accept_the_chart(self):
        self.judged_by("helm", "lint", "--strict", "deploy/helm")
        for settings in ((), self.REDIS, self.EVERYTHING):
            path, documents = self.rendered(*settings)
            schemas = self.schemas_of(documents) + "/{{.ResourceKind}}{{.KindSuffix}}.json"
            self.judged_by("kubeconform", "-strict", "-summary", "-skip", "ServiceMonitor",
                           "-schema-location", schemas, path)
            kinds = [one for kind, one in documents.items() if kind != "ServiceMonitor"]
            self.judged_by("kubernetes-validate", "--strict",
                           write(self.folder, "known.yaml", yaml.safe_dump_all(kinds)))

    def test_spdx_tools_accepts_the_list_of_libraries(self):
        if not TOOLS:
            self.skipTest("without --tools")
        code, text = run([sys.executable, os.path.join(SOURCE, "deploy", "spdx.py"), "0.1.0",
                          SLUICED, SLUICE])
        self.assertEqual(code, 0, text)
        self.judged_by("pyspdxtools", "--infile",
                       write(self.folder, "sluice.spdx.json", text))

    def test_hadolint_accepts_the_file(self):
        # The release determines the versions of Debian's packages.
        self.judged_by("hadolint", "--ignore", "DL3008", "deploy/Dockerfile")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + [one for one in sys.argv[3:] if one != "--tools"],
                  verbosity=2)
