"""A plain reference of the rate-limit protocol's compatible mode: what envoyproxy/ratelimit answers.

One counter is an entry of a dict, so nothing here is fast or bounded. Configurations are the parsed
YAML files (dicts), requests are dicts in proto3's JSON form with snake_case names, and answers are
dicts as `normal` in servers.py makes them. All times are whole seconds of the wall clock.
"""
import dataclasses
import json

UNITS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 7 * 86400,
         "MONTH": 30 * 86400, "YEAR": 365 * 86400}
MOST = 2**32 - 1  # what an unlimited descriptor has left


@dataclasses.dataclass(frozen=True)
class Rules:
    """Settings of a server, and the faults of envoyproxy/ratelimit that no other server has."""
    headers: bool = False
    metadata: bool = False
    shadow_all: bool = False
    quota_all: bool = False
    spare_siblings: bool = False  # STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
    original_faults: bool = False


class Failure(Exception):
    """The call fails with this text; status UNKNOWN."""


def matches(pattern, text):
    """Whether `*` in the pattern can stand for characters, or none, such that it is the text."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    *middle, last = rest
    if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
        return False
    text = text[len(first):len(text) - len(last)]
    for part in middle:
        _, found, text = text.partition(part) if part else ("", "*", text)
        if not found:
            return False
    return True


class Node:
    """A level of descriptors, and the limit that applies to requests that end here."""

    def __init__(self, config=None, parent_name=""):
        config = config or {}
        self.config = config
        self.children = {}
        self.wildcards = []
        self.name = parent_name
        limit = config.get("rate_limit")
        self.limit = dict(limit) if limit else None
        self.add(config.get("descriptors") or [])

    def add(self, descriptors):
        for one in descriptors:
            value = str(one.get("value") or "")
            composite = str(one["key"]) + ("_" + value if value else "")
            self.children[composite] = Node(one, f"{self.name}.{composite}")
            if "*" in composite:
                self.wildcards.append(composite)


@dataclasses.dataclass
class Match:
    """The limit of one descriptor of a request."""
    requests: int
    unit: str
    name: str = ""
    replaces: tuple = ()
    unlimited: bool = False
    shadow: bool = False
    quota: bool = False
    metadata: dict = None
    entries: tuple = ()  # with the patterns that share a counter
    requested: bool = False


class Configuration:
    def __init__(self, files):
        self.domains = {}
        for file in files:
            domain = self.domains.setdefault(file["domain"], Node(None, file["domain"]))
            domain.add(file.get("descriptors") or [])

    def match(self, domain, descriptor, rules=Rules()):
        """The Match of a descriptor, or None."""
        node = self.domains.get(domain)
        if node is None:
            return None
        entries = [(e.get("key", ""), e.get("value", "")) for e in descriptor.get("entries", [])]
        asked = descriptor.get("limit")
        if asked is not None:
            return Match(asked.get("requests_per_unit", 0), asked.get("unit", "UNKNOWN"),
                         entries=tuple(entries), requested=True)
        metric, shared, found = domain, {}, None
        for i, (key, value) in enumerate(entries):
            child, wildcard = node.children.get(f"{key}_{value}"), None
            exact = child is not None
            if child is None:
                wildcard = next((w for w in node.wildcards if matches(w, f"{key}_{value}")), None)
                child = node.children.get(wildcard)
            if child is None:
                child = node.children.get(key)
            if child is None:
                return None
            pattern = wildcard.removeprefix(key + "_") if wildcard else None
            if wildcard and child.config.get("share_threshold"):
                shared[i] = pattern
            metric += "." + key + self.metric_value(child, value, exact, pattern, i in shared)
            if i == len(entries) - 1:
                found = child
            elif not child.children:
                return None
            node = child
        if found is None or found.limit is None:
            return None
        counted = tuple((key, shared.get(i, value)) for i, (key, value) in enumerate(entries))
        match = self.of(found, counted)
        detailed = found.config.get("detailed_metric")
        lost = (detailed and not found.children) or (not detailed and metric != found.name)
        if rules.original_faults and lost:
            match.metadata = None
        return match

    @staticmethod
    def metric_value(child, value, exact, pattern, is_shared):
        """The part of the metric's name that stands for an entry's value."""
        if pattern is not None:
            shown = value if child.config.get("value_to_metric") and not is_shared else pattern
        else:
            shown = value if exact or child.config.get("value_to_metric") else ""
        return "_" + shown if shown else ""

    @staticmethod
    def of(node, counted):
        limit = node.limit
        return Match(requests=limit.get("requests_per_unit", 0),
                     unit=str(limit.get("unit", "")).upper(), name=str(limit.get("name", "")),
                     replaces=tuple(r["name"] for r in limit.get("replaces") or []),
                     unlimited=bool(limit.get("unlimited")),
                     shadow=bool(node.config.get("shadow_mode")),
                     quota=bool(node.config.get("quota_mode")),
                     metadata=node.config.get("metadata"), entries=counted)


def hits_of(request, descriptor, rules):
    """Hits of one descriptor; negative if they are given back."""
    own = descriptor.get("hits_addend")
    hits = own if own is not None else max(1, request.get("hits_addend", 0))
    if descriptor.get("is_negative_hits") and not rules.original_faults:
        return -hits
    return hits


def merge(into, more):
    """Adds members; of equal ones the first stays, except that objects merge."""
    for key, value in more.items():
        if key not in into:
            into[key] = json.loads(json.dumps(value))
        elif isinstance(into[key], dict) and isinstance(value, dict):
            merge(into[key], value)


class Reference:
    """A server: a configuration, rules, counters."""

    def __init__(self, files, rules=Rules()):
        self.configuration = Configuration(files)
        self.rules = rules
        self.counters = {}

    def reload(self, files):
        self.configuration = Configuration(files)

    def answer(self, request, now):
        domain, descriptors = request.get("domain", ""), request.get("descriptors", [])
        try:
            if not domain:
                raise Failure("rate limit domain must not be empty")
            if not descriptors:
                raise Failure("rate limit descriptor list must not be empty")
            found = [self.configuration.match(domain, one, self.rules) for one in descriptors]
            return self.decide(request, self.without_replaced(found), now)
        except Failure as failure:
            return {"error": "UNKNOWN", "text": str(failure)}

    @staticmethod
    def without_replaced(found):
        replaced = {name for match in found if match for name in match.replaces}
        return [None if match and not match.unlimited and match.name and match.name in replaced
                else match for match in found]

    def decide(self, request, found, now):
        counts = self.count(request, found, now)
        statuses = [self.status(match, count, now) for match, count in zip(found, counts)]
        over = [status["code"] == "OVER_LIMIT" for status in statuses]
        quota = [self.rules.quota_all and not (match and match.unlimited) or
                 bool(match and match.quota and not match.unlimited) for match in found]
        of_quota = [o for o, q in zip(over, quota) if q]
        hard = any(o and not q for o, q in zip(over, quota))
        denied = hard or (bool(of_quota) and all(of_quota))
        answer = {"overall": "OVER_LIMIT" if denied and not self.rules.shadow_all else "OK",
                  "statuses": statuses, "headers": [], "metadata": None}
        if self.rules.headers:
            answer["headers"] = self.headers(statuses, over, quota)
        if self.rules.metadata:
            answer["metadata"] = self.metadata(request, found, over)
        return answer

    def key(self, request, match, now):
        # The original counts a limit in a request together with the configured one.
        apart = match.requested and not self.rules.original_faults
        return (request["domain"], match.entries, apart, match.unit, now // UNITS[match.unit])

    def count(self, request, found, now):
        """Counts the hits. Returns the count of each descriptor, None if it has no counter."""
        hits = [hits_of(request, one, self.rules) for one in request["descriptors"]]
        counted = [match is not None and not match.unlimited for match in found]
        keys = [self.key(request, match, now) if c else None for match, c in zip(found, counted)]
        if self.rules.spare_siblings:
            before = [self.counters.get(key, 0) for key in keys]
            over = [c and b + h > match.requests
                    for c, b, h, match in zip(counted, before, hits, found)]
            if any(over):
                hits = [h if o else 0 for h, o in zip(hits, over)]
        counts = []
        for key, hit in zip(keys, hits):
            if key is not None:
                self.counters[key] = max(0, self.counters.get(key, 0) + hit)
            counts.append(self.counters.get(key))
        return counts

    @staticmethod
    def status(match, count, now):
        if match is None:
            return {"code": "OK", "limit": None, "remaining": 0, "reset": None}
        if match.unlimited:
            return {"code": "OK", "limit": None, "remaining": MOST, "reset": None}
        period = UNITS[match.unit]
        over = count > match.requests
        return {"code": "OVER_LIMIT" if over and not match.shadow else "OK",
                "limit": [match.requests, match.unit, match.name],
                "remaining": 0 if over else match.requests - count, "reset": period - now % period}

    @staticmethod
    def headers(statuses, over, quota):
        """Of the last descriptor that denies, else of the first with the least remaining."""
        chosen, least = None, MOST
        for status, is_over, is_quota in zip(statuses, over, quota):
            if status["limit"] and status["remaining"] < least:
                chosen, least = status, status["remaining"]
            if is_over and not is_quota:
                chosen, least = status, 0
        if chosen is None:
            return []
        return [["RateLimit-Limit", str(chosen["limit"][0])],
                ["RateLimit-Remaining", str(chosen["remaining"])],
                ["RateLimit-Reset", str(chosen["reset"])]]

    @staticmethod
    def metadata(request, found, over):
        shown = {"domain": request["domain"], "descriptors": []}
        for one in request["descriptors"]:
            entries = [f"{e.get('key', '')}={e.get('value', '')}" for e in one.get("entries", [])]
            descriptor = {"entries": entries}
            if one.get("limit") is not None:
                descriptor["limit"] = "<text>"  # a protobuf text whose spaces vary
            if one.get("hits_addend") is not None:
                descriptor["hitsAddend"] = float(one["hits_addend"])
            shown["descriptors"].append(descriptor)
        if request.get("hits_addend"):
            shown["hitsAddend"] = float(request["hits_addend"])
        passed = {}
        for match, is_over in zip(found, over):
            if match and not match.unlimited and not is_over and match.metadata:
                merge(passed, match.metadata)
        if passed:
            shown["metadata"] = passed
        return shown
