#!/usr/bin/env python3
"""Takes the screenshots of docs/images: of a real server, under load.

  screenshots.py --build build [--seconds 90] [--out docs/images]
"""
import argparse
import os
import time

from programs import ROOT, Browser, Held, Server

LIMITS = """limits:
  - { name: api, rate: 100/s, burst: 200, charges: [overall], keys: { "user:42": { rate: 1000/s, burst: 2000 } } }
  - { name: overall, rate: 5000/s }
  - { name: login, rate: 5/m, mode: shadow }
  - { name: search, rate: 20/s }
  - { name: export, rate: 2/s, burst: 4 }
  - { name: render, rate: 2/s, burst: 0, debt: 10 }
  - { name: daily, algorithm: sliding_window, rate: 10000/24h, sub_windows: 24 }
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--seconds", type=int, default=90)
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "images"))
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    server = Server(os.path.abspath(options.build), LIMITS)
    loads = [server.load("api", 1500, keys=20), server.load("search", 300, keys=30),
             server.load("export", 12, keys=3), server.load("login", 6, keys=12),
             server.load("daily", 40, keys=200)]
    try:
        burst = None
        for second in range(options.seconds):
            time.sleep(1)
            if second == options.seconds // 3:
                burst = server.load("search", 2000, keys=10)
            if second == options.seconds // 2:
                burst.terminate()
                burst.wait()
        Held(server, "render", "report:7", 6)
        take(server, options.out)
    finally:
        for load in loads:
            load.terminate()
            load.wait()
        server.stop()


def take(server, out):
    for name, dark in (
            ("overview", False),
            ("overview-dark", True)):
        browser = Browser(dark=dark)
        try:
            browser.open(f"{server.url}/")
            browser.wait_live()
            browser.wait_text("Limits, by share denied")
            time.sleep(3)
            browser.run("[...document.querySelectorAll('.choice')].find((one) => one.innerText === '5 min').click()")
            browser.screenshot(os.path.join(out, f"{name}.png"))
        finally:
            browser.close()


if __name__ == "__main__":
    main()
