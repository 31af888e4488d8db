// Makes calls with @grpc/grpc-js, one after the other, and prints as JSON what came of each:
//
//     node grpc_client.mjs ADDRESS CLIENT SIZES [retry]
//
// SIZES are those of the requests, as in 0,1000. With `retry` the channel has a retry policy, whose own waits are
// short.

import { Client, Metadata, credentials } from "@grpc/grpc-js";

const retryPolicy = {
  maxAttempts: 3,
  initialBackoff: "0.01s",
  maxBackoff: "0.01s",
  backoffMultiplier: 1,
  retryableStatusCodes: ["RESOURCE_EXHAUSTED"],
};

const [address, name, sizes, retry] = process.argv.slice(2);
const config = JSON.stringify({ methodConfig: [{ name: [{}], retryPolicy }] });
const client = new Client(address, credentials.createInsecure(), retry ? { "grpc.service_config": config } : {});
const metadata = new Metadata();
metadata.set("x-client", name);
const bytes = (message) => message;

const call = (size) =>
  new Promise((resolve) => {
    client.makeUnaryRequest("/test.Service/Method", bytes, bytes, Buffer.alloc(size), metadata, (error) => {
      if (!error) return resolve({ code: 0 });
      const [details] = error.metadata.get("grpc-status-details-bin");
      resolve({ code: error.code, message: error.details, details: details.toString("base64") });
    });
  });

const outcomes = [];
for (const size of sizes.split(",")) outcomes.push(await call(Number(size)));
console.log(JSON.stringify(outcomes));
client.close();
