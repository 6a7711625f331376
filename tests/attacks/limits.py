"""The limits of the attacked servers. The ledger checks grants against the same parameters."""
from dataclasses import dataclass

DAY_S = 24 * 3600


@dataclass(frozen=True)
class Limit:
    name: str
    permits: int
    period_s: float
    burst: int | None = None  # token_bucket; None: `permits`
    algorithm: str = "token_bucket"
    charges: tuple = ()
    fields: tuple = (
    )  # further fields of the limits file; left out if the server does not know them

    @property
    def capacity(self):
        return self.permits if self.burst is None else self.burst

    def yaml(self, unknown):
        text = {"name": self.name, "algorithm": self.algorithm}
        if self.algorithm == "concurrency":
            text |= {"permits": self.permits, "hold_for": f"{self.period_s}s"}
        else:
            text["rate"] = f"{self.permits}/{self.period_s * 1000:.0f}ms"
        if self.burst is not None:
            text["burst"] = self.burst
        if self.charges:
            text["charges"] = f"[{', '.join(self.charges)}]"
        text |= {name: value for name, value in self.fields if name not in unknown}
        return "  - { " + ", ".join(f"{name}: {value}" for name, value in text.items()) + " }\n"


FAR = (("max_wait", "24h"),)
LOG_PERIOD_S = 30

LIMITS = {
    limit.name: limit for limit in (
        Limit("honest", 1, 3600, burst=500_000),
        Limit("big", 1_000_000, 1, burst=500_000),
        Limit("daily", 10_000, DAY_S),
        Limit("slow", 1, 3600, burst=1, fields=FAR),
        Limit("log", 100_000, LOG_PERIOD_S, algorithm="sliding_log", fields=FAR),
        Limit("subwindows",
              100_000,
              60,
              algorithm="sliding_window",
              fields=FAR + (("sub_windows", 100),)),
        Limit("window", 5, 10, algorithm="fixed_window"),
        Limit("p1", 10, 1, fields=FAR),
        Limit("p2", 10, 1, fields=FAR),
        *(Limit(f"part{i}", 10, 1, fields=FAR) for i in range(16)),
        Limit("parent", 5000, 1, fields=(("max_wait", "2s"),)),
        Limit("child", 100, 1, burst=200, charges=("parent",)),
        Limit("far_parent", 10, 1, fields=FAR),
        Limit("far_child", 1, 3600, burst=1, charges=("far_parent",), fields=FAR),
        Limit("booked", 5000, 1, fields=FAR),
    Limit("bursts", 20_000, 5, algorithm="fixed_window", fields=FAR),
    Limit("folds", 130_000, 5, algorithm="sliding_log", fields=FAR),
    Limit("hidden", 10, 3600, fields=(("direct", "false"),)),
    Limit("visible", 1000, 1, charges=("hidden",)),
        Limit("api", 100, 1, burst=200),
        Limit("tight", 50, 1, burst=20),
        Limit("slots", 1_000_000, 5, algorithm="concurrency"),
        Limit("estimated", 100, 1, burst=500_000, fields=FAR + (("max_owed", 1000),)),
        Limit("tight_log", 100, 2, algorithm="sliding_log"),
        Limit("tight_window", 100, 2, algorithm="sliding_window"),
    )
}


def limits_yaml(limits=LIMITS.values(), unknown=()):
    """The text of a limits file, without the fields `unknown`."""
    return "limits:\n" + "".join(limit.yaml(unknown) for limit in limits)


def optional_fields():
    return {name for limit in LIMITS.values() for name, _ in limit.fields}
