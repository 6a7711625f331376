"""A client of envoy.service.ratelimit.v3.RateLimitService; answers are those of reference.py."""
import glob
import os
import subprocess
import tempfile

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


class Messages:
    """The classes of all messages in a folder of proto files."""

    def __init__(self, folder):
        files = [os.path.relpath(file, folder)
                 for file in glob.glob(f"{folder}/envoy/**/*.proto", recursive=True)]
        with tempfile.NamedTemporaryFile(suffix=".pb") as out:
            subprocess.run(["protoc", f"-I{folder}", "--include_imports",
                            f"--descriptor_set_out={out.name}", *files], check=True)
            found = descriptor_pb2.FileDescriptorSet.FromString(out.read())
        self.pool = descriptor_pool.DescriptorPool()
        for file in found.file:
            self.pool.Add(file)

    def type(self, name):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(name))


class Client:
    """Its calls are asynchronous, so that several servers decide at once."""

    def __init__(self, name, address, messages):
        self.name = name
        self.request_type = messages.type("envoy.service.ratelimit.v3.RateLimitRequest")
        answer_type = messages.type("envoy.service.ratelimit.v3.RateLimitResponse")
        self.channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.call = self.channel.unary_unary(METHOD, self.request_type.SerializeToString,
                                             answer_type.FromString)

    def message(self, request):
        return json_format.ParseDict(request, self.request_type())

    def start(self, message, timeout=20):
        return self.call.future(message, timeout=timeout)

    @staticmethod
    def finish(future):
        try:
            return normal(future.result())
        except grpc.RpcError as error:
            return {"error": error.code().name, "text": error.details()}

    def ask(self, request):
        return self.finish(self.start(self.message(request)))


def normal(answer):
    """An answer as reference.py makes it."""
    codes = answer.DESCRIPTOR.fields_by_name["overall_code"].enum_type.values_by_number
    return {"overall": codes[answer.overall_code].name,
            "statuses": [normal_status(status, codes) for status in answer.statuses],
            "headers": [[header.key, header.value or header.raw_value.decode()]
                        for header in answer.response_headers_to_add],
            "metadata": normal_metadata(answer)}


def normal_status(status, codes):
    limit = reset = None
    if status.HasField("current_limit"):
        units = status.current_limit.DESCRIPTOR.fields_by_name["unit"].enum_type.values_by_number
        limit = [status.current_limit.requests_per_unit, units[status.current_limit.unit].name,
                 status.current_limit.name]
    if status.HasField("duration_until_reset"):
        duration = status.duration_until_reset
        reset = duration.seconds if not duration.nanos else duration.seconds + duration.nanos / 1e9
    return {"code": codes[status.code].name, "limit": limit, "remaining": status.limit_remaining,
            "reset": reset}


def normal_metadata(answer):
    if not answer.HasField("dynamic_metadata"):
        return None
    found = json_format.MessageToDict(answer.dynamic_metadata)
    for descriptor in found.get("descriptors", []):
        if "limit" in descriptor:
            descriptor["limit"] = "<text>"
    return found
