#!/usr/bin/env python3
"""Writes the dashboards of Grafana, operator.json and limit.json, beside this script.

The panels below are in the order in which they are shown. With --check, writes nothing and fails if
a file is stale.

usage: dashboards.py [--check]
"""
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent
SOURCE = {"type": "prometheus", "uid": "${source}"}
COLUMNS = 24  # of Grafana's grid

# Selectors of the nodes that the dashboard shows, and of one limit.
NODES = 'job="$job", instance=~"$instance"'
LIMIT = 'job="$job", limit="$limit"'


def rate(metric, selector=NODES, by="", more=""):
    """Per second, summed over nodes."""
    labels = f"by ({by}) " if by else ""
    return f"sum {labels}(rate({metric}{{{selector}{more}}}[$__rate_interval]))"


def share(part, whole):
    return f"{part} / ({whole} > 0)"


def panel(kind, title, about, queries, *, width=12, height=8, unit="short", **more):
    """`queries`: [(query, legend)]."""
    instant = kind in ("stat", "table")
    return {
        "type": kind, "title": title, "description": about, "datasource": SOURCE,
        "gridPos": {"w": width, "h": height},
        "targets": [{"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": query,
                     "legendFormat": legend, "instant": instant, "range": not instant}
                    for i, (query, legend) in enumerate(queries)],
        "fieldConfig": {"defaults": {"unit": unit, **more.get("defaults", {})}, "overrides": []},
        "options": more.get("options", {}),
    }


def graph(title, about, *queries, **more):
    more.setdefault("options", {"legend": {"displayMode": "table", "placement": "right",
                                           "calcs": ["lastNotNull", "max"]},
                                "tooltip": {"mode": "multi", "sort": "desc"}})
    return panel("timeseries", title, about, queries, **more)


def stat(title, about, *queries, good=None, bad=None, **more):
    """`good` and `bad`: values that are green and red from there on."""
    if bad is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": bad}]
    elif good is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": good}]
    else:
        steps = [{"color": "text", "value": None}]
    more.setdefault("width", 6)
    return panel("stat", title, about, queries, height=4,
                 defaults={"thresholds": {"mode": "absolute", "steps": steps}}, **more)


def text(title, markdown, **more):
    made = panel("text", title, "", [], **more)
    return {**made, "options": {"mode": "markdown", "content": markdown}}


def row(title):
    return {"type": "row", "title": title, "collapsed": False, "panels": [],
            "gridPos": {"w": COLUMNS, "h": 1}}


def variable(name, label, query, **more):
    return {"type": "query", "name": name, "label": label, "datasource": SOURCE, "query": query,
            "definition": query, "refresh": 2, "sort": 1, **more}


def variables(*more):
    return {"list": [
        {"type": "datasource", "name": "source", "label": "Prometheus", "query": "prometheus"},
        variable("job", "Job", "label_values(sluice_build_info, job)"), *more,
        {"type": "textbox", "name": "page", "label": "Sluice's page", "query":
         "http://127.0.0.1:7202", "hide": 0}]}


def dashboard(uid, title, about, variables, panels):
    """Places the panels in rows of the grid, from left to right."""
    x = y = height = 0
    for number, one in enumerate(panels, start=1):
        place = one["gridPos"]
        if x + place["w"] > COLUMNS:
            x, y, height = 0, y + height, 0
        place.update(x=x, y=y)
        x, height = x + place["w"], max(height, place["h"])
        one["id"] = number
    return {"uid": uid, "title": title, "description": about, "tags": ["sluice"],
            "schemaVersion": 38, "timezone": "browser", "editable": True, "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"}, "templating": variables, "panels": panels,
            "links": [{"type": "dashboards", "title": "Sluice", "tags": ["sluice"],
                       "asDropdown": False, "includeVars": True, "keepTime": True}]}


CHARGES = "sluice_limit_charges_total"
DENIED = ', outcome="denied"'
# A stream is one call for as long as its client runs.
ACQUIRE = ', method=~"/sluice.v1.RateLimiter/Acquire(Batch)?|/v1/check"'


def quantile(q, metric, by, more=""):
    return f"histogram_quantile({q}, {rate(metric + '_bucket', by=by + ', le', more=more)})"


OPERATOR = dashboard(
    "sluice-operator", "Sluice: operator",
    "What denies, whom, and whether the store and the nodes are well; the most urgent first.",
    variables(variable("instance", "Node", 'label_values(sluice_build_info{job="$job"}, instance)',
                       multi=True, includeAll=True, allValue=".*")),
    [
        row("Which limits deny, and how much"),
        stat("Acquisitions per second", "Decided, granted or denied.",
             (rate("sluice_acquisitions_total"), ""), unit="ops"),
        stat("Denied", "Share of all acquisitions that were denied.",
             (share(rate("sluice_acquisitions_total", more=DENIED),
                    rate("sluice_acquisitions_total")), ""), unit="percentunit"),
        stat("Limits that deny", "Limits that denied anything in the last 5 minutes.",
             (f"count((sum by (limit) (increase({CHARGES}{{{NODES}{DENIED}}}[5m])) > 0)) "
              f"or vector(0)", "")),
        stat("Callers that wait", "Held until their grant time.",
             (f"sum(sluice_held_callers{{{NODES}}})", "")),
        graph("Denied, by limit", "Charges per second that each limit denied; the ten most.",
              (f"topk(10, {rate(CHARGES, by='limit', more=DENIED)} > 0)", "{{limit}}"),
              unit="ops"),
        graph("Share denied, by limit", "Of each limit's charges; the ten highest.",
              (f"topk(10, {share(rate(CHARGES, by='limit', more=DENIED), rate(CHARGES, by='limit'))}"
               " > 0)", "{{limit}}"), unit="percentunit"),

        row("Who is denied"),
        text("Keys", "Metrics have no keys: there may be millions. "
             "[Sluice's page](${page}) shows the keys that each limit denied most, and so does "
             "`sluice keys --by denials`.", width=24, height=3),

        row("The store, and what was let through"),
        stat("Store up", "0: the circuit breaker is open, and each limit's on_store_failure decides.",
             (f"min(sluice_store_up{{{NODES}}})", ""), good=1, width=5),
        stat("Outages in a day", "How often a node lost its store.",
             (f"sum(increase(sluice_store_outages_total{{{NODES}}}[1d]))", ""), bad=1, width=5),
        stat("Let through in a day", "Charges that limits with on_store_failure: allow granted "
             "without the store.", (f"sum(increase(sluice_store_unavailable_charges_total{{{NODES}"
                                    ', outcome="allowed"}[1d]))', ""), bad=1, width=5),
        stat("Redis' clock set in a day", "How often nodes detected that Redis' clock was set.",
             (f"sum(increase(sluice_store_clock_jumps_total{{{NODES}}}[1d]))", ""), bad=1, width=5),
        stat("Nodes", "Nodes that answer.", (f'count(up{{{NODES}}} == 1)', ""), good=1, width=4),
        graph("Decided without the store", "Charges per second, by what on_store_failure said.",
              (rate("sluice_store_unavailable_charges_total", by="outcome"), "{{outcome}}"),
              unit="ops"),
        graph("Redis", "Commands per second, and those that failed.",
              (rate("sluice_store_commands_total"), "commands"),
              (rate("sluice_store_command_errors_total"), "errors"),
              (rate("sluice_store_commands_unanswered_total"), "not answered in time"),
              unit="ops"),

        row("Who is near a limit"),
        graph("Permits granted, as a multiple of one key's rate",
              "1 is the whole rate of a limit that all callers share. A limit with keys has as "
              "much for each key. The ten highest.",
              (f"topk(10, {rate('sluice_limit_permits_granted_total', by='limit')} / "
               f"max by (limit) (sluice_limit_permits_per_second{{{NODES}}}))", "{{limit}}"),
              unit="percentunit"),
        graph("Room for keys", "Buckets in memory, as a share of --max_buckets.",
              (f"sluice_store_buckets{{{NODES}}} / sluice_store_max_buckets{{{NODES}}}",
               "{{instance}}"), unit="percentunit"),

        row("Latency"),
        graph("Acquire, in the server", "From a call's headers to its end. Held callers wait for "
              "their grant time, so their calls are long.",
              (quantile(0.5, "sluice_call_duration_seconds", "method", ACQUIRE), "p50 {{method}}"),
              (quantile(0.99, "sluice_call_duration_seconds", "method", ACQUIRE), "p99 {{method}}"),
              unit="s"),
        graph("Steps of the event loops", "CPU time between which a loop serves other calls: p99.9.",
              (quantile(0.999, "sluice_loop_step_cpu_seconds", "kind"), "{{kind}}"), unit="s"),
        graph("Calls", "Per second, by method and gRPC status.",
              (rate("sluice_calls_total", by="method, code"), "{{method}} {{code}}"), unit="ops"),
        graph("Refused calls", "Shed: they had waited too long. Over memory: callers hold as much "
              "as they may. Above 0, callers see RESOURCE_EXHAUSTED.",
              (rate("sluice_calls_shed_total"), "shed"),
              (rate("sluice_calls_refused_over_memory_total"), "over memory"), unit="ops"),

        row("The last reload"),
        stat("Reload worked", "0: a node refused its limits file and uses the one before.",
             (f"min(sluice_config_last_reload_successful{{{NODES}}})", ""), good=1),
        stat("Since the last reload", "Of the node that reloaded last.",
             (f"time() - max(sluice_config_last_reload_success_timestamp_seconds{{{NODES}}})", ""),
             unit="s"),
        stat("Files in use", "More than 1: nodes have different limits.",
             (f"count(count by (version) (sluice_config_info{{{NODES}}}))", ""), bad=2),
        stat("Changes by admins", "PutLimit and DeleteLimit that are in force on any node.",
             (f"max(sluice_config_admin_changes{{{NODES}}})", "")),

        row("Nodes"),
        graph("CPU", "Cores.", (f"rate(process_cpu_seconds_total{{{NODES}}}[$__rate_interval])",
                                "{{instance}}"), width=8),
        graph("Memory", "Resident, and what callers make the node hold.",
              (f"process_resident_memory_bytes{{{NODES}}}", "{{instance}}"),
              (f"sluice_peer_memory_bytes{{{NODES}}}", "{{instance}} callers"), unit="bytes",
              width=8),
        graph("Connections", "Open, by port.",
              (f"sluice_connections{{{NODES}}}", "{{instance}} {{port}}"), width=8),
    ])

LIMIT_PAGE = dashboard(
    "sluice-limit", "Sluice: one limit", "For the owner of a limit: its use, and what it denies.",
    variables(variable("limit", "Limit", f'label_values({CHARGES}{{job="$job"}}, limit)')),
    [
        stat("Granted per second", "Permits.",
             (rate("sluice_limit_permits_granted_total", LIMIT), "")),
        stat("Rate of the limit", "Permits per second; of each key, unless all callers share one.",
             (f"max(sluice_limit_permits_per_second{{{LIMIT}}})", "")),
        stat("Denied", "Share of the charges in the last hour.",
             (f"sum(increase({CHARGES}{{{LIMIT}{DENIED}}}[1h])) / "
              f"(sum(increase({CHARGES}{{{LIMIT}}}[1h])) > 0)", ""), unit="percentunit"),
        stat("Shadow mode would deny", "Share of the charges in the last hour. No data: the limit "
             "is enforced.",
             (f"sum(increase(sluice_limit_shadow_denied_total{{{LIMIT}}}[1h])) / "
              f"(sum(increase({CHARGES}{{{LIMIT}}}[1h])) > 0)", ""), unit="percentunit"),
        graph("Use against the limit", "Permits granted per second, and the rate of one key.",
              (rate("sluice_limit_permits_granted_total", LIMIT), "granted"),
              (f"max(sluice_limit_permits_per_second{{{LIMIT}}})", "rate"), width=24),
        graph("Charges", "Per second, by outcome.", (rate(CHARGES, LIMIT, by="outcome"),
                                                     "{{outcome}}"), unit="ops"),
        graph("What shadow mode would deny", "Charges per second that were granted although the "
              "limit would have denied them.",
              (rate("sluice_limit_shadow_denied_total", LIMIT), "would be denied"), unit="ops"),
        text("Keys", "Metrics have no keys. [Sluice's page](${page}) shows the keys of this limit "
             "with the most use and the most denials, and so does `sluice keys ${limit}`.",
             width=24, height=3),
        graph("Given back", "Permits per second that Refund gave back.",
              (f"{rate('sluice_limit_permits_refunded_total', LIMIT)} or vector(0)", "refunded")),
        graph("Without the store", "Charges per second that on_store_failure decided.",
              (f"{rate('sluice_limit_unavailable_charges_total', LIMIT, by='outcome')} or vector(0)",
               "{{outcome}}"), unit="ops"),
    ])


def main():
    stale = []
    for name, made in (("operator.json", OPERATOR), ("limit.json", LIMIT_PAGE)):
        path, content = FOLDER / name, json.dumps(made, indent=2) + "\n"
        if "--check" not in sys.argv:
            path.write_text(content)
        elif not path.exists() or path.read_text() != content:
            stale.append(name)
    if stale:
        sys.exit(f"{', '.join(stale)}: stale; run {pathlib.Path(__file__).name}")


main()
