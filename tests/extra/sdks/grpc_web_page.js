// What a page does: makes two calls with grpc-web, and returns what came of each. The body of an async function.
const { GrpcWebClientBase, MethodDescriptor, RpcError } = await import("/grpc-web.js");

class Empty {}
const serialize = () => new Uint8Array();
const method = new MethodDescriptor("/test.Service/Method", "unary", Empty, Empty, serialize, () => new Empty());
const client = new GrpcWebClientBase({ format: "binary" });
const call = async () => {
  try {
    await client.unaryCall(location.origin + method.getName(), new Empty(), { "x-client": "hour/grpc-web" }, method);
    return { code: 0 };
  } catch (error) {
    if (!(error instanceof RpcError)) throw error;
    return { code: error.code, message: error.message, details: error.metadata["grpc-status-details-bin"] };
  }
};
return [await call(), await call()];
