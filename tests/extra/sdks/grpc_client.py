"""Makes calls with grpcio, one after the other, and prints as JSON what came of each:

    python grpc_client.py ADDRESS CLIENT SIZES [retry]

SIZES are those of the requests, as in 0,1000. With `retry` the channel has a retry policy, whose own waits are short.
"""

import json
import sys

import grpc
from google.rpc import error_details_pb2 as details_pb2
from grpc_status import rpc_status

RETRY = {
    "maxAttempts": 3,
    "initialBackoff": "0.01s",
    "maxBackoff": "0.01s",
    "backoffMultiplier": 1,
    "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
}


def outcome_of(error):
    status = rpc_status.from_call(error)
    outcome = {"code": error.code().value[0], "message": error.details(), "types": []}
    for detail in status.details:
        outcome["types"].append(detail.type_url.rsplit("/")[-1])
        retry, quota, info = details_pb2.RetryInfo(), details_pb2.QuotaFailure(), details_pb2.ErrorInfo()
        if detail.Unpack(retry):
            outcome["delay"] = retry.retry_delay.ToMilliseconds()
        if detail.Unpack(quota):
            outcome["violations"] = [[found.subject, found.description] for found in quota.violations]
        if detail.Unpack(info):
            outcome["info"] = [info.reason, info.domain, dict(info.metadata)]
    return outcome


address, client, sizes = sys.argv[1:4]
options = []
if "retry" in sys.argv:
    options = [("grpc.service_config", json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": RETRY}]}))]
outcomes = []
with grpc.insecure_channel(address, options=options) as channel:
    # Without serializers a message is bytes.
    call = channel.unary_unary("/test.Service/Method")
    for size in sizes.split(","):
        try:
            call(bytes(int(size)), metadata=[("x-client", client)])
            outcomes.append({"code": 0})
        except grpc.RpcError as error:
            outcomes.append(outcome_of(error))
print(json.dumps(outcomes))
