"""Random configurations by the grammar of envoyproxy/ratelimit's files, and requests for them.

Keys and values are chosen such that no two different descriptors have the same `key_value` text,
and limits in requests such that one counter never has two units: envoyproxy/ratelimit confuses
such descriptors and such counters, and no other server has to.
"""
import copy
import random

import reference

KEYS = ["user", "path", "remote_address", "tenant", "generic_key"]
VALUES = ["a", "b", "ab", "abc", "cab", "x/y", "10.0.0.1", "gr\u00fcn", "5"]
PATTERNS = ["*", "a*", "*b", "a*c", "*a*", "a**", "x/*", "10.*.1", "*\u00fc*"]
UNITS = ["second", "second", "second", "minute", "minute", "hour", "day", "week", "month", "year",
         "SECOND", "Minute"]
NAMES = ["", "", "one", "two", "three"]
METADATA = [{"tier": "gold"}, {"tier": "free", "weight": 2}, {"tags": ["a", "b"]}, {"deep": {"x": 1.5}}]


class Grammar:
    """One random configuration: `files`, and random requests for it."""

    def __init__(self, seed, suffix=""):
        self.random = random.Random(seed)
        self.request_units = {}
        self.files = []
        for i in range(self.random.randint(1, 3)):
            depth = self.random.choice([1, 2, 2, 3, 4])
            self.files.append({"domain": f"d{seed}-{i}{suffix}", "descriptors": self.level(depth)})
        self.configuration = reference.Configuration(self.files)

    def level(self, depth):
        found, made = [], set()
        for _ in range(self.random.randint(1, 5)):
            one = self.descriptor(depth)
            name = (one["key"], one.get("value"))
            if name not in made:
                made.add(name)
                found.append(one)
        return found

    def descriptor(self, depth):
        chance = self.random.random
        one = {"key": self.random.choice(KEYS)}
        kind = chance()
        if kind < 0.45:
            one["value"] = self.random.choice(VALUES)
        elif kind < 0.70:
            one["value"] = self.random.choice(PATTERNS)
            if chance() < 0.4:
                one["share_threshold"] = True
        elif kind < 0.74:
            one["key"] = self.random.choice(["us*", "*", "pa*th"])
        nested = depth > 1 and chance() < 0.6
        if nested:
            one["descriptors"] = self.level(depth - 1)
        if not nested or chance() < 0.4:
            one["rate_limit"] = self.limit()
        for flag, likely in (("shadow_mode", 0.1), ("quota_mode", 0.15), ("detailed_metric", 0.1),
                             ("value_to_metric", 0.1)):
            if chance() < likely:
                one[flag] = chance() < 0.9
        if chance() < 0.2:
            one["metadata"] = self.random.choice(METADATA)
        return one

    def retune(self):
        """Changes numbers and flags, so that counters live on. The old files stay as they are."""
        self.files = copy.deepcopy(self.files)
        for file in self.files:
            self.retune_level(file["descriptors"])
        self.configuration = reference.Configuration(self.files)

    def retune_level(self, level):
        for one in level:
            limit = one.get("rate_limit") or {}
            if "requests_per_unit" in limit and self.random.random() < 0.5:
                limit["requests_per_unit"] = self.random.choice([0, 1, 2, 5, 13, 40, 2**32 - 1])
            if self.random.random() < 0.1:
                one["shadow_mode"] = not one.get("shadow_mode", False)
            self.retune_level(one.get("descriptors") or [])

    def limit(self):
        chance = self.random.random
        limit = {}
        if chance() < 0.08:
            limit["unlimited"] = True
        else:
            limit["unit"] = self.random.choice(UNITS)
            limit["requests_per_unit"] = self.random.choice(
                [0, 1, 2, 3, 5, 8, 13, 13, 20, 40, 40, 100, 100, 2**31, 2**32 - 1])
        name = self.random.choice(NAMES)
        if name:
            limit["name"] = name
        if chance() < 0.25:
            limit["replaces"] = [{"name": other} for other in ("one", "two", "three", "none")
                                 if other != name and chance() < 0.5]
            if not limit["replaces"]:
                del limit["replaces"]
        return limit

    def request(self):
        chance = self.random.random
        if chance() < 0.01:
            return self.random.choice([{"descriptors": [self.asked()]}, {"domain": "x"}, {}])
        file = self.random.choice(self.files)
        domain = file["domain"] if chance() < 0.97 else "unknown"
        request = {"domain": domain, "descriptors": []}
        for _ in range(self.random.choice([1, 1, 1, 2, 2, 3, 4])):
            request["descriptors"].append(self.asked(file))
        if chance() < 0.1:
            request["descriptors"].append(request["descriptors"][0])
        if chance() < 0.2:
            request["hits_addend"] = self.random.choice(
                [0, 1, 1, 2, 2, 3, 5] if chance() < 0.9 else [1000, 2**32 - 1])
        return request

    def asked(self, file=None):
        chance = self.random.random
        descriptor = {"entries": self.entries(file["descriptors"] if file else [])}
        if chance() < 0.25:
            descriptor["hits_addend"] = self.random.choice(
                [0, 0, 1, 2, 3, 7] if chance() < 0.9 else [2**32, 2**40])
        if chance() < 0.07:
            descriptor["limit"] = self.asked_limit(file, descriptor["entries"])
        return descriptor

    def asked_limit(self, file, entries):
        """A limit in a request. Counters of the same entries always have one unit (see above)."""
        domain = file["domain"] if file else ""
        configured = self.configuration.match(domain, {"entries": entries})
        if configured and not configured.unlimited:
            unit = configured.unit
        else:
            unit = self.request_units.setdefault(
                (domain, repr(entries)), self.random.choice(["SECOND", "MINUTE", "DAY"]))
        return {"requests_per_unit": self.random.choice([0, 1, 2, 5, 10, 2**32 - 1]), "unit": unit}

    def entries(self, level):
        chance = self.random.random
        if chance() < 0.01:
            return []
        found = []
        while level and chance() < 0.93:
            one = self.random.choice(level)
            found.append(self.entry_for(one))
            level = one.get("descriptors") or []
        while not found or chance() < 0.05:
            found.append({"key": self.random.choice(KEYS), "value": self.random.choice(VALUES)})
        return found

    def entry_for(self, one):
        key, value = one["key"], one.get("value")
        if "*" in key:
            key = self.random.choice(KEYS)
        if value is None:
            value = self.random.choice(VALUES + [""])
        elif "*" in value:
            if self.random.random() < 0.97:
                value = value.replace("*", self.random.choice(["", "a", "b", "bc", "0.0"]))
        return {"key": key, "value": value} if value else {"key": key}
