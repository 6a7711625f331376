"""A client of /json, with Python's own library; answers are those of reference.py."""
import http.client
import json

CODES = {200: "OK", 429: "OVER_LIMIT"}


class Client:
    def __init__(self, name, process):
        self.name, self.port = name, process.http_port

    @staticmethod
    def message(request):
        return json.dumps(request)

    def start(self, message):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", "/json", message, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    @staticmethod
    def finish(answered):
        status, body = answered
        if status not in CODES:
            # A failure has no other text: the caller sees only that the request was refused.
            return {"error": "UNKNOWN" if status == 400 else str(status), "text": None}
        answer = json.loads(body)
        if answer.get("overallCode") != CODES[status]:
            return {"error": f"status {status}, but {answer.get('overallCode')}", "text": body}
        return normal(answer)

    def ask(self, request):
        return self.finish(self.start(self.message(request)))


def normal(answer):
    metadata = answer.get("dynamicMetadata")
    for descriptor in (metadata or {}).get("descriptors", []):
        if "limit" in descriptor:
            descriptor["limit"] = "<text>"
    return {"overall": answer["overallCode"],
            "statuses": [normal_status(status) for status in answer.get("statuses", [])],
            "headers": [[header["key"], header.get("value", "")]
                        for header in answer.get("responseHeadersToAdd", [])],
            "metadata": metadata}


def normal_status(status):
    limit = status.get("currentLimit")
    reset = status.get("durationUntilReset")
    if reset is not None:
        reset = float(reset.removesuffix("s"))
        reset = int(reset) if reset == int(reset) else reset
    return {"code": status.get("code", "UNKNOWN"),
            "limit": [limit.get("requestsPerUnit", 0), limit.get("unit", "UNKNOWN"),
                      limit.get("name", "")] if limit else None,
            "remaining": status.get("limitRemaining", 0), "reset": reset}
