"""A real sluiced with limits and load, and a real headless Chromium, for the tests of the page."""
import base64
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOKEN = "the-token-of-the-page-tests-0123456789"


class Server:
    """A sluiced on loopback, stopped by its id."""

    def __init__(self, build, limits, port=0, token=True, store="memory", ratelimit=None):
        """`ratelimit`: Envoy's rate-limit configuration."""
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-page-")
        self.limits = os.path.join(self.folder.name, "limits.yaml")
        self.write_limits(limits)
        token_file = os.path.join(self.folder.name, "token")
        with open(token_file, "w", encoding="utf-8") as file:
            file.write(TOKEN + "\n")
        os.chmod(token_file, 0o600)
        flags = [f"--admin_token_file={token_file}"] if token else []
        if ratelimit is not None:
            flags.append(f"--ratelimit_config={self.folder.name}/ratelimit.yaml")
            with open(f"{self.folder.name}/ratelimit.yaml", "w", encoding="utf-8") as file:
                file.write(ratelimit)
        self.log = open(os.path.join(self.folder.name, "log"), "w+b")
        self.process = subprocess.Popen(
            [os.path.join(build, "bin", "sluiced"), f"--limits={self.limits}",
             f"--store={store}", "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0",
             f"--http_listen=127.0.0.1:{port}", *flags],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        ready = self.process.stdout.readline()
        if not ready.startswith("ready "):
            self.log.seek(0)
            raise RuntimeError(f"sluiced did not start: {self.log.read().decode()}")
        self.ports = dict(word.split("=", 1) for word in ready.split()[1:])
        self.url = f"http://{self.ports['http']}"
        self.build = build

    def write_limits(self, text):
        # In one step, so that the server never sees half a file.
        with open(self.limits + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(self.limits + ".new", self.limits)

    def call(self, method, token=False, **request):
        """A unary RPC in JSON. Raises urllib.error.HTTPError."""
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {TOKEN}"
        call = urllib.request.Request(f"{self.url}/v1/{method}", json.dumps(request).encode(), headers)
        with urllib.request.urlopen(call, timeout=10) as answer:
            return json.load(answer)

    def acquire(self, limit, key, permits=1, **more):
        return self.call("acquire", charges=[{"limit": limit, "key": key, "permits": permits}], **more)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return answer.status, dict(answer.headers), answer.read()

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def load(self, limit, rate, keys=50):
        """Acquires at `rate` per second until the returned process is ended."""
        return subprocess.Popen(
            [os.path.join(self.build, "bin", "sluice"), "bench", limit, f"--rate={rate}/s",
             "--duration=600s", f"--keys={keys}", f"--server={self.ports['data']}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # without the notice to balancers
            self.process.wait(timeout=30)
        self.process.stdout.close()
        self.log.close()
        self.folder.cleanup()


class Redis:
    """A redis-server on a Unix socket, stopped by its id."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-page-redis-")
        self.socket = os.path.join(self.folder.name, "socket")
        self.url = f"unix://{self.socket}"
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", self.socket, "--save", "",
             "--appendonly", "yes", "--dir", self.folder.name], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while subprocess.run(["redis-cli", "-s", self.socket, "ping"], capture_output=True,
                             check=False).stdout != b"PONG\n":
            if time.monotonic() > deadline:
                raise RuntimeError("redis-server does not answer")
            time.sleep(0.05)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=30)

    def close(self):
        self.stop()
        self.folder.cleanup()


class Held:
    """Callers that the server holds until their grant time, each on a thread."""

    def __init__(self, server, limit, key, callers):
        self.threads = [threading.Thread(target=self.wait, args=(server, limit, key), daemon=True)
                        for _ in range(callers)]
        for thread in self.threads:
            thread.start()

    @staticmethod
    def wait(server, limit, key):
        try:
            request = json.dumps({"charges": [{"limit": limit, "key": key}], "maxWait": "60s",
                                  "hold": True}).encode()
            urllib.request.urlopen(urllib.request.Request(
                f"{server.url}/v1/acquire", request, {"Content-Type": "application/json"}),
                timeout=90).read()
        except (urllib.error.URLError, OSError):
            pass  # the server stopped


class Browser:
    def __init__(self, width=1280, height=900, dark=False, phone=False):
        options = Options()
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                         f"--window-size={width},{height}"):
            options.add_argument(argument)
        if dark:
            options.add_argument("--blink-settings=preferredColorScheme=0")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
        self.width = width
        if phone:
            self.width = 390
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                "width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True})

    def open(self, address):
        self.driver.get("about:blank")
        self.driver.get(address)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def text(self, selector="main"):
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def wait(self, what, done, seconds=20):
        """Waits until done() is true; fails with `what` and the page's text."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = done()
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"{what}: not within {seconds} s. The page says:\n{self.text('body')[:2000]}")

    def wait_text(self, text, selector="main", seconds=20):
        return self.wait(f"{selector} has the text {text!r}", lambda: text in self.text(selector), seconds)

    def wait_live(self):
        self.wait("the page is live", lambda: self.text("#connection") == "live")

    def click(self, text, kind="button, a, summary"):
        """Clicks the element with this text."""
        def find():
            return self.run(
                "return [...document.querySelectorAll(arguments[0])].findLast("
                "(one) => one.innerText.trim() === arguments[1] && one.offsetParent !== null)", kind, text)
        self.wait(f"there is a {text!r} to click", find).click()

    def type(self, selector, text):
        field = self.wait(f"there is {selector}", lambda: self.run("return document.querySelector(arguments[0])", selector))
        field.clear()
        field.send_keys(text)

    def fact(self, label):
        """The value of a fact or tile, by its label."""
        return self.run(
            "const name = [...document.querySelectorAll('dt')].find((one) => one.innerText === arguments[0]);"
            "return name?.nextElementSibling?.innerText ?? ''", label)

    def errors(self):
        """Lines of the console since the last call that no page should have."""
        return [line["message"] for line in self.driver.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]

    def screenshot(self, path):
        height = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]["height"]
        picture = self.driver.execute_cdp_cmd("Page.captureScreenshot", {
            "captureBeyondViewport": True,
            "clip": {"x": 0, "y": 0, "width": self.width, "height": min(height, 4000), "scale": 1}})
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))

    def close(self):
        self.driver.quit()
