// Makes two calls by gRPC-Web with @connectrpc/connect-web, and prints as JSON what came of each:
//
//     node connect_client.mjs URL CLIENT

import { create, createFileRegistry } from "@bufbuild/protobuf";
import { EmptySchema, FileDescriptorSetSchema, file_google_protobuf_empty } from "@bufbuild/protobuf/wkt";
import { ConnectError } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";

// What a generator makes of a service with a method that takes and returns `google.protobuf.Empty`.
const empty = ".google.protobuf.Empty";
const file = {
  name: "test.proto",
  package: "test",
  syntax: "proto3",
  dependency: [file_google_protobuf_empty.proto.name],
  service: [{ name: "Service", method: [{ name: "Method", inputType: empty, outputType: empty }] }],
};
const files = create(FileDescriptorSetSchema, { file: [file_google_protobuf_empty.proto, file] });
const { method } = createFileRegistry(files).getService("test.Service");

const [baseUrl, name] = process.argv.slice(2);
const transport = createGrpcWebTransport({ baseUrl });
const call = async () => {
  try {
    await transport.unary(method.method, undefined, undefined, { "x-client": name }, create(EmptySchema));
    return { code: 0 };
  } catch (error) {
    if (!(error instanceof ConnectError)) throw error;
    return { code: error.code, message: error.rawMessage, types: error.details.map((detail) => detail.type) };
  }
};
console.log(JSON.stringify([await call(), await call()]));
